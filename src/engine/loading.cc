#include "engine/loading.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/thread_pool.h"
#include "checkpoint/config.h"
#include "engine/device_name.h"
#include "engine/host_experts_flag.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/peak.h"
#include "ops/cuda_backend.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {
namespace {

// Embeddings are often padded to a round number of rows (DeepSeek's by 465), which a tokenizer of the same model then
// lacks.
int64_t padding_max(int64_t vocab_size) { return std::max<int64_t>(vocab_size / 64, 128); }

Result<std::unique_ptr<ops::Ops>> make_cpu_ops(const std::string& backend, int threads, bool pin) {
  if (backend.empty() || backend == "fast") return ops::make_cpu_ops(threads, pin);
  if (backend == "fast-avx2") {
    std::unique_ptr<ops::Ops> fast = ops::make_fast_ops(threads, "avx2", pin);
    if (fast != nullptr) return fast;
    return Status(Code::kInvalidArgument,
                  "This processor lacks AVX2 or FMA, which backend \"fast-avx2\" needs; use plain.");
  }
  if (backend == "plain") return ops::make_plain_ops(threads);
  if (backend == "reference") return ops::make_reference_ops(ops::ReferenceMode::kExact, threads);
  return make_error(Code::kInvalidArgument,
                    "There is no backend \"{}\"; there are fast, fast-avx2, plain, reference and cuda.", backend);
}

// One core is left to the engine, which watches for the end of a step, and one to the rest of the program.
Result<std::unique_ptr<ops::Ops>> open_gpu(int device, int host_experts, const ComputeOptions& options) {
  ops::CudaOptions cuda{.host_experts = host_experts, .progress = options.on_copied};
  if (host_experts != 0) {
    const int threads = options.threads > 0 ? options.threads : std::max(1, available_cores() - 2);
    cuda.host = ops::make_cpu_ops(threads, options.pin_threads);
  }
  return ops::open_cuda_ops(device, options.library_dir, std::move(cuda));
}

}  // namespace

Result<std::unique_ptr<ops::Ops>> make_ops(const ComputeOptions& options, std::string* note) {
  if (const std::string error = device_error(options.device); !error.empty()) {
    return make_error(Code::kInvalidArgument, "The device \"{}\" {}.", options.device, error);
  }
  const std::optional<int> host_experts = host_experts_count(options.host_experts);
  if (!host_experts) {
    return make_error(Code::kInvalidArgument,
                      "The host's experts (--host-experts) are \"{}\"; it must be off, auto or a number up to {}.",
                      options.host_experts, kHostExpertsMax);
  }
  const bool cuda_backend = options.backend == "cuda";
  if (gpu_index(options.device).has_value() || cuda_backend) {
    if (options.device == "cpu" || !(options.backend.empty() || cuda_backend)) {
      return make_error(Code::kInvalidArgument,
                        "The backend {} and the device {} contradict each other; leave one out.", options.backend,
                        options.device);
    }
    return open_gpu(gpu_index(options.device).value_or(0), *host_experts, options);
  }
  if (options.device == "auto" && options.backend.empty()) {
    Result<std::unique_ptr<ops::Ops>> gpu = open_gpu(0, *host_experts, options);
    if (gpu.ok()) return gpu;
    if (note != nullptr && gpu.status().code() != Code::kNotFound) {
      *note = fmt::format("Computing on the CPU: {}", gpu.status().message());
    }
  }
  if (note != nullptr && *host_experts > 0) {
    *note += fmt::format("{}--host-experts {} is without effect, since no GPU computes.", note->empty() ? "" : " ",
                         *host_experts);
  }
  return make_cpu_ops(options.backend, options.threads > 0 ? options.threads : available_cores(),
                      options.pin_threads);
}

double peak_flops(const ops::Ops& ops, const ComputeOptions& options) {
  if (ops.capabilities().host_memory) {
    return ops::measure_peak_flops(options.threads > 0 ? options.threads : available_cores());
  }
  return ops::cuda_peak_flops(gpu_index(options.device).value_or(0), options.library_dir);
}

Status check_tokenizer(const text::Tokenizer& tokenizer, const checkpoint::ModelConfig& config,
                       const std::string& path) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    return make_error(
        Code::kInvalidArgument,
        "{} has tokens up to id {}, but config.json says {} tokens (vocab_size): it belongs to another model.", path,
        tokenizer.vocab_size() - 1, config.vocab_size);
  }
  int64_t missing = config.vocab_size;
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id) missing -= tokenizer.exists(id);
  if (missing > padding_max(config.vocab_size)) {
    return make_error(Code::kInvalidArgument,
                      "{} has {} tokens, but config.json says {} (vocab_size), and padding explains at most {} of the "
                      "difference: it belongs to another model.",
                      path, config.vocab_size - missing, config.vocab_size, padding_max(config.vocab_size));
  }
  struct Named {
    const char* text;
    int64_t id;
    const char* key;
  };
  for (const Named& n : {Named{"<｜begin▁of▁sentence｜>", config.bos_token_id, "bos_token_id"},
                         Named{"<｜end▁of▁sentence｜>", config.eos_token_id, "eos_token_id"}}) {
    const std::optional<text::TokenId> id = tokenizer.find_added(n.text);
    if (id && *id == n.id) continue;
    return make_error(Code::kInvalidArgument,
                      "{} gives {} {}, but config.json says {} ({}): it belongs to another model.", path, n.text,
                      id ? fmt::format("the id {}", *id) : std::string("no id"), n.id, n.key);
  }
  return Status();
}

std::string program_directory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace deepinfer::engine
