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
// program, but for those that are late: they count as time without bytes.
double get_rate(Tier& tier, size_t record_bytes, int count, int depth, const std::function<uint64_t(int)>& block);
double put_rate(Tier& tier, std::span<const std::byte> record, int count, int depth,
                const std::function<uint64_t(int)>& block);

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
