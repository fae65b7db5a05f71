#include "kv/redis_wire.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace deepinfer::kv {
namespace {

// Sends or receives all of the parts; false with errno.
bool move_all(int fd, std::span<iovec> parts, bool out) {
  while (true) {
    while (!parts.empty() && parts.front().iov_len == 0) parts = parts.subspan(1);
    if (parts.empty()) return true;
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    errno = 0;
    const ssize_t n = out ? ::sendmsg(fd, &message, MSG_NOSIGNAL) : ::recvmsg(fd, &message, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    for (auto left = static_cast<size_t>(n); left > 0;) {
      const size_t step = std::min(left, parts.front().iov_len);
      parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + step;
      parts.front().iov_len -= step;
      left -= step;
      if (parts.front().iov_len == 0) parts = parts.subspan(1);
    }
  }
}

iovec part(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }
iovec part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

// An answer's first line, and what of the bytes behind it was read along with it.
struct Head {
  std::array<char, 512> bytes;
  size_t read = 0, line = 0;
  std::string_view text() const { return {bytes.data(), line}; }
  std::span<const std::byte> rest() const { return std::as_bytes(std::span(bytes)).first(read).subspan(line + 2); }
};

bool read_head(int fd, Head* head) {
  while (true) {
    const std::string_view seen(head->bytes.data(), head->read);
    if (const size_t end = seen.find("\r\n"); end != std::string_view::npos) {
      head->line = end;
      return true;
    }
    errno = EPROTO;
    if (head->read == head->bytes.size()) return false;
    errno = 0;
    const ssize_t n = ::recv(fd, head->bytes.data() + head->read, head->bytes.size() - head->read, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    head->read += static_cast<size_t>(n);
  }
}

}  // namespace

std::optional<RedisAnswer> redis_get(int fd, std::string_view name, std::span<std::byte> into,
                                     std::span<std::byte> trailer) {
  const std::string words = fmt::format("*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", name.size(), name);
  std::array<iovec, 1> command{part(words)};
  Head head;
  if (!move_all(fd, command, true) || !read_head(fd, &head)) return std::nullopt;
  const std::string_view line = head.text();
  if (line.starts_with('-'))
    return RedisAnswer{.kind = RedisAnswer::Kind::kError, .error = std::string(line.substr(1))};
  errno = EPROTO;
  if (!line.starts_with('$')) return std::nullopt;
  int64_t length = 0;
  const auto [end, error] = std::from_chars(line.data() + 1, line.data() + line.size(), length);
  if (error != std::errc() || end != line.data() + line.size()) return std::nullopt;
  if (length < 0) return RedisAnswer{.kind = RedisAnswer::Kind::kNone};
  const auto bytes = static_cast<size_t>(length);
  if (bytes < trailer.size() || bytes - trailer.size() > into.size())
    return RedisAnswer{.kind = RedisAnswer::Kind::kTooLarge};
  std::array<std::byte, 2> line_end;
  std::array<std::span<std::byte>, 3> places{into.first(bytes - trailer.size()), trailer, line_end};
  std::span<const std::byte> rest = head.rest();
  for (std::span<std::byte>& place : places) {
    const size_t n = std::min(rest.size(), place.size());
    std::copy_n(rest.begin(), n, place.begin());
    rest = rest.subspan(n);
    place = place.subspan(n);
  }
  if (!rest.empty()) return std::nullopt;  // more than was asked for
  std::array<iovec, 3> left{part(places[0]), part(places[1]), part(places[2])};
  if (!move_all(fd, left, false)) return std::nullopt;
  errno = EPROTO;
  if (line_end != std::array{std::byte{'\r'}, std::byte{'\n'}}) return std::nullopt;
  return RedisAnswer{.bytes = bytes - trailer.size()};
}

std::optional<RedisAnswer> redis_set(int fd, std::string_view name, std::span<const std::byte> record,
                                     std::span<const std::byte> trailer, uint32_t ttl_s) {
  const std::string before = fmt::format("*5\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", name.size(), name,
                                         record.size() + trailer.size());
  const std::string seconds = std::to_string(ttl_s);
  const std::string behind = fmt::format("\r\n$2\r\nEX\r\n${}\r\n{}\r\n", seconds.size(), seconds);
  std::array<iovec, 4> command{part(before), part(record), part(trailer), part(behind)};
  Head head;
  if (!move_all(fd, command, true) || !read_head(fd, &head)) return std::nullopt;
  errno = EPROTO;
  if (!head.rest().empty()) return std::nullopt;
  if (head.text() == "+OK") return RedisAnswer();
  if (!head.text().starts_with('-')) return std::nullopt;
  return RedisAnswer{.kind = RedisAnswer::Kind::kError, .error = std::string(head.text().substr(1))};
}

}  // namespace deepinfer::kv
