// A checkpoint folder: config.json, safetensors shards with their index, Engram classes; opened and checked.
//
//   Result<Checkpoint> c = Checkpoint::open("models/tiny");
//   // a sentence that says what is wrong with the folder
//   if (!c.ok()) return c.status();
//   const numeric::TensorView& w = c->tensor("layers.0.attn.wkv.weight");
//   std::string id = c->digest();
//
// open() maps every shard, reads all headers and checks completeness (spec/model.md 13.5, 13.6): every tensor that the
// config calls for is there with exactly its stored type and shape, every shard of the index exists and holds its
// tensors. The first few missing or wrong tensors are named and the rest counted. A "model." prefix is accepted in
// index and shards; both spellings of one tensor are an error. Tensors that the config does not call for are ignored
// with a warning, except separate hc_*_norm tensors (another kind of model: refused) and vision tensors without a
// vision_config (refused). No weight is read except: tensors at odd addresses (copied), and scales up to kMaxScaleScan
// bytes (bytes 255, NaN, are reported). Engram tables above 256 MiB are mapped without readahead. Codes: kNotFound
// (folder or config.json), kFailedPrecondition (shard or tensor missing), kDataLoss (cut file), kInvalidArgument,
// kUnsupported, kResourceExhausted. Limits: index 256 MiB, 10,000 shards. All members are const and thread-safe after
// open().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/tensors.h"
#include "numeric/dtype.h"

namespace deepinfer::checkpoint {

class SafetensorsFile;

class Checkpoint {
 public:
  static constexpr uint64_t kMaxScaleScan = 64 << 20;

  static Result<Checkpoint> open(const std::string& directory);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::string& directory() const;
  const ModelConfig& config() const;
  const GenerationConfig& generation() const;

  // The stored tensor, by its name without "model." prefix; nullptr if the checkpoint has none. Scales are tensors of
  // their own.
  const numeric::TensorView* find(std::string_view name) const;
  // The same for a name that open() has checked (any of specs() and their scales); ends the program if it is absent.
  const numeric::TensorView& tensor(std::string_view name) const;
  // Where the bytes of such a tensor lie.
  struct FileRange {
    uint32_t file = 0;  // of files()
    uint64_t offset = 0, bytes = 0;
  };
  FileRange file_range(std::string_view name) const;
  // What the config calls for, in definition order.
  const std::vector<TensorSpec>& specs() const;

  // Engram class of each token id, config().vocab_size entries; empty for a model without Engram layers.
  std::span<const int32_t> engram_token_classes() const;

  const std::vector<std::string>& warnings() const;
  const std::vector<SafetensorsFile>& files() const;

  // Identity of the weights and of everything in config.json that changes results: 64 hexadecimal digits.
  // Hashes the config, the classes, all headers and kSamples pieces of each file: milliseconds even at full size.
  std::string digest() const;

  struct FullDigest {
    std::string digest;                                    // over config, classes and the sums below
    std::vector<std::pair<std::string, std::string>> files;  // name, sha256 of the whole file
  };
  // Reads every byte, on `threads` threads.
  FullDigest full_digest(int threads) const;

  // kDataLoss with the first tensor that holds NaN, values or scales. Reads all weights; does nothing where they have
  // more than bytes_max.
  Status check_weights(uint64_t bytes_max) const;
  // Scale bytes 255 (NaN) in all scale tensors; reads them all. `first` receives the name of the first such tensor.
  uint64_t count_nan_scales(std::string* first) const;
  // Whether open() has done so (up to kMaxScaleScan bytes) and told in warnings().
  bool scales_checked() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The folder that holds config.json: `path` itself, or a message that says what `path` is instead.
Status check_model_directory(const std::string& path);

}  // namespace deepinfer::checkpoint
