#include "serve/keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <openssl/rand.h>
#include <openssl/sha.h>

#include "base/file.h"
#include "recipe/json.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr uint64_t kFileBytesMax = 64 << 20;

Result<KeyRecord> parse_record(const Json& json) {
  KeyRecord r;
  const auto text = [&](std::string_view name, std::string* out) {
    const Json* v = json.find(name);
    if (v != nullptr && v->is_string()) *out = v->as_string();
    return v != nullptr && v->is_string();
  };
  const auto number = [&](std::string_view name, int64_t* out) {
    const Json* v = json.find(name);
    if (v == nullptr) return true;
    const auto n = v->is_integer() ? v->to_int64() : std::nullopt;
    *out = n.value_or(0);
    return n && *n >= 0;
  };
  if (!text("name", &r.name) || r.name.empty()) return Status(Code::kInvalidArgument, "\"name\" must be a text");
  if (!text("hash", &r.hash) || r.hash.size() != 64 ||
      r.hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return Status(Code::kInvalidArgument, "\"hash\" must be 64 hexadecimal digits");
  }
  for (const auto& [name, out] :
       {std::pair{"created", &r.created}, {"concurrent", &r.concurrent}, {"tokens_per_minute", &r.tokens_per_minute}}) {
    if (!number(name, out)) return make_error(Code::kInvalidArgument, "\"{}\" must be a whole number, 0 or more", name);
  }
  return r;
}

}  // namespace

std::string make_key() {
  static constexpr char kDigits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string key = "di-";
  while (key.size() < 46) {
    uint8_t byte = 0;
    if (::RAND_bytes(&byte, 1) != 1) return {};
    if (byte < 248) key += kDigits[byte % 62];
  }
  return key;
}

std::string hash_key(std::string_view secret) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  ::SHA256(reinterpret_cast<const uint8_t*>(secret.data()), secret.size(), digest.data());
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

Result<std::vector<KeyRecord>> read_keys(const std::string& path) {
  std::vector<KeyRecord> keys;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 && errno == ENOENT) return keys;
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytesMax));
  std::set<std::string> names;
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<Json> json = recipe::parse_json(line);
    Result<KeyRecord> record = json.ok() ? parse_record(json.value()) : Result<KeyRecord>(json.status());
    if (!record.ok()) {
      return make_error(Code::kInvalidArgument, "Line {} of {} is no key: {}.", line_number, path,
                        record.status().message());
    }
    if (!names.insert(record->name).second) {
      return make_error(Code::kInvalidArgument, "Line {} of {} has the name \"{}\" again.", line_number, path,
                        record->name);
    }
    if (keys.size() >= kKeysMax)
      return make_error(Code::kResourceExhausted, "{} has more than {} keys.", path, kKeysMax);
    keys.push_back(std::move(record).value());
  }
  return keys;
}

Status write_keys(const std::string& path, const std::vector<KeyRecord>& keys) {
  std::string text;
  for (const KeyRecord& k : keys) {
    Json line = Json::object();
    line.set("name", k.name);
    line.set("hash", k.hash);
    line.set("created", k.created);
    if (k.concurrent > 0) line.set("concurrent", k.concurrent);
    if (k.tokens_per_minute > 0) line.set("tokens_per_minute", k.tokens_per_minute);
    text += recipe::to_python_json(line) + "\n";
  }
  DI_RETURN_IF_ERROR(write_file_atomically(path, text));
  ::chmod(path.c_str(), 0600);
  return Status();
}

KeyUse::KeyUse(KeyRecord r)
    : name_(std::move(r.name)),
      concurrent_(r.concurrent),
      tokens_per_minute_(r.tokens_per_minute),
      tokens_(static_cast<double>(r.tokens_per_minute)),
      at_(Clock::now()) {}

void KeyUse::refill(Clock::time_point now) const {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - at_).count());
  const auto full = static_cast<double>(tokens_per_minute_);
  tokens_ = std::min(full, tokens_ + seconds * full / 60);
  at_ = std::max(at_, now);
}

KeyUse::Refusal KeyUse::begin(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (concurrent_ > 0 && running_ >= concurrent_) {
    return {
        429,
        fmt::format("This API key has {} requests in work, which is its limit. Wait until one has ended.", running_),
        1};
  }
  refill(now);
  if (tokens_per_minute_ > 0 && tokens_ <= 0) {
    const double wait_s = (1 - tokens_) * 60 / static_cast<double>(tokens_per_minute_);
    return {429,
            fmt::format("This API key has used its {} tokens a minute. Try again in {:.0f} s.", tokens_per_minute_,
                        std::ceil(wait_s)),
            wait_s};
  }
  ++running_;
  return {};
}

void KeyUse::end(int64_t tokens, Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --running_;
  if (tokens_per_minute_ == 0) return;
  refill(now);
  tokens_ -= static_cast<double>(tokens);
}

KeyUse::Balance KeyUse::balance(Clock::time_point now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Balance b;
  b.requests_limit = concurrent_;
  b.requests_left = std::max<int64_t>(0, concurrent_ - running_);
  if (tokens_per_minute_ == 0) return b;
  refill(now);
  b.tokens_limit = tokens_per_minute_;
  b.tokens_left = static_cast<int64_t>(std::max(0.0, tokens_));
  b.tokens_reset_s = (static_cast<double>(tokens_per_minute_) - tokens_) * 60 / static_cast<double>(tokens_per_minute_);
  return b;
}

void KeyUse::set_limits(const KeyRecord& r) {
  const std::lock_guard<std::mutex> lock(mutex_);
  concurrent_ = r.concurrent;
  if (tokens_per_minute_ == 0) tokens_ = static_cast<double>(r.tokens_per_minute);
  tokens_per_minute_ = r.tokens_per_minute;
}

Result<std::unique_ptr<KeyRing>> KeyRing::load(const std::string& path) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path));
  DI_RETURN_IF_ERROR(ring->reload());
  return ring;
}

Status KeyRing::reload() {
  DI_ASSIGN_OR_RETURN(const std::vector<KeyRecord> keys, read_keys(path_));
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_map<std::string, std::shared_ptr<KeyUse>> fresh;
  for (const KeyRecord& k : keys) {
    const auto known = by_hash_.find(k.hash);
    if (known != by_hash_.end() && known->second->name() == k.name) {
      known->second->set_limits(k);
      fresh.emplace(k.hash, known->second);
    } else {
      fresh.emplace(k.hash, std::make_shared<KeyUse>(k));
    }
  }
  by_hash_ = std::move(fresh);
  return Status();
}

std::shared_ptr<KeyUse> KeyRing::find(std::string_view secret) const {
  const std::string hash = hash_key(secret);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = by_hash_.find(hash);
  return at == by_hash_.end() ? nullptr : at->second;
}

size_t KeyRing::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_hash_.size();
}

}  // namespace deepinfer::serve
