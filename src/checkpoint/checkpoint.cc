#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/engram_classes.h"
#include "checkpoint/name_index.h"
#include "checkpoint/nan_scan.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace deepinfer::checkpoint {
namespace {

using numeric::DType;
using numeric::TensorView;

constexpr uint64_t kLargeTable = 256 << 20;
constexpr size_t kNamed = 5;  // problems that a message spells out

// Collects problems of one kind: the first few by name, the others by number.
struct Problems {
  std::vector<std::string> first;
  size_t count = 0;
  void add(std::string text) {
    if (count++ < kNamed) first.push_back(std::move(text));
  }
  std::string text() const {
    return fmt::format("{}{}", fmt::join(first, "; "),
                       count > kNamed ? fmt::format("; and {} more", count - kNamed) : "");
  }
};

std::string describe(DType dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", numeric::dtype_name(dtype), fmt::join(shape, ", "));
}

bool is_norm_of_mix(std::string_view name) {
  return name.find("hc_attn_norm") != std::string_view::npos || name.find("hc_ffn_norm") != std::string_view::npos;
}

}  // namespace

struct Checkpoint::Impl {
  std::string directory;
  ModelConfig config;
  GenerationConfig generation;
  std::vector<SafetensorsFile> files;
  std::vector<const SafetensorsFile::Tensor*> tensors;  // as chosen by the index
  std::vector<uint32_t> file_of;                         // of each
  std::vector<TensorSpec> specs;
  std::vector<int32_t> classes;
  std::vector<std::string> warnings;
  NameIndex index{0};
  bool scales_checked = false;

  Status open_files();
  Status index_tensors(const ShardIndex& shards);
  void check_one(const std::string& name, DType dtype, const std::vector<int64_t>& shape, Problems* missing,
                 Problems* wrong) const;
  Status check_complete();
  Status report_extra();
  uint64_t count_nan(std::string* first) const;
  void report_scales();
  void advise_tables() const;
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const std::string& Checkpoint::directory() const { return impl_->directory; }
const ModelConfig& Checkpoint::config() const { return impl_->config; }
const GenerationConfig& Checkpoint::generation() const { return impl_->generation; }
const std::vector<TensorSpec>& Checkpoint::specs() const { return impl_->specs; }
std::span<const int32_t> Checkpoint::engram_token_classes() const { return impl_->classes; }
const std::vector<std::string>& Checkpoint::warnings() const { return impl_->warnings; }
const std::vector<SafetensorsFile>& Checkpoint::files() const { return impl_->files; }

const TensorView* Checkpoint::find(std::string_view name) const {
  const uint32_t* at = impl_->index.find(name);
  return at == nullptr ? nullptr : &impl_->tensors[*at]->view;
}

const TensorView& Checkpoint::tensor(std::string_view name) const {
  const TensorView* view = find(name);
  if (view == nullptr) {
    fmt::print(stderr, "deepinfer: defect: tensor \"{}\" was asked for but is not part of this model\n", name);
    std::abort();
  }
  return *view;
}

Checkpoint::FileRange Checkpoint::file_range(std::string_view name) const {
  const uint64_t bytes = tensor(name).bytes();
  const uint32_t at = *impl_->index.find(name), file = impl_->file_of[at];
  return {file, impl_->files[file].header_bytes() + impl_->tensors[at]->offset, bytes};
}

Status Checkpoint::Impl::open_files() {
  DI_ASSIGN_OR_RETURN(const ShardIndex shards, read_shard_index(directory));
  for (const std::string& file : shards.files) {
    DI_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(directory + "/" + file));
    for (const std::string& name : opened.copied()) {
      warnings.push_back(fmt::format("{}: tensor \"{}\" lies at an odd offset and was copied", file, name));
    }
    files.push_back(std::move(opened));
  }
  return index_tensors(shards);
}

Status Checkpoint::Impl::index_tensors(const ShardIndex& shards) {
  // Where the index file puts each tensor.
  NameIndex home(shards.tensors.size());
  for (uint32_t i = 0; i < shards.tensors.size(); ++i) {
    const std::string_view name = canonical_name(shards.tensors[i].first);
    if (home.insert(name, i) != i)
      return make_error(Code::kInvalidArgument, "{}: the index names tensor \"{}\" twice (with and without \"model.\")",
                        directory, name);
  }
  size_t total = 0;
  for (const SafetensorsFile& file : files) total += file.tensors().size();
  index = NameIndex(total);
  tensors.reserve(total);
  Problems strays;
  for (uint32_t f = 0; f < files.size(); ++f) {
    NameIndex in_file(files[f].tensors().size());
    uint32_t number = 0;
    for (const SafetensorsFile::Tensor& t : files[f].tensors()) {
      const std::string_view name = canonical_name(t.name);
      if (in_file.insert(name, number) != number) {
        return make_error(Code::kInvalidArgument, "{}: holds tensor \"{}\" twice (with and without \"model.\")",
                          files[f].path(), name);
      }
      ++number;
      const uint32_t* at = shards.has_index ? home.find(name) : nullptr;
      if (shards.has_index && (at == nullptr || shards.tensors[*at].second != f)) {
        strays.add(fmt::format("\"{}\" in {}", name, shards.files[f]));
        continue;
      }
      index.insert(name, static_cast<uint32_t>(tensors.size()));
      tensors.push_back(&t);
      file_of.push_back(f);
    }
  }
  Problems missing;
  for (const auto& [name, file] : shards.tensors) {
    if (index.find(canonical_name(name)) == nullptr)
      missing.add(fmt::format("\"{}\" is not in {}", canonical_name(name), shards.files[file]));
  }
  if (missing.count > 0) {
    return make_error(Code::kFailedPrecondition, "{}: {} tensors are not in the shards that the index names: {}",
                      directory, missing.count, missing.text());
  }
  if (strays.count > 0)
    warnings.push_back(
        fmt::format("{} tensors that the index does not name there are ignored: {}", strays.count, strays.text()));
  return {};
}

void Checkpoint::Impl::check_one(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                                 Problems* missing, Problems* wrong) const {
  const uint32_t* at = index.find(name);
  if (at == nullptr) {
    missing->add(name);
    return;
  }
  const TensorView& view = tensors[*at]->view;
  if (view.dtype != dtype || view.shape != shape) {
    wrong->add(fmt::format("{} is {} instead of {}", name, describe(view.dtype, view.shape), describe(dtype, shape)));
  }
}

Status Checkpoint::Impl::check_complete() {
  specs = expected_tensors(config);
  Problems missing, wrong;
  size_t expected = 0;
  for (const TensorSpec& spec : specs) {
    check_one(spec.name, stored_dtype(spec.format), stored_shape(spec), &missing, &wrong);
    ++expected;
    if (!has_scale(spec.format)) continue;
    check_one(scale_name(spec.name), DType::kF8E8M0, scale_shape(spec), &missing, &wrong);
    ++expected;
  }
  if (missing.count > 0) {
    return make_error(Code::kFailedPrecondition, "{}: {} of the {} tensors that config.json calls for are missing: {}",
                      directory, missing.count, expected, missing.text());
  }
  if (wrong.count > 0) {
    return make_error(Code::kInvalidArgument,
                      "{}: {} tensors have another type or shape than config.json calls for: {}", directory,
                      wrong.count, wrong.text());
  }
  return report_extra();
}

Status Checkpoint::Impl::report_extra() {
  NameIndex known(2 * specs.size());
  std::vector<std::string> scales;
  scales.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    known.insert(spec.name, 0);
    if (has_scale(spec.format)) {
      scales.push_back(scale_name(spec.name));
      known.insert(scales.back(), 0);
    }
  }
  Problems extra;
  for (const SafetensorsFile::Tensor* t : tensors) {
    const std::string_view name = canonical_name(t->name);
    if (known.find(name) != nullptr) continue;
    if (is_norm_of_mix(name)) {
      return make_error(
          Code::kUnsupported,
          "{}: tensor \"{}\" shows a model with separate hyper-connection norms, which is not DeepSeek-V4.1-Flash",
          directory, name);
    }
    if (!config.vision && (name.starts_with("vision.") || name.starts_with("aligner."))) {
      return make_error(Code::kInvalidArgument,
                        "{}: tensor \"{}\" belongs to a vision tower, but config.json has no vision_config", directory,
                        name);
    }
    // Copies of the shared embedding and head are known to exist in some checkpoints.
    if (name.starts_with("mtp.") && (name.ends_with(".embed.weight") || name.ends_with(".head.weight"))) continue;
    extra.add(std::string(name));
  }
  if (extra.count > 0)
    warnings.push_back(
        fmt::format("{} tensors that config.json does not call for are ignored: {}", extra.count, extra.text()));
  return {};
}

void Checkpoint::Impl::report_scales() {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    const std::vector<int64_t> shape = scale_shape(spec);
    if (!shape.empty()) bytes += static_cast<uint64_t>(shape[0] * shape[1]);
  }
  if (bytes > kMaxScaleScan) return;
  scales_checked = true;
  std::string first;
  const uint64_t nan = count_nan(&first);
  if (nan > 0)
    warnings.push_back(
        fmt::format("{} scales are NaN (byte 255), first in \"{}\": the weights are damaged", nan, first));
}

bool Checkpoint::scales_checked() const { return impl_->scales_checked; }

// A look-up reads a few hundred bytes of a table; with readahead each would fetch megabytes.
void Checkpoint::Impl::advise_tables() const {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const TensorSpec& spec : specs) {
    if (spec.format != Format::kFp8Rows) continue;
    for (const std::string& name : {spec.name, scale_name(spec.name)}) {
      const TensorView& view = tensors[*index.find(name)]->view;
      if (view.bytes() < kLargeTable) continue;
      const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data) / page * page,
                      end = reinterpret_cast<uintptr_t>(view.data) + view.bytes();
      (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
    }
  }
}

Status Checkpoint::check_weights(uint64_t bytes_max) const {
  uint64_t total = 0;
  for (const TensorSpec& spec : impl_->specs) total += stored_bytes(spec);
  if (total > bytes_max) return {};
  const auto check = [this](const std::string& name) -> Status {
    const TensorView& t = tensor(name);
    if (!has_nan(t.data, t.bytes(), t.dtype)) return {};
    return nan_error(name, impl_->files[impl_->file_of[*impl_->index.find(name)]].path());
  };
  for (const TensorSpec& spec : impl_->specs) {
    DI_RETURN_IF_ERROR(check(spec.name));
    if (has_scale(spec.format)) DI_RETURN_IF_ERROR(check(scale_name(spec.name)));
  }
  return {};
}

uint64_t Checkpoint::count_nan_scales(std::string* first) const { return impl_->count_nan(first); }

uint64_t Checkpoint::Impl::count_nan(std::string* first) const {
  uint64_t total = 0;
  for (const TensorSpec& spec : specs) {
    if (!has_scale(spec.format)) continue;
    const TensorView& scale = tensors[*index.find(scale_name(spec.name))]->view;
    const uint8_t* bytes = scale.as<uint8_t>();
    const uint64_t n = static_cast<uint64_t>(std::count(bytes, bytes + scale.bytes(), uint8_t{255}));
    if (n > 0 && total == 0 && first != nullptr) *first = scale_name(spec.name);
    total += n;
  }
  return total;
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  DI_RETURN_IF_ERROR(check_model_directory(directory));
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  DI_ASSIGN_OR_RETURN(impl->config, ModelConfig::load(directory));
  impl->warnings = impl->config.warnings;
  DI_ASSIGN_OR_RETURN(impl->generation, GenerationConfig::load(directory));
  DI_RETURN_IF_ERROR(impl->open_files());
  DI_RETURN_IF_ERROR(impl->check_complete());
  if (!impl->config.engram.empty()) {
    DI_ASSIGN_OR_RETURN(impl->classes, load_engram_classes(directory, impl->config));
  }
  Checkpoint checkpoint(std::move(impl));
  checkpoint.impl_->report_scales();
  checkpoint.impl_->advise_tables();
  return checkpoint;
}

Status check_model_directory(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return make_error(Code::kNotFound, "there is no folder {}; give the path of a checkpoint folder",
                      path.empty() ? "\"\"" : path);
  }
  if (!fs::is_directory(status))
    return make_error(Code::kInvalidArgument, "{} is not a folder; give the folder that holds config.json", path);
  if (!fs::exists(path + "/config.json", error)) {
    return make_error(Code::kNotFound, "{} holds no config.json; it is not a checkpoint folder", path);
  }
  return {};
}

}  // namespace deepinfer::checkpoint
