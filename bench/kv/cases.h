// Cases of bench_kv and what they share: records of the full model's size, and a tier kept busy.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/status.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "kv/record.h"
#include "kv/tier.h"

namespace bench::kv {

using namespace deepinfer::kv;

void host_memory(bool quick);
void ssd(bool quick);
void redis(bool quick);
void kvstore(bool quick);
void rados(bool quick);
void prefill_4k(bool quick);
void prefill_32k(bool quick);

inline constexpr size_t kPageBytes = 113920, kTokens = 128;  // a block of DeepSeek-V4.1-Flash with FP4 records

BlockKey key_of(uint64_t i);
// A few records of random bytes; block i takes the one at i modulo their number, sealed under its own key.
class Records {
 public:
  Records();
  size_t bytes() const { return record_bytes(kTokens, kPageBytes); }
  std::span<const std::byte> sealed(uint64_t i);  // valid until the next call

 private:
  std::vector<std::vector<std::byte>> pages_;
  std::vector<int32_t> tokens_;
  std::vector<std::byte> record_;
};

// Keeps `depth` operations of the tier going for `count` of them; bytes a second. One that fails ends the
// program, but for those that are late: they count as time without bytes. `pause_us`: between two polls without an
// answer; each of them takes a core from a store that works on this machine as well, and an engine polls once a step.
double get_rate(Tier& tier, size_t record_bytes, int count, int depth, const std::function<uint64_t(int)>& block,
                int pause_us = 50);
double put_rate(Tier& tier, std::span<const std::byte> record, int count, int depth,
                const std::function<uint64_t(int)>& block, int pause_us = 50);

// Values beside a ceiling that drifts, as a shared machine's does: the ceiling is measured before the first and behind
// every turn, and each value is compared with the mean of the two around it. Reported: the median value and the median
// of the turns' ratios.
//
//   Turns t;  t.ceiling(c0);  for (...) { t.value(v); t.ceiling(c); }  t.report({.bench = "kv", .name = "x"}, 1e6);
class Turns {
 public:
  void ceiling(double rate) {
    if (values_.size() > ratios_.size()) ratios_.push_back(2 * values_.back() / (before_ + rate));
    before_ = rate;
  }
  void value(double rate) { values_.push_back(rate); }
  double ratio() const { return median(ratios_); }
  // `line` with its value, ceiling and goal as a ratio filled in; rates are divided by `unit`.
  void report(Line line, double unit) const {
    line.value = median(values_) / unit;
    line.ceiling = line.value / median(ratios_);
    line.goal_is_ratio = true;
    bench::report(line);
  }

 private:
  std::vector<double> values_, ratios_;
  double before_ = 0;
};

// A folder below build/ that is gone at the end.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_("build/bench-data/kv-" + name + "-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace bench::kv
