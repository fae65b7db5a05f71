// What opening a model for an engine takes beside its checkpoint: a backend by name, and a tokenizer that fits.
//
//   DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, make_ops("plain", 0, ""));
//   DI_RETURN_IF_ERROR(check_tokenizer(tokenizer, checkpoint.config(), path));
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace deepinfer::checkpoint {
struct ModelConfig;
}
namespace deepinfer::ops {
class Ops;
}
namespace deepinfer::text {
class Tokenizer;
}

namespace deepinfer::engine {

// "fast", "fast-avx2", "plain", "reference" or "cuda" (its shared object lies in `library_dir`). threads 0: all cores.
Result<std::unique_ptr<ops::Ops>> make_ops(const std::string& backend, int threads, const std::string& library_dir);

// kInvalidArgument if tokenizer.json (at `path`, for the message) is another model's.
Status check_tokenizer(const text::Tokenizer& tokenizer, const checkpoint::ModelConfig& config,
                       const std::string& path);

// The folder of the running program, where the CUDA backend's shared object lies.
std::string program_directory();

}  // namespace deepinfer::engine
