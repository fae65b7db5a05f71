#include "checkpoint/store/weight_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>

#include "base/affinity.h"
#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/nan_scan.h"
#include "checkpoint/safetensors.h"

namespace deepinfer::checkpoint {
namespace {

constexpr uint64_t kLoadPiece = 1 << 20;

// Collects the ends of many pieces.
class Gather {
 public:
  explicit Gather(size_t pieces) : left_(pieces) {}
  static void on_piece(void* self, uint64_t, const Status& status) {
    auto* g = static_cast<Gather*>(self);
    const std::lock_guard lock(g->mutex_);
    if (!status.ok() && g->status_.ok()) g->status_ = status;
    if (--g->left_ == 0) g->ended_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return left_ == 0; });
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t left_;
  Status status_;
};

// Adjoining bytes of a file that are read together.
struct Run {
  uint32_t file = 0;
  uint64_t begin = 0, end = 0, at = 0;  // at: of the page of `begin` in memory

  uint64_t first_page() const { return begin / kIoAlignment * kIoAlignment; }
  uint64_t bytes() const { return io_aligned(end) - first_page(); }
};

struct Tensor {
  std::string name;
  Checkpoint::FileRange range;
  numeric::DType dtype = numeric::DType::kU8;
};

std::string expert_name(const ModelConfig& c, int layer, int64_t expert, const char* part) {
  const auto n = static_cast<int>(c.num_hidden_layers);
  return layer < n ? fmt::format("layers.{}.ffn.experts.{}.{}", layer, expert, part)
                   : fmt::format("mtp.{}.ffn.experts.{}.{}", layer - n, expert, part);
}

}  // namespace

Result<std::shared_ptr<WeightStore>> WeightStore::open(const Checkpoint& checkpoint, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  std::shared_ptr<WeightStore> s(new WeightStore);
  DI_ASSIGN_OR_RETURN(s->plan_, plan_store(checkpoint.config(), {.ram_bytes = options.ram_bytes}));
  if (const MemoryRoom room = available_memory(); s->plan_.total_bytes > room.bytes) {
    return make_error(Code::kResourceExhausted,
                      "The weights are to take {} of memory, but only {} are {}. Give less (--ram).",
                      format_bytes(s->plan_.total_bytes), format_bytes(room.bytes), room.limited_by);
  }
  DI_ASSIGN_OR_RETURN(s->reader_, DirectReader::create({.depth = options.depth, .make_queue = options.make_queue}));
  for (const SafetensorsFile& file : checkpoint.files()) {
    DI_ASSIGN_OR_RETURN(const int number, s->reader_->add_file(file.path()));
    s->files_.push_back(number);
  }
  DI_RETURN_IF_ERROR(s->load_resident(checkpoint));
  DI_RETURN_IF_ERROR(s->place_rows(checkpoint));
  DI_RETURN_IF_ERROR(s->place_experts(checkpoint, options));
  s->load_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.warm_up) s->experts_->warm_up();
  return s;
}

bool WeightStore::resident(const TensorSpec& spec) const {
  switch (spec.group) {
    case Group::kVision:
    case Group::kRoutedExperts:
    case Group::kDrafterExperts:
      return false;
    case Group::kEmbedding:
      return plan_.embedding_resident || spec.name != "embed.weight";
    case Group::kEngramTables:
      return false;  // decided a table at a time
    default:
      return true;
  }
}

Status WeightStore::load_resident(const Checkpoint& checkpoint) {
  std::vector<Tensor> tensors;
  size_t table = 0;
  for (const TensorSpec& spec : checkpoint.specs()) {
    const bool in = spec.group == Group::kEngramTables ? plan_.table_resident[table++] : resident(spec);
    if (!in) continue;
    tensors.push_back({spec.name, checkpoint.file_range(spec.name), stored_dtype(spec.format)});
    if (!has_scale(spec.format)) continue;
    const std::string scale = scale_name(spec.name);
    tensors.push_back({scale, checkpoint.file_range(scale), numeric::DType::kF8E8M0});
  }
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.range.file, a.range.offset) < std::pair(b.range.file, b.range.offset);
  });
  std::vector<Run> runs;
  std::vector<size_t> run_of;
  uint64_t bytes = 0;
  for (const Tensor& t : tensors) {
    const bool joins = !runs.empty() && runs.back().file == t.range.file && runs.back().end == t.range.offset;
    if (!joins) {
      if (!runs.empty()) bytes += runs.back().bytes();
      runs.push_back({t.range.file, t.range.offset, t.range.offset, bytes});
    }
    runs.back().end = t.range.offset + t.range.bytes;
    run_of.push_back(runs.size() - 1);
  }
  if (!runs.empty()) bytes += runs.back().bytes();
  DI_ASSIGN_OR_RETURN(memory_, HugeMemory::allocate(bytes));
  interleave(memory_.as<void>(), memory_.bytes());
  std::vector<DirectReader::Piece> pieces;
  for (const Run& run : runs) {
    for (uint64_t done = 0; done < run.bytes(); done += kLoadPiece) {
      const uint64_t n = std::min(kLoadPiece, run.bytes() - done), at = run.first_page() + done;
      pieces.push_back({files_[run.file], at, {memory_.as<std::byte>() + run.at + done, n}, std::min(n, run.end - at)});
    }
  }
  if (pieces.empty()) return {};
  Gather gather(pieces.size());
  reader_->read(DirectReader::Class::kNeeded, pieces, 0, &Gather::on_piece, &gather);
  DI_RETURN_IF_ERROR(gather.wait());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    const Run& run = runs[run_of[i]];
    const std::byte* data = memory_.as<std::byte>() + run.at + (t.range.offset - run.first_page());
    if (reinterpret_cast<uintptr_t>(data) % numeric::dtype_bytes(t.dtype) != 0) {
      copies_.emplace_back(new (std::nothrow) std::byte[t.range.bytes]);
      if (copies_.back() == nullptr)
        return make_error(Code::kResourceExhausted, "tensor \"{}\" lies at an odd offset and needs a copy", t.name);
      std::memcpy(copies_.back().get(), data, t.range.bytes);
      data = copies_.back().get();
    }
    if (has_nan(data, t.range.bytes, t.dtype)) return nan_error(t.name, checkpoint.files()[t.range.file].path());
    resident_.emplace(t.name, data);
  }
  return {};
}

RowReader::Table WeightStore::row_table(const Checkpoint& checkpoint, const TensorSpec& spec) const {
  RowReader::Table t;
  t.rows = spec.shape[0];
  t.cache_bytes = plan_.row_cache_bytes;
  const auto part = [&](const std::string& name, numeric::DType dtype) {
    const Checkpoint::FileRange r = checkpoint.file_range(name);
    return RowReader::Part{files_[r.file], r.offset, r.bytes / static_cast<uint64_t>(t.rows), dtype};
  };
  t.codes = part(spec.name, stored_dtype(spec.format));
  if (has_scale(spec.format)) t.scales = part(scale_name(spec.name), numeric::DType::kF8E8M0);
  return t;
}

Status WeightStore::place_rows(const Checkpoint& checkpoint) {
  std::vector<RowReader::Table> tables;
  const auto take = [&](const TensorSpec& spec) {
    tables.push_back(row_table(checkpoint, spec));
    return static_cast<int>(tables.size()) - 1;
  };
  for (const TensorSpec& spec : checkpoint.specs()) {
    if (spec.group == Group::kEngramTables)
      engram_tables_.push_back(plan_.table_resident[engram_tables_.size()] ? -1 : take(spec));
    if (spec.name == "embed.weight" && !plan_.embedding_resident) embedding_table_ = take(spec);
  }
  DI_ASSIGN_OR_RETURN(rows_, RowReader::create(std::move(tables), reader_.get()));
  return {};
}

Status WeightStore::place_experts(const Checkpoint& checkpoint, const Options& options) {
  const ModelConfig& c = checkpoint.config();
  std::vector<std::vector<ExpertCache::Places>> places;
  for (int layer = 0; layer < c.num_hidden_layers + c.num_nextn_predict_layers; ++layer) {
    const int64_t experts = layer < c.num_hidden_layers ? c.n_routed_experts : c.dspark_n_routed_experts;
    std::vector<ExpertCache::Places>& of_layer = places.emplace_back(static_cast<size_t>(experts));
    for (int64_t e = 0; e < experts; ++e) {
      static constexpr const char* kNames[ExpertAddress::kParts] = {"w1.weight", "w1.scale",  "w3.weight",
                                                                    "w3.scale",  "w2.weight", "w2.scale"};
      for (int i = 0; i < ExpertAddress::kParts; ++i) {
        const Checkpoint::FileRange r = checkpoint.file_range(expert_name(c, layer, e, kNames[i]));
        of_layer[static_cast<size_t>(e)][static_cast<size_t>(i)] = {files_[r.file], r.offset, r.bytes};
      }
    }
  }
  const ExpertCache::Options cache{.slots = plan_.slots, .slot_bytes = plan_.slot_bytes, .expect = options.expect};
  DI_ASSIGN_OR_RETURN(experts_, ExpertCache::create(cache, std::move(places), reader_.get()));
  return {};
}

const std::byte* WeightStore::find(std::string_view name) const {
  const auto it = resident_.find(std::string(name));
  return it == resident_.end() ? nullptr : it->second;
}

Status WeightStore::take_error() {
  Status rows = rows_->take_error(), experts = experts_->take_error();
  return rows.ok() ? experts : rows;
}

StoreStats WeightStore::stats() const {
  StoreStats s;
  s.experts = experts_->stats();
  s.rows = rows_->stats();
  s.bytes_read = reader_->bytes_read();
  s.resident_bytes = plan_.dense_bytes;
  s.load_s = load_s_;
  return s;
}

}  // namespace deepinfer::checkpoint
