#include "kv/redis_wire.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

namespace deepinfer::kv {
namespace {

constexpr size_t kPartsMax = 8;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

iovec part(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }
iovec part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

}  // namespace

// Sends or receives all of the parts.
bool RedisPipe::move_all(std::span<iovec> parts, bool out, double until_s) {
  while (true) {
    while (!parts.empty() && parts.front().iov_len == 0) parts = parts.subspan(1);
    if (parts.empty()) return true;
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    errno = 0;
    const ssize_t n = out ? ::sendmsg(fd_, &message, MSG_NOSIGNAL) : ::recvmsg(fd_, &message, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bool rest = false;
    for (auto left = static_cast<size_t>(n); !parts.empty(); parts = parts.subspan(1)) {
      const size_t step = std::min(left, parts.front().iov_len);
      parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + step;
      parts.front().iov_len -= step;
      left -= step;
      rest = parts.front().iov_len > 0;
      if (rest) break;
    }
    if (!rest) return true;
    errno = EAGAIN;
    if (now() > until_s) return false;
  }
}

bool RedisPipe::send(std::span<iovec> parts) {
  std::array<iovec, kPartsMax> all;
  all[0] = part(unsent_);
  std::ranges::copy(parts, all.begin() + 1);
  const bool sent = move_all(std::span(all).first(parts.size() + 1), true, now() + timeout_s_);
  unsent_.clear();
  return sent;
}

bool RedisPipe::read_line(std::string_view* line, double until_s) {
  while (true) {
    const std::string_view seen(seen_.data() + begin_, end_ - begin_);
    if (const size_t end = seen.find("\r\n"); end != std::string_view::npos) {
      *line = seen.substr(0, end);
      begin_ += end + 2;
      return true;
    }
    std::copy(seen_.begin() + begin_, seen_.begin() + end_, seen_.begin());
    end_ -= begin_;
    begin_ = 0;
    errno = EPROTO;
    if (end_ == seen_.size()) return false;
    errno = 0;
    const ssize_t n = ::recv(fd_, seen_.data() + end_, seen_.size() - end_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    end_ += static_cast<size_t>(n);
    errno = EAGAIN;
    if (now() > until_s) return false;
  }
}

bool RedisPipe::read_all(std::span<std::span<std::byte>> places, double until_s) {
  std::array<iovec, kPartsMax> left;
  size_t count = 0;
  for (std::span<std::byte> place : places) {
    const size_t n = std::min(end_ - begin_, place.size());
    if (n > 0) std::memcpy(place.data(), seen_.data() + begin_, n);
    begin_ += n;
    left[count++] = part(place.subspan(n));
  }
  return move_all(std::span(left).first(count), false, until_s);
}

bool RedisPipe::throw_away(size_t bytes, double until_s) {
  const size_t seen = std::min(bytes, end_ - begin_);
  begin_ += seen;
  for (bytes -= seen; bytes > 0;) {
    errno = 0;
    const ssize_t n = ::recv(fd_, nullptr, bytes, MSG_TRUNC);  // TCP drops what it would have copied
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes -= static_cast<size_t>(n);
    errno = EAGAIN;
    if (now() > until_s) return false;
  }
  return true;
}

void RedisPipe::ask_get(std::string_view name) {
  fmt::format_to(std::back_inserter(unsent_), "*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", name.size(), name);
}

bool RedisPipe::ask_set(std::string_view name, std::span<const std::byte> record, std::span<const std::byte> trailer,
                        uint32_t ttl_s) {
  // The value comes last: Redis answers as soon as it has it, without a read more for what is behind.
  const std::string seconds = std::to_string(ttl_s);
  const std::string before = fmt::format("*4\r\n$5\r\nSETEX\r\n${}\r\n{}\r\n${}\r\n{}\r\n${}\r\n", name.size(), name,
                                         seconds.size(), seconds, record.size() + trailer.size());
  std::array<iovec, 4> parts{part(before), part(record), part(trailer), part(std::string_view("\r\n"))};
  return send(parts);
}

std::optional<RedisAnswer> RedisPipe::get_answer(std::span<std::byte> into, std::span<std::byte> trailer) {
  if (!flush()) return std::nullopt;
  const double until_s = now() + timeout_s_;
  std::string_view line;
  if (!read_line(&line, until_s)) return std::nullopt;
  if (line.starts_with('-'))
    return RedisAnswer{.kind = RedisAnswer::Kind::kError, .error = std::string(line.substr(1))};
  errno = EPROTO;
  if (!line.starts_with('$')) return std::nullopt;
  int64_t length = 0;
  const auto [end, error] = std::from_chars(line.data() + 1, line.data() + line.size(), length);
  if (error != std::errc() || end != line.data() + line.size()) return std::nullopt;
  if (length < 0) return RedisAnswer{.kind = RedisAnswer::Kind::kNone};
  const auto bytes = static_cast<size_t>(length);
  const bool foreign = bytes < trailer.size();
  if (foreign || bytes - trailer.size() > into.size()) {
    if (!throw_away(bytes + 2, until_s)) return std::nullopt;
    return RedisAnswer{.kind = foreign ? RedisAnswer::Kind::kNone : RedisAnswer::Kind::kTooLarge};
  }
  std::array<std::byte, 2> line_end;
  std::array<std::span<std::byte>, 3> places{into.first(bytes - trailer.size()), trailer, line_end};
  if (!read_all(places, until_s)) return std::nullopt;
  errno = EPROTO;
  if (line_end != std::array{std::byte{'\r'}, std::byte{'\n'}}) return std::nullopt;
  return RedisAnswer{.bytes = bytes - trailer.size()};
}

std::optional<RedisAnswer> RedisPipe::set_answer() {
  if (!flush()) return std::nullopt;
  std::string_view line;
  if (!read_line(&line, now() + timeout_s_)) return std::nullopt;
  errno = EPROTO;
  if (line == "+OK") return RedisAnswer();
  if (!line.starts_with('-')) return std::nullopt;
  return RedisAnswer{.kind = RedisAnswer::Kind::kError, .error = std::string(line.substr(1))};
}

}  // namespace deepinfer::kv
