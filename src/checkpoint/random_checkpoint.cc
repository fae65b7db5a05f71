#include "checkpoint/random_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/random_tensor.h"
#include "checkpoint/tensors.h"

namespace deepinfer::checkpoint {
namespace {

using numeric::DType;

constexpr uint64_t kSmallShard = 15'000'000;
constexpr uint64_t kLargeShard = 5'000'000'000;
constexpr uint64_t kLargeCheckpoint = 1'000'000'000;
constexpr int64_t kPieceElements = 1 << 20;

// One stored tensor of a shard: where it comes from and where it goes.
struct Stored {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the file
};

struct Unit {
  const TensorSpec* spec;
  uint32_t shard = 0;
  size_t weight = 0, scale = 0;  // into Shard::tensors; scale == weight without one
};

struct Shard {
  std::string file;
  std::vector<Stored> tensors;
  std::string header;
  uint64_t bytes = 0;  // of the file
};

struct Plan {
  std::vector<TensorSpec> specs;
  std::vector<Unit> units;  // in definition order
  std::vector<Shard> shards;
  uint64_t payload = 0;
  uint64_t file_bytes = 0;
};

Stored stored(std::string name, DType dtype, std::vector<int64_t> shape) {
  Stored s{std::move(name), dtype, std::move(shape), numeric::dtype_bytes(dtype), 0};
  for (int64_t d : s.shape) s.bytes *= static_cast<uint64_t>(d);
  return s;
}

int order_in_file(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0;
    case DType::kBF16: return 1;
    case DType::kF8E8M0: return 2;
    case DType::kF8E4M3: return 3;
    default: return 4;
  }
}

// Offsets and header text, in file order.
void lay_out(Shard* shard) {
  std::vector<Stored*> order;
  for (Stored& t : shard->tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const Stored* a, const Stored* b) {
    return std::pair(order_in_file(a->dtype), std::string_view(a->name)) <
           std::pair(order_in_file(b->dtype), std::string_view(b->name));
  });
  std::string header = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (Stored* t : order) {
    t->offset = at;
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[)", t->name, numeric::dtype_name(t->dtype));
    for (size_t i = 0; i < t->shape.size(); ++i) header += fmt::format("{}{}", i > 0 ? "," : "", t->shape[i]);
    header += fmt::format(R"(],"data_offsets":[{},{}]}})", at, at + t->bytes);
    at += t->bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  shard->header.assign(8, '\0');
  std::memcpy(shard->header.data(), &length, 8);
  shard->header += header;
  for (Stored& t : shard->tensors) t.offset += shard->header.size();
  shard->bytes = shard->header.size() + at;
}

Plan make_plan(const ModelConfig& config, uint64_t shard_bytes) {
  Plan plan;
  plan.specs = expected_tensors(config);
  for (const TensorSpec& spec : plan.specs) plan.payload += stored_bytes(spec);
  if (shard_bytes == 0) shard_bytes = plan.payload > kLargeCheckpoint ? kLargeShard : kSmallShard;
  uint64_t size = 0;
  for (const TensorSpec& spec : plan.specs) {
    const uint64_t bytes = stored_bytes(spec);
    if (plan.shards.empty() || (size > 0 && size + bytes > shard_bytes)) {
      plan.shards.emplace_back();
      size = 0;
    }
    size += bytes;
    Shard& shard = plan.shards.back();
    Unit unit{&spec, static_cast<uint32_t>(plan.shards.size() - 1), shard.tensors.size(), shard.tensors.size()};
    shard.tensors.push_back(stored(spec.name, stored_dtype(spec.format), stored_shape(spec)));
    if (has_scale(spec.format)) {
      unit.scale = shard.tensors.size();
      shard.tensors.push_back(stored(scale_name(spec.name), DType::kF8E8M0, scale_shape(spec)));
    }
    plan.units.push_back(unit);
  }
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, plan.shards.size());
    lay_out(&plan.shards[i]);
    plan.file_bytes += plan.shards[i].bytes;
  }
  return plan;
}

std::string index_text(const Plan& plan) {
  std::string text = fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{)", plan.payload);
  bool first = true;
  for (const Unit& unit : plan.units) {
    const Shard& shard = plan.shards[unit.shard];
    for (size_t t = unit.weight; t <= unit.scale; ++t) {
      text += fmt::format(R"({}"{}":"{}")", first ? "" : ",", shard.tensors[t].name, shard.file);
      first = false;
    }
  }
  return text + "}}\n";
}

std::string classes_text(const ModelConfig& config) {
  std::string text = "{\"classes\":[";
  for (int64_t i = 0; i < config.vocab_size; ++i)
    text += fmt::format("{}{}", i > 0 ? "," : "", i % config.engram_compressed_vocab_size);
  return text + "]}\n";
}

Status io_error(std::string_view what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return make_error(full ? Code::kResourceExhausted : Code::kIo, "cannot {} {}: {}", what, path, std::strerror(error));
}

class File {
 public:
  static Result<File> create(const std::string& path, uint64_t bytes) {
    File f;
    f.path_ = path;
    f.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f.fd_ < 0) return io_error("create", path, errno);
    if (::ftruncate(f.fd_, static_cast<off_t>(bytes)) != 0) return io_error("write", path, errno);
    return f;
  }
  File() = default;
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  Status write(const void* data, uint64_t bytes, uint64_t at) const {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return io_error("write", path_, errno);
      p += n;
      at += static_cast<uint64_t>(n);
      bytes -= static_cast<uint64_t>(n);
    }
    return {};
  }

 private:
  int fd_ = -1;
  std::string path_;
};

struct Piece {
  uint32_t unit;
  int64_t row_begin, row_end;
};

class ShardWriter {
 public:
  ShardWriter(const Plan& plan, const std::string& directory, const RandomOptions& options, ThreadPool* pool)
      : plan_(plan), directory_(directory), options_(options), pool_(pool) {}

  // Units first .. last - 1 are those of one shard.
  Status write(uint32_t shard_number, size_t first, size_t last) {
    const Shard& shard = plan_.shards[shard_number];
    DI_ASSIGN_OR_RETURN(const File file, File::create(directory_ + "/" + shard.file, shard.bytes));
    DI_RETURN_IF_ERROR(file.write(shard.header.data(), shard.header.size(), 0));
    if (options_.zeros) return {};
    const std::vector<Piece> pieces = cut(first, last);
    std::mutex mutex;
    Status failure;
    std::atomic<bool> stop{false};
    pool_->parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && !stop.load(std::memory_order_relaxed); ++i) {
        uint64_t written = 0;
        const Status s = write_piece(shard, file, pieces[static_cast<size_t>(i)], &written);
        const std::lock_guard lock(mutex);
        if (!s.ok()) {
          failure = s;
          stop = true;
          return;
        }
        done_ += written;
        if (options_.progress) options_.progress(done_, plan_.payload);
      }
    });
    return failure;
  }

 private:
  std::vector<Piece> cut(size_t first, size_t last) const {
    std::vector<Piece> pieces;
    for (size_t u = first; u < last; ++u) {
      const RandomTensor t(options_.seed, *plan_.units[u].spec);
      const int64_t bands = std::max<int64_t>(1, kPieceElements / (t.columns() * RandomTensor::kBandRows));
      const int64_t step = bands * RandomTensor::kBandRows;
      for (int64_t r = 0; r < t.rows(); r += step)
        pieces.push_back({static_cast<uint32_t>(u), r, std::min(t.rows(), r + step)});
    }
    return pieces;
  }

  Status write_piece(const Shard& shard, const File& file, const Piece& piece, uint64_t* written) const {
    const Unit& unit = plan_.units[piece.unit];
    const RandomTensor t(options_.seed, *unit.spec);
    thread_local std::vector<std::byte> data, scales;
    data.resize(static_cast<uint64_t>(piece.row_end - piece.row_begin) * t.row_bytes());
    const uint64_t scale_begin = t.scale_bytes() > 0 ? t.scale_offset(piece.row_begin) : 0;
    const uint64_t scale_end =
        t.scale_bytes() > 0 ? (piece.row_end == t.rows() ? t.scale_bytes() : t.scale_offset(piece.row_end)) : 0;
    scales.resize(scale_end - scale_begin);
    t.fill(piece.row_begin, piece.row_end, data.data(), scales.empty() ? nullptr : scales.data());
    *written = data.size() + scales.size();
    DI_RETURN_IF_ERROR(
        file.write(data.data(), data.size(),
                   shard.tensors[unit.weight].offset + static_cast<uint64_t>(piece.row_begin) * t.row_bytes()));
    if (scales.empty()) return {};
    return file.write(scales.data(), scales.size(), shard.tensors[unit.scale].offset + scale_begin);
  }

  const Plan& plan_;
  const std::string& directory_;
  const RandomOptions& options_;
  ThreadPool* pool_;
  uint64_t done_ = 0;
};

Status check_room(const std::string& directory, uint64_t needed) {
  struct statvfs fs {};
  if (::statvfs(directory.c_str(), &fs) != 0) return io_error("look at", directory, errno);
  const uint64_t free_bytes = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  if (free_bytes >= needed) return {};
  return make_error(Code::kResourceExhausted, "{} has {:.1f} GB of free disk space; this checkpoint needs {:.1f} GB",
                    directory, static_cast<double>(free_bytes) / 1e9, static_cast<double>(needed) / 1e9);
}

}  // namespace

uint64_t random_checkpoint_bytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : expected_tensors(config)) bytes += stored_bytes(spec);
  return bytes;
}

Status write_random_checkpoint(const ModelConfig& config, const std::string& directory, const RandomOptions& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return make_error(Code::kIo, "cannot create the folder {}: {}", directory, error.message());
  if (fs::exists(directory + "/config.json", error)) {
    return make_error(Code::kFailedPrecondition, "{} already holds a checkpoint; give a new folder", directory);
  }
  const Plan plan = make_plan(config, options.shard_bytes);
  const std::string index = index_text(plan), classes = config.engram.empty() ? "" : classes_text(config);
  const std::string config_json = options.config_json.empty() ? config.to_json() : options.config_json;
  DI_RETURN_IF_ERROR(check_room(directory, (options.zeros ? 0 : plan.file_bytes) + index.size() + classes.size() +
                                               config_json.size() + (1 << 20)));

  ThreadPool pool(options.threads > 0 ? options.threads : available_cores());
  ShardWriter writer(plan, directory, options, &pool);
  for (size_t first = 0; first < plan.units.size();) {
    const uint32_t shard = plan.units[first].shard;
    size_t last = first;
    while (last < plan.units.size() && plan.units[last].shard == shard) ++last;
    DI_RETURN_IF_ERROR(writer.write(shard, first, last));
    first = last;
  }
  DI_RETURN_IF_ERROR(write_file_atomically(directory + "/model.safetensors.index.json", index));
  if (!classes.empty()) DI_RETURN_IF_ERROR(write_file_atomically(directory + "/engram_token_classes.json", classes));
  return write_file_atomically(directory + "/config.json", config_json);
}

}  // namespace deepinfer::checkpoint
