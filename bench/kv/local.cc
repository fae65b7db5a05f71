// Host memory beside memcpy, the SSD beside its own random reads and writes, and lookups of a long prefix.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "base/io_buffers.h"
#include "base/io_queue.h"
#include "bench/kv/cases.h"
#include "kv/block_pool.h"
#include "kv/host_tier.h"
#include "kv/prefix_index.h"
#include "kv/record_bytes.h"
#include "kv/ssd_tier.h"
#include "kv/tier_stack.h"

namespace bench::kv {
namespace {

using deepinfer::IoBuffer;
using deepinfer::IoQueue;

constexpr int kPrefix = 1000;
constexpr size_t kDeviceBytes = 128 << 10;

std::vector<uint64_t> shuffled(int n, unsigned seed) {
  std::vector<uint64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(seed));
  return order;
}

// ---- host memory ----------------------------------------------------------------------------------------------------

// CPU seconds of copies between a large memory, in random order, and a few buffers.
struct Copies {
  Copies(int blocks, size_t bytes)
      : large(static_cast<size_t>(blocks), RecordBytes(bytes, std::byte{1})), small(64, large[0]) {}
  double seconds(const std::vector<uint64_t>& order, bool out) {
    const double begin = thread_cpu_seconds();
    for (size_t i = 0; i < order.size(); ++i) {
      RecordBytes &a = large[order[i]], &b = small[i % small.size()];
      std::memcpy(out ? b.data() : a.data(), out ? a.data() : b.data(), a.size());
    }
    return thread_cpu_seconds() - begin;
  }
  std::vector<RecordBytes> large, small;
};

// As an engine asks: several at once.
double tier_seconds(Tier& tier, Copies& buffers, const std::vector<uint64_t>& order, bool out) {
  constexpr size_t kAtOnce = 32;
  std::array<Tier::Completion, kAtOnce> done;
  const double begin = thread_cpu_seconds();
  for (size_t first = 0; first < order.size(); first += kAtOnce) {
    const size_t n = std::min(kAtOnce, order.size() - first);
    for (size_t i = first; i < first + n; ++i) {
      RecordBytes& b = buffers.small[i % buffers.small.size()];
      out ? tier.get(key_of(order[i]), b) : tier.put(key_of(order[i]), b, {.space = 1});
    }
    if (tier.poll(done) != n) must(deepinfer::Status(deepinfer::Code::kInternal, "an answer is missing"));
    for (size_t i = 0; i < n; ++i) must(done[i].status);
  }
  return thread_cpu_seconds() - begin;
}

void host_copies(bool quick) {
  const int blocks = quick ? 512 : 4096;
  Records records;
  const size_t bytes = records.bytes();
  Copies copies(blocks, bytes);
  for (auto& b : copies.small) std::ranges::copy(records.sealed(0), b.begin());
  const auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = static_cast<uint64_t>(blocks) * bytes});
  TierStack stack({host});
  std::array<Tier::Completion, 4> done;
  for (int i = 0; i < blocks; ++i) {
    host->put(key_of(static_cast<uint64_t>(i)), records.sealed(static_cast<uint64_t>(i)), {.space = 1});
    host->poll(done);
  }
  Turns read, checked, written;
  const double all = static_cast<double>(bytes) * blocks;
  for (unsigned turn = 0; turn <= (quick ? 1 : 7); ++turn) {
    const std::vector<uint64_t> order = shuffled(blocks, turn);
    if (turn > 0) {
      read.value(all / tier_seconds(*host, copies, order, true));
      checked.value(all / tier_seconds(stack, copies, order, true));
      written.value(all / tier_seconds(*host, copies, order, false));
      for (int i = 0; i < blocks; ++i) {  // whole records again
        host->put(key_of(static_cast<uint64_t>(i)), records.sealed(static_cast<uint64_t>(i)), {.space = 1});
        host->poll(done);
      }
    }
    const double copied_out = all / copies.seconds(order, true), copied_in = all / copies.seconds(order, false);
    read.ceiling(copied_out);
    checked.ceiling(copied_out);
    written.ceiling(copied_in);
  }
  const auto line = [](const char* name) {
    return Line{.bench = "kv", .name = name, .unit = "GB/s", .ceiling_is = "memcpy of the same blocks", .goal = 0.7};
  };
  read.report(line("host_get"), 1e9);
  checked.report(line("host_get_verified"), 1e9);
  written.report(line("host_put"), 1e9);
}

void lookups(bool quick) {
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < kPrefix; ++i) keys.push_back(key_of(i));
  deepinfer::kv::BlockPool pool(kPrefix + 1);
  PrefixIndex index(pool, {});
  std::vector<int32_t> tokens(kPrefix * kTokens, 5);
  int node = kNoNode;
  for (int i = 0; i < kPrefix; ++i) {
    const int block = pool.take();
    node = index.insert(node, keys[static_cast<size_t>(i)], std::span<const int32_t>(tokens).first(kTokens), block, 0,
                        1e9);
    pool.release(block);
  }
  std::vector<double> times;
  for (int turn = 0; turn < (quick ? 5 : 101); ++turn) {
    const double begin = thread_cpu_seconds();
    if (index.match(keys, tokens, 1, 1e9).blocks != kPrefix) std::exit(1);
    times.push_back((thread_cpu_seconds() - begin) * 1e3);
  }
  report({.bench = "kv", .name = "lookup_device_1000_blocks", .value = median(times), .unit = "ms", .goal = 1,
          .higher_is_better = false});
}

// ---- SSD ------------------------------------------------------------------------------------------------------------

// Bytes a second of 128 KiB operations past the page cache, between huge pages and random places of a file, as many at
// once as there are buffers.
double device_rate(IoQueue& io, int fd, std::vector<IoBuffer>& buffers, std::span<const uint64_t> order, bool write) {
  std::vector<size_t> free(buffers.size());
  std::iota(free.begin(), free.end(), 0);
  std::array<IoQueue::Done, 32> done;
  const double begin = wall_seconds();
  for (size_t started = 0, ended = 0; ended < order.size();) {
    for (; started < order.size() && !free.empty(); ++started) {
      const size_t place = free.back();
      free.pop_back();
      const uint64_t offset = order[started] * kDeviceBytes;
      const std::span<std::byte> b = buffers[place].first(kDeviceBytes);
      write ? io.write(fd, b, offset, place) : io.read(fd, b, offset, place);
    }
    io.submit();
    const size_t n = io.wait(done);
    for (size_t k = 0; k < n; ++k) {
      if (done[k].error != 0 || done[k].bytes != static_cast<int64_t>(kDeviceBytes))
        must(deepinfer::make_error(deepinfer::Code::kIo, "the device fails: {}", std::strerror(done[k].error)));
      free.push_back(done[k].tag);
    }
    ended += n;
  }
  return static_cast<double>(order.size() * kDeviceBytes) / (wall_seconds() - begin);
}

std::span<const uint64_t> piece_of(const std::vector<uint64_t>& order, int piece, int blocks) {
  return std::span(order).subspan(static_cast<size_t>(piece) * static_cast<size_t>(blocks),
                                  static_cast<size_t>(blocks));
}

}  // namespace

void host_memory(bool quick) {
  host_copies(quick);
  lookups(quick);
}

void ssd(bool quick) {
  constexpr int kDepth = 120, kPieces = 8;
  const int blocks = quick ? 512 : 8192;
  const Folder folder("ssd");
  Records records;
  // The device's own rates: a file that is there already, as the blocks of the tier's segments are when they are read.
  const std::string path = folder.path() + "/device";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) must(deepinfer::make_error(deepinfer::Code::kIo, "{} cannot be made: {}", path, std::strerror(errno)));
  const auto io = must(IoQueue::create({.depth = kDepth}));
  deepinfer::IoBuffers memory({});
  std::vector<IoBuffer> buffers(kDepth);
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = memory.take(kDeviceBytes);
    std::ranges::copy(records.sealed(i), buffers[i].data());
  }
  std::vector<uint64_t> in_order(static_cast<size_t>(blocks));
  std::iota(in_order.begin(), in_order.end(), 0);
  device_rate(*io, fd, buffers, in_order, true);

  // A cache that has been full for a while: what is written takes the place of what leaves.
  const uint64_t segment = quick ? 32ull << 20 : 256ull << 20;
  const auto tier = must(SsdTier::open(folder.path() + "/tier", {.bytes_max = 12 * segment, .segment_bytes = segment}));
  std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  uint64_t first = 13 * segment / record.size();
  put_rate(*tier, record, static_cast<int>(first), kDepth, [](int i) { return static_cast<uint64_t>(i); });
  Turns reads, writes;
  const int turns = quick ? 1 : 5, piece = blocks / kPieces;
  for (int turn = 0; turn < turns; ++turn) {
    const std::vector<uint64_t> order = shuffled(blocks, static_cast<unsigned>(turn));
    // In small pieces, each between two of the device's own, since what else goes on there changes from second to
    // second.
    const auto device = [&](int p, bool write) {
      return device_rate(*io, fd, buffers, piece_of(order, p % kPieces, piece), write);
    };
    writes.ceiling(device(0, true));
    for (int p = 0; p < kPieces; ++p) {
      const uint64_t base = first + static_cast<uint64_t>(p * piece);
      writes.value(put_rate(*tier, record, piece, kDepth, [&](int i) { return base + static_cast<uint64_t>(i); }));
      writes.ceiling(device(p + 1, true));
    }
    reads.ceiling(device(0, false));
    for (int p = 0; p < kPieces; ++p) {
      const std::span<const uint64_t> places = piece_of(order, p, piece);
      reads.value(get_rate(*tier, record.size(), piece, kDepth,
                           [&](int i) { return first + places[static_cast<size_t>(i)]; }));
      reads.ceiling(device(p + 1, false));
    }
    first += static_cast<uint64_t>(blocks);
    // What has been read would be moved on while the next ones are written, which is not what is measured.
    if (turn + 1 < turns) tier->purge(0);
    tier->flush();
  }
  std::vector<BlockKey> keys;
  const uint64_t newest = first - static_cast<uint64_t>(blocks);
  for (int i = 0; i < std::min(kPrefix, blocks); ++i) keys.push_back(key_of(newest + static_cast<uint64_t>(i)));
  std::vector<double> times;
  for (int turn = 0; turn < (quick ? 5 : 101); ++turn) {
    const double begin = thread_cpu_seconds();
    if (tier->count_prefix(keys) != keys.size()) std::exit(1);
    times.push_back((thread_cpu_seconds() - begin) * 1e3);
  }
  ::close(fd);
  const auto line = [](const char* name, const char* what) {
    return Line{.bench = "kv", .name = name, .unit = "MB/s", .ceiling_is = what, .goal = 0.85};
  };
  reads.report(line("ssd_get", "128 KiB random reads of the device, O_DIRECT"), 1e6);
  writes.report(line("ssd_put", "128 KiB random writes of the device, O_DIRECT"), 1e6);
  report({.bench = "kv", .name = "lookup_ssd_1000_blocks", .value = median(times), .unit = "ms", .goal = 1,
          .higher_is_better = false});
}

}  // namespace bench::kv
