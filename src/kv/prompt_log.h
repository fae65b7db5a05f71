// The last prompts of an engine, on disk, so that somebody can be told why one of them missed (kv/explain.h).
//
//   DI_ASSIGN_OR_RETURN(auto log, PromptLog::open("/data/prompts.log", 64 << 20));
//   log->append({.unix_time = t, .tenant = 0, .cached = 256, .tokens = prompt});
//   DI_ASSIGN_OR_RETURN(std::vector<LoggedPrompt> prompts, PromptLog::read("/data/prompts.log"));   // the oldest first
//
// Two files, PATH and PATH.old, of at most half of bytes_max each: when the first is full it takes the place of the
// second. An entry that was cut or changed ends the reading of its file; nothing else is lost. The files hold what
// users wrote, as token ids: they are made for the owner only (0600). append() never waits for the disk; a failure to
// write is counted and forgotten.
//
// An entry, little endian: "DIPL", bytes of the rest u32, number u64, Unix time i64, tenant i32, traffic u32, cached
// i32, tokens u32, ids i32 each, XXH3-64 of all before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct LoggedPrompt {
  uint64_t number = 0;  // rises; append() gives it
  int64_t unix_time = 0;
  int32_t tenant = 0;
  Traffic traffic = Traffic::kChat;
  int32_t cached = 0;  // tokens that came from the cache
  std::vector<int32_t> tokens;
};

class PromptLog {
 public:
  static Result<std::unique_ptr<PromptLog>> open(const std::string& path, uint64_t bytes_max);
  static Result<std::vector<LoggedPrompt>> read(const std::string& path);
  ~PromptLog();

  void append(const LoggedPrompt& prompt);
  int64_t failures() const { return failures_; }

 private:
  PromptLog(std::string path, uint64_t bytes_max) : path_(std::move(path)), bytes_max_(bytes_max) {}

  const std::string path_;
  const uint64_t bytes_max_;
  int fd_ = -1;
  uint64_t bytes_ = 0, next_ = 1;
  int64_t failures_ = 0;
  std::vector<std::byte> entry_;
};

}  // namespace deepinfer::kv
