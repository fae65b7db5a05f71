// What the model tests share: checkpoints by the names of the golden files.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "ops/cpu/cpu_ops.h"
#ifdef DEEPINFER_TEST_CUDA
#include "ops/cuda/make.h"
#endif
#include "tests/support/checkpoints.h"

namespace deepinfer::testing {

// Sanitizer builds run the smallest model only: they are 5 to 20 times slower, and the code is the same for all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// "tiny-random", "tiny-wide-random" or "tiny-trained" (the bundled model). Ends the program with a message on failure.
inline std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const std::string& name) {
  const std::string directory = name == "tiny-trained"  ? "models/tiny"
                                : name == "tiny-random" ? tiny_random_dir()
                                                        : tiny_wide_random_dir();
  Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open(directory);
  if (!c.ok()) {
    std::fprintf(stderr, "%s\n", c.status().to_string().c_str());
    std::abort();
  }
  return std::make_shared<const checkpoint::Checkpoint>(std::move(c).value());
}

// kCuda exists in programs built with DEEPINFER_TEST_CUDA.
enum class Kind { kReference, kPlain, kFast, kFastAvx512, kFastAvx2, kCuda };

inline std::unique_ptr<ops::Ops> make_ops(Kind kind, int threads) {
#ifdef DEEPINFER_TEST_CUDA
  if (kind == Kind::kCuda) {
    // DEEPINFER_TEST_HOST_EXPERTS: as many of each layer are computed by the host.
    const char* text = std::getenv("DEEPINFER_TEST_HOST_EXPERTS");
    ops::cuda::Options options{.host_experts = text != nullptr ? std::atoi(text) : 0};
    if (options.host_experts != 0) options.host = ops::make_cpu_ops(threads);
    Result<std::unique_ptr<ops::Ops>> made = ops::cuda::make(0, options);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().to_string().c_str());
      std::abort();
    }
    return std::move(made).value();
  }
#endif
  if (kind == Kind::kFast) return ops::make_cpu_ops(threads);
  if (kind == Kind::kFastAvx512) return ops::make_fast_ops(threads, "avx512");
  if (kind == Kind::kFastAvx2) return ops::make_fast_ops(threads, "avx2");
  return kind == Kind::kReference ? ops::make_reference_ops(ops::ReferenceMode::kExact, threads)
                                  : ops::make_plain_ops(threads);
}

}  // namespace deepinfer::testing
