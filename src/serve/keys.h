// API keys: who may use the service, how much at once and how many tokens a minute.
//
//   DI_ASSIGN_OR_RETURN(auto ring, KeyRing::load("keys.jsonl"));
//   std::shared_ptr<KeyUse> use = ring->find(secret);                  // null: no such key
//   KeyUse::Refusal r = use->begin();                                  // r.status 429 when a limit is reached
//   use->end(tokens);
//
// The file has one JSON object a line: {"name", "hash", "created", "concurrent"?, "tokens_per_minute"?}. Only SHA-256
// of a key is kept: keys are 256 random bits, so nothing can be guessed from it. `deepinfer keys` writes the file.
// reload() keeps what has been counted. Thread-safe.
//
// Tokens are charged when a response has ended, prompt and answer together: a key may overdraw its minute once, and
// then waits until the balance is above zero again.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace deepinfer::serve {

struct KeyRecord {
  std::string name;
  std::string hash;  // SHA-256 in hexadecimal
  int64_t created = 0;
  int64_t concurrent = 0;         // requests at once; 0: no limit
  int64_t tokens_per_minute = 0;  // 0: no limit
};

inline constexpr size_t kKeysMax = 100'000;

Result<std::vector<KeyRecord>> read_keys(const std::string& path);  // a file that is not there has no keys
Status write_keys(const std::string& path, const std::vector<KeyRecord>& keys);
std::string make_key();                          // "di-" and 43 letters and digits
std::string hash_key(std::string_view secret);  // hexadecimal

class KeyUse {
 public:
  using Clock = std::chrono::steady_clock;
  struct Refusal {
    int status = 0;  // 0: none
    std::string message;
    double retry_after_s = 0;
  };
  // What the rate limit headers say.
  struct Balance {
    int64_t tokens_limit = 0, tokens_left = 0;
    double tokens_reset_s = 0;  // until the balance is full
    int64_t requests_limit = 0, requests_left = 0;
  };

  explicit KeyUse(KeyRecord record);
  const std::string& name() const { return name_; }
  Refusal begin(Clock::time_point now = Clock::now());
  void end(int64_t tokens, Clock::time_point now = Clock::now());
  Balance balance(Clock::time_point now = Clock::now()) const;
  void set_limits(const KeyRecord& record);

 private:
  void refill(Clock::time_point now) const;

  const std::string name_;
  mutable std::mutex mutex_;
  int64_t concurrent_, tokens_per_minute_;
  int64_t running_ = 0;
  mutable double tokens_;
  mutable Clock::time_point at_;
};

class KeyRing {
 public:
  static Result<std::unique_ptr<KeyRing>> load(const std::string& path);
  Status reload();
  std::shared_ptr<KeyUse> find(std::string_view secret) const;
  size_t size() const;

 private:
  explicit KeyRing(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<KeyUse>> by_hash_;
};

}  // namespace deepinfer::serve
