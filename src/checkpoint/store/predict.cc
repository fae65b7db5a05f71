#include "checkpoint/store/predict.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>

#include "base/huge_memory.h"
#include "base/io_queue.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensors.h"

namespace deepinfer::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDepth = 64;
constexpr uint64_t kLargeRead = 128 << 10;
constexpr size_t kBuffer = 256 << 20;

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct OpenFiles {
  struct File {
    int fd = -1;
    uint64_t pieces = 0;  // of kLargeRead
  };
  std::vector<File> files;
  uint64_t pieces = 0;
  ~OpenFiles() {
    for (const File& f : files) ::close(f.fd);
  }
};

Status open_files(const Checkpoint& checkpoint, OpenFiles* out) {
  for (const SafetensorsFile& f : checkpoint.files()) {
    int fd = ::open(f.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) fd = ::open(f.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return make_error(Code::kIo, "cannot open {}: {}", f.path(), std::strerror(errno));
    out->files.push_back({fd, f.bytes().size() / kLargeRead});
    out->pieces += out->files.back().pieces;
  }
  return {};
}

// Random reads of `bytes` at multiples of kLargeRead, kDepth at once, for some seconds.
Result<double> reads_per_s(const OpenFiles& files, uint64_t bytes, double seconds) {
  if (files.pieces == 0)
    return make_error(Code::kFailedPrecondition, "the checkpoint is too small to measure the disk by");
  DI_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> io, IoQueue::create({.depth = kDepth}));
  // Huge pages, as the store's: a read into scattered pages takes many descriptors of the disk's queue.
  DI_ASSIGN_OR_RETURN(const HugeMemory memory, HugeMemory::allocate(kDepth * bytes));
  std::mt19937_64 random(bytes);
  const auto start = [&](uint64_t slot) {
    uint64_t piece = random() % files.pieces;
    size_t file = 0;
    while (piece >= files.files[file].pieces) piece -= files.files[file++].pieces;
    return io->read(files.files[file].fd, {memory.as<std::byte>() + slot * bytes, bytes}, piece * kLargeRead, slot);
  };
  const Clock::time_point begin = Clock::now();
  for (uint64_t s = 0; s < kDepth; ++s) start(s);
  std::array<IoQueue::Done, kDepth> done;
  uint64_t count = 0;
  double elapsed = 0;
  do {
    const size_t n = io->wait(done);
    if (n == 0) return make_error(Code::kIo, "the disk gives no answers");
    for (size_t i = 0; i < n; ++i) {
      if (done[i].error != 0)
        return make_error(Code::kIo, "cannot read the checkpoint: {}", std::strerror(done[i].error));
      start(done[i].tag);
    }
    count += n;
    elapsed = since(begin);
  } while (elapsed < seconds);
  return static_cast<double>(count) / elapsed;
}

}  // namespace

Result<double> measure_memory(int threads) {
  DI_ASSIGN_OR_RETURN(const HugeMemory memory, HugeMemory::allocate(kBuffer));
  ThreadPool pool(threads);
  auto* words = memory.as<uint64_t>();
  constexpr int64_t kWords = kBuffer / sizeof(uint64_t);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Clock::time_point begin = Clock::now();
    pool.parallel_for(kWords, [&](int64_t from, int64_t to) {
      uint64_t sum[4] = {};
      if (turn == 0) std::fill(words + from, words + to, uint64_t{1});
      for (int64_t i = from; i + 4 <= to; i += 4) {
        for (int j = 0; j < 4; ++j) sum[j] += words[i + j];
      }
      sink += sum[0] + sum[1] + sum[2] + sum[3];
    });
    if (turn > 0) best = std::max(best, kBuffer / since(begin));
  }
  return best;
}

Result<StoreRates> measure_disk(const Checkpoint& checkpoint, double seconds) {
  StoreRates rates;
  OpenFiles files;
  DI_RETURN_IF_ERROR(open_files(checkpoint, &files));
  DI_ASSIGN_OR_RETURN(const double large, reads_per_s(files, kLargeRead, 0.7 * seconds));
  DI_ASSIGN_OR_RETURN(rates.disk_rows_per_s, reads_per_s(files, kIoAlignment, 0.3 * seconds));
  rates.disk_bytes_per_s = large * kLargeRead;
  return rates;
}

DecodePrediction predict_decode(const ModelConfig& c, const StorePlan& plan, const StoreRates& rates) {
  double every_token = 0;
  for (const TensorSpec& spec : expected_tensors(c)) {
    const bool read = spec.group == Group::kAttention || spec.group == Group::kSharedExperts ||
                      spec.group == Group::kHead || spec.group == Group::kEngramDense;
    if (read) every_token += static_cast<double>(stored_bytes(spec));
  }
  const double experts =
      static_cast<double>(c.num_hidden_layers * c.num_experts_per_tok) * static_cast<double>(plan.expert_bytes);
  DecodePrediction p;
  p.hit_rate = static_cast<double>(plan.slots) / static_cast<double>(plan.experts);
  p.memory_bytes = every_token + experts;
  p.expert_bytes = experts * (1 - p.hit_rate);
  for (const bool resident : plan.table_resident)
    p.row_reads += resident ? 0 : 2.0 * static_cast<double>(c.engram_columns());
  p.row_reads += plan.embedding_resident ? 0 : 1;
  p.memory_s = p.memory_bytes / rates.memory_bytes_per_s;
  p.disk_s = p.expert_bytes / rates.disk_bytes_per_s + p.row_reads / rates.disk_rows_per_s;
  const double seconds = p.memory_s + p.disk_s - kOverlap * std::min(p.memory_s, p.disk_s);
  p.tokens_per_s = 1 / seconds;
  return p;
}

}  // namespace deepinfer::checkpoint
