// Redis' protocol for the two commands that carry records, without the copies that hiredis makes of values (internal to
// kv/redis_store.cc): a record goes to the socket from where it lies, and comes from the socket to where it is wanted.
//
//   RedisPipe pipe(fd, 2);
//   pipe.ask_get("a") && pipe.ask_get("b");                                 // several at once
//   std::optional<RedisAnswer> a = pipe.get_answer(into, trailer);          // in the order of the questions
//
// False or nothing: the connection is of no use any more; errno says why, 0: the other side closed it. A blocking
// socket, whose own time limits bound every wait; an answer takes timeout_s at most, or twice that where bytes trickle.
// Nothing is trusted: an answer that is not the protocol ends the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/uio.h>

namespace deepinfer::kv {

struct RedisAnswer {
  enum class Kind : uint8_t { kOk, kNone, kError, kTooLarge };
  Kind kind = Kind::kOk;
  std::string error;   // of kError, without the '-'
  size_t bytes = 0;    // of the value, without the trailer
};

class RedisPipe {
 public:
  RedisPipe(int fd, double timeout_s) : fd_(fd), timeout_s_(timeout_s) {}
  // A get leaves with the next set, with flush(), or when an answer is waited for.
  void ask_get(std::string_view name);
  bool flush() { return unsent_.empty() || send({}); }
  bool ask_set(std::string_view name, std::span<const std::byte> record, std::span<const std::byte> trailer,
               uint32_t ttl_s);
  // The value's last bytes go to `trailer`. kNone also for a value that is shorter; kTooLarge: more than `into` holds,
  // the value is thrown away.
  std::optional<RedisAnswer> get_answer(std::span<std::byte> into, std::span<std::byte> trailer);
  std::optional<RedisAnswer> set_answer();
  // Nothing came behind the last answer.
  bool clean() const { return begin_ == end_; }

 private:
  bool move_all(std::span<iovec> parts, bool out, double until_s);
  bool send(std::span<iovec> parts);
  bool read_line(std::string_view* line, double until_s);
  // From what was read along with a line, then from the socket.
  bool read_all(std::span<std::span<std::byte>> places, double until_s);
  bool throw_away(size_t bytes, double until_s);

  const int fd_;
  const double timeout_s_;
  std::string unsent_;
  std::array<char, 512> seen_;
  size_t begin_ = 0, end_ = 0;  // of seen_: read, but not used yet
};

}  // namespace deepinfer::kv
