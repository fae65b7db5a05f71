#include "bench/kv/cases.h"

#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <unordered_map>

namespace bench::kv {

BlockKey key_of(uint64_t i) {
  BlockKey k;
  const uint64_t words[2] = {(i + 1) * 0x9e3779b97f4a7c15, i};
  std::memcpy(k.bytes.data(), words, sizeof words);
  return k;
}

Records::Records() : tokens_(kTokens, 7), record_(bytes()) {
  std::mt19937_64 random(1);
  pages_.assign(16, std::vector<std::byte>(kPageBytes));
  for (std::vector<std::byte>& p : pages_) {
    for (size_t i = 0; i + 8 <= p.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(p.data() + i, &word, 8);
    }
  }
}

std::span<const std::byte> Records::sealed(uint64_t i) {
  seal_record(key_of(i), tokens_, pages_[i % pages_.size()], record_);
  return record_;
}

namespace {

// Starts operations until `depth` are on their way, hands over their ends, for `count` of them. Those a second that
// succeeded; a store may let some of them be late.
double keep_busy(Tier& tier, int count, int depth, int pause_us,
                 const std::function<Tier::Ticket(int i, size_t place)>& start) {
  std::unordered_map<Tier::Ticket, size_t> running;
  std::vector<size_t> free;
  for (int i = depth; i-- > 0;) free.push_back(static_cast<size_t>(i));
  std::array<Tier::Completion, 64> done;
  const double begin = wall_seconds();
  static bool some_late = false;
  int late = 0;
  for (int started = 0, ended = 0; ended < count;) {
    for (; started < count && !free.empty(); ++started) {
      const size_t place = free.back();
      free.pop_back();
      running[start(started, place)] = place;
    }
    const size_t n = tier.poll(done);
    if (n == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    for (size_t k = 0; k < n; ++k) {
      const deepinfer::Code code = done[k].status.code();
      // What was late when it was written may be missing when it is read.
      if (code == deepinfer::Code::kDeadlineExceeded || (code == deepinfer::Code::kNotFound && some_late)) ++late;
      else must(done[k].status);
      const auto at = running.find(done[k].ticket);
      free.push_back(at->second);
      running.erase(at);
      ++ended;
    }
  }
  some_late |= late > 0;
  if (late > 0) std::fprintf(stderr, "bench_kv: %d of %d operations were late\n", late, count);
  return (count - late) / (wall_seconds() - begin);
}

}  // namespace

double get_rate(Tier& tier, size_t record_bytes, int count, int depth, const std::function<uint64_t(int)>& block,
                int pause_us) {
  static std::vector<std::vector<std::byte>> buffers;
  buffers.resize(std::max(buffers.size(), static_cast<size_t>(depth)));
  for (std::vector<std::byte>& b : buffers) b.resize(record_bytes);
  return static_cast<double>(record_bytes) * keep_busy(tier, count, depth, pause_us, [&](int i, size_t place) {
    return tier.get(key_of(block(i)), std::span<std::byte>(buffers[place]));
  });
}

double put_rate(Tier& tier, std::span<const std::byte> record, int count, int depth,
                const std::function<uint64_t(int)>& block, int pause_us) {
  const auto owned = std::make_shared<RecordBytes>(record.begin(), record.end());
  return static_cast<double>(record.size()) * keep_busy(tier, count, depth, pause_us, [&](int i, size_t) {
    return tier.put_owned(key_of(block(i)), owned, {.space = 1});
  });
}

}  // namespace bench::kv
