// Redis' protocol for the two commands that carry records, without the copies that hiredis makes of values (internal to
// kv/redis_store.cc): a record goes to the socket from where it lies, and comes from the socket to where it is wanted.
//
//   std::optional<RedisAnswer> a = redis_get(fd, name, into, trailer);
//
// Nothing: the connection is of no use any more; errno says why, 0: the other side closed it. One command at a time on
// a blocking socket, whose own time limits bound every wait. Nothing is trusted: an answer that is not the protocol, or
// a value that does not fit, ends the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer::kv {

struct RedisAnswer {
  enum class Kind : uint8_t { kOk, kNone, kError, kTooLarge };
  Kind kind = Kind::kOk;
  std::string error;   // of kError, without the '-'
  size_t bytes = 0;    // of the value, without the trailer
};

// The value's last bytes go to `trailer`. kTooLarge: more than `into` holds; the connection must be closed.
std::optional<RedisAnswer> redis_get(int fd, std::string_view name, std::span<std::byte> into,
                                     std::span<std::byte> trailer);
std::optional<RedisAnswer> redis_set(int fd, std::string_view name, std::span<const std::byte> record,
                                     std::span<const std::byte> trailer, uint32_t ttl_s);

}  // namespace deepinfer::kv
