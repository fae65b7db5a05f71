// What the CUDA backend says of a GPU or a step that it cannot use: sentences that need no GPU to be tested.
//
//   if (Status s = check_architecture(0, "NVIDIA A100", 8, 0); !s.ok()) return s;
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "ops/row_batch.h"

namespace deepinfer::ops::cuda {

// kUnsupported unless the GPU is a Hopper one (compute capability 9.0).
inline Status check_architecture(int device, std::string_view name, int major, int minor) {
  if (major == 9 && minor == 0) return {};
  return make_error(Code::kUnsupported,
                    "GPU {} ({}) has compute capability {}.{}, and this build has kernels for Hopper (9.0) alone; "
                    "use the CPU (--device cpu).",
                    device, name, major, minor);
}

// kInvalidArgument unless 0 <= device < count.
inline Status check_number(int device, int count) {
  if (device >= 0 && device < count) return {};
  return make_error(Code::kInvalidArgument, "There is no GPU {}: this machine has {}, counted from 0.", device, count);
}

// kResourceExhausted. All in bytes.
inline Status too_little_memory(uint64_t free, uint64_t total, uint64_t needed) {
  return make_error(Code::kResourceExhausted,
                    "The GPU has {} MiB free of {} MiB, and {} MiB more are needed: use a smaller model, context or "
                    "number of sequences, or the CPU (--device cpu).",
                    free >> 20, total >> 20, needed >> 20);
}

// Tokens of a step's rows and of what stands before them, which alone may be kNoToken. feedback: elements of
// Role::kFeedback that a token may refer to.
inline Status check_tokens(std::span<const int32_t> tokens, std::span<const int32_t> history, int64_t vocab_size,
                           int feedback) {
  const auto known = [&](int32_t t) { return t >= 0 ? t < vocab_size : t != kNoToken && -1 - t < feedback; };
  for (int32_t t : tokens) {
    if (known(t)) continue;
    if (t == kNoToken)
      return make_error(Code::kInvalidArgument, "a row has no token; only what stands before a sequence may have none");
    return make_error(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t, vocab_size);
  }
  for (int32_t t : history) {
    if (t == kNoToken || known(t)) continue;
    return make_error(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t, vocab_size);
  }
  return {};
}

}  // namespace deepinfer::ops::cuda
