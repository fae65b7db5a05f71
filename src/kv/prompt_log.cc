#include "kv/prompt_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/file.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr char kMagic[4] = {'D', 'I', 'P', 'L'};
constexpr size_t kHeadBytes = 4 + 4 + 8 + 8 + 4 + 4 + 4 + 4, kSumBytes = 8;
constexpr size_t kTokensMax = 1u << 24;
constexpr uint64_t kFileBytesMax = 4ull << 30;

void put(std::byte* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t get(const std::byte* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  return value;
}

void encode(const LoggedPrompt& p, uint64_t number, std::vector<std::byte>* out) {
  const size_t bytes = kHeadBytes + 4 * p.tokens.size() + kSumBytes;
  out->resize(bytes);
  std::byte* at = out->data();
  std::memcpy(at, kMagic, 4);
  put(at + 4, bytes - 8, 4);
  put(at + 8, number, 8);
  put(at + 16, static_cast<uint64_t>(p.unix_time), 8);
  put(at + 24, static_cast<uint32_t>(p.tenant), 4);
  put(at + 28, static_cast<uint64_t>(p.traffic), 4);
  put(at + 32, static_cast<uint32_t>(p.cached), 4);
  put(at + 36, p.tokens.size(), 4);
  for (size_t i = 0; i < p.tokens.size(); ++i)
    put(at + kHeadBytes + 4 * i, static_cast<uint32_t>(p.tokens[i]), 4);
  put(at + bytes - kSumBytes, kv_checksum(std::span<const std::byte>(*out).first(bytes - kSumBytes)), kSumBytes);
}

// The entry at the beginning, and its length; 0: there is none.
size_t decode(std::span<const std::byte> bytes, LoggedPrompt* p) {
  if (bytes.size() < kHeadBytes + kSumBytes || std::memcmp(bytes.data(), kMagic, 4) != 0) return 0;
  const std::byte* at = bytes.data();
  const size_t size = get(at + 4, 4) + 8, tokens = get(at + 36, 4);
  if (tokens > kTokensMax || size != kHeadBytes + 4 * tokens + kSumBytes || size > bytes.size()) return 0;
  if (get(at + size - kSumBytes, kSumBytes) != kv_checksum(bytes.first(size - kSumBytes))) return 0;
  p->number = get(at + 8, 8);
  p->unix_time = static_cast<int64_t>(get(at + 16, 8));
  p->tenant = static_cast<int32_t>(get(at + 24, 4));
  p->traffic = get(at + 28, 4) == 1 ? Traffic::kAgent : Traffic::kChat;
  p->cached = static_cast<int32_t>(get(at + 32, 4));
  p->tokens.resize(tokens);
  for (size_t i = 0; i < tokens; ++i) p->tokens[i] = static_cast<int32_t>(get(at + kHeadBytes + 4 * i, 4));
  return size;
}

// Whole entries of a file, and how many bytes they take.
Result<std::vector<LoggedPrompt>> read_one(const std::string& path, uint64_t* bytes) {
  *bytes = 0;
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytesMax));
  std::vector<LoggedPrompt> out;
  std::span<const std::byte> rest = std::as_bytes(std::span(text));
  LoggedPrompt p;
  for (size_t n = decode(rest, &p); n > 0; n = decode(rest, &p)) {
    out.push_back(std::move(p));
    rest = rest.subspan(n);
    *bytes += n;
  }
  return out;
}

}  // namespace

Result<std::vector<LoggedPrompt>> PromptLog::read(const std::string& path) {
  uint64_t bytes = 0;
  std::vector<LoggedPrompt> all;
  if (Result<std::vector<LoggedPrompt>> old = read_one(path + ".old", &bytes); old.ok()) all = std::move(old).value();
  DI_ASSIGN_OR_RETURN(std::vector<LoggedPrompt> now, read_one(path, &bytes));
  std::ranges::move(now, std::back_inserter(all));
  return all;
}

Result<std::unique_ptr<PromptLog>> PromptLog::open(const std::string& path, uint64_t bytes_max) {
  std::unique_ptr<PromptLog> log(new PromptLog(path, bytes_max));
  if (const Result<std::vector<LoggedPrompt>> before = read(path); before.ok() && !before->empty())
    log->next_ = before->back().number + 1;
  log->fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log->fd_ < 0)
    return make_error(Code::kIo, "The log of prompts {} cannot be opened: {}.", path, std::strerror(errno));
  // What is behind the last whole entry would hide all that comes.
  if (const auto whole = read_one(path, &log->bytes_); whole.ok())
    (void)!::ftruncate(log->fd_, static_cast<off_t>(log->bytes_));
  return log;
}

PromptLog::~PromptLog() {
  if (fd_ >= 0) ::close(fd_);
}

void PromptLog::append(const LoggedPrompt& prompt) {
  encode(prompt, next_++, &entry_);
  if (entry_.size() > bytes_max_ / 2) {
    ++failures_;
    return;
  }
  if (bytes_ + entry_.size() > bytes_max_ / 2) {
    const int fresh = ::rename(path_.c_str(), (path_ + ".old").c_str()) == 0
                          ? ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)
                          : -1;
    if (fresh < 0) {
      ++failures_;
      return;
    }
    ::close(fd_);
    fd_ = fresh;
    bytes_ = 0;
  }
  const ssize_t n = ::write(fd_, entry_.data(), entry_.size());
  if (n == static_cast<ssize_t>(entry_.size())) {
    bytes_ += entry_.size();
    return;
  }
  ++failures_;
  (void)!::ftruncate(fd_, static_cast<off_t>(bytes_));
}

}  // namespace deepinfer::kv
