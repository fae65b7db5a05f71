// The protocol between a KV server (kv/peer_server.h) and those who ask it (kv/peer_tier.h): frames on TCP.
//
// A frame is a header of kPeerHeaderBytes and a body of `bytes`, at most kPeerBodyMax. Little endian:
//
//   0  "DIKP"   4 version u8   5 op u8   6 status u8 (Code)   7 zero   8 id u64   16 count u32   20 bytes u32
//   24 key 16 bytes   40 space u64   48 ttl_s u32   52 zero u32   56 body's checksum u64   64 header's checksum u64
//
// Checksums: XXH3-64 of bytes 0 to 63, and of the body; 0 for records, which carry their own (kv/record.h).
// A connection begins with the server's kChallenge (32 random bytes); the client answers with kAuth: HMAC-SHA256 of
// them under the shared token, empty without one. Then, in any number and order, answered in any order under the
// question's id:
//
//   kGet     body: `count` of {key 16 bytes, id u64}       kRecord for each id: a record, or a status
//   kPut     key, space, ttl_s; body: a record             kDone with a status
//   kExists  body: `count` keys                            kDone, body: a byte 0 or 1 for each
//   kErase   body: `count` keys                            kDone
//   kPurge   space (0: all)                                kDone
//   kStat    -                                             kDone, body: text
//
// Whatever does not fit ends the connection, on either side: nothing is trusted, no length allocates more than
// kPeerBodyMax.
//
// A sender's socket gets kPeerSendBytes of buffer: with the system's own, which grows to megabytes, what is sent lies
// until it has left the processor's cache, and the receiver's processor sends it on besides copying it. So much at once
// is enough for 25 Gbit/s over 0.3 ms.
//
// FrameReceiver and FrameSender move frames over non-blocking sockets, a body from and to where it lies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/cache_key.h"
#include "kv/record_bytes.h"

namespace deepinfer::kv {

inline constexpr size_t kPeerHeaderBytes = 72, kPeerBodyMax = 16u << 20, kPeerKeysMax = 4096, kPeerChallengeBytes = 32;
inline constexpr uint8_t kPeerVersion = 1;
inline constexpr int kPeerSendBytes = 512 << 10;

enum class PeerOp : uint8_t { kChallenge = 1, kAuth, kGet, kPut, kExists, kErase, kPurge, kStat, kRecord, kDone };

struct PeerHeader {
  PeerOp op = PeerOp::kDone;
  Code status = Code::kOk;
  uint64_t id = 0;
  uint32_t count = 0, bytes = 0;
  BlockKey key;
  uint64_t space = 0;
  uint32_t ttl_s = 0;
  uint64_t body_sum = 0;
};

using PeerBytes = RecordBytes;

// What both sides set on their socket.
void set_peer_socket(int fd);

void encode_peer_header(const PeerHeader& header, std::span<std::byte, kPeerHeaderBytes> to);
// kDataLoss says what does not fit.
Result<PeerHeader> decode_peer_header(std::span<const std::byte, kPeerHeaderBytes> from);

struct PeerKey {
  BlockKey key;
  uint64_t id = 0;  // kGet only
};
PeerBytes encode_peer_keys(std::span<const PeerKey> keys, bool with_ids);
// kDataLoss unless the body holds exactly `count` of them, at most kPeerKeysMax.
Result<std::vector<PeerKey>> decode_peer_keys(std::span<const std::byte> body, uint32_t count, bool with_ids);

std::array<std::byte, 32> peer_proof(std::string_view token, std::span<const std::byte> challenge);
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Sends frames one after another. One thread.
class FrameSender {
 public:
  // `body` must not change until it is sent. Sets the header's length, and its checksum of the body unless it is a
  // record.
  void push(PeerHeader header, std::shared_ptr<const PeerBytes> body = nullptr);
  // As much as the socket takes now. False: the connection is broken.
  bool flush(int fd);
  bool empty() const { return frames_.empty(); }
  uint64_t bytes() const { return bytes_; }  // waiting

 private:
  struct Frame {
    std::array<std::byte, kPeerHeaderBytes> header;
    std::shared_ptr<const PeerBytes> body;
    size_t size() const { return kPeerHeaderBytes + (body ? body->size() : 0); }
  };
  std::deque<Frame> frames_;
  size_t sent_ = 0;  // of the first one
  uint64_t bytes_ = 0;
};

// Receives frames. One thread, or several under a lock.
class FrameReceiver {
 public:
  struct Handler {
    // Where the body goes; fewer bytes than it has: it is thrown away.
    std::function<std::span<std::byte>(const PeerHeader&)> place;
    // A whole frame; false ends the connection. `body` is where place() said, empty if it was thrown away.
    std::function<bool(const PeerHeader&, std::span<std::byte> body)> frame;
  };
  enum class Step : uint8_t { kMore, kEmpty, kBroken };

  explicit FrameReceiver(Handler handler) : handler_(std::move(handler)) {}
  // Receives once. kEmpty: nothing is there now; kBroken: the connection is, or it does not speak the protocol.
  Step receive(int fd);
  // The rest of the body that is coming is thrown away.
  void discard() { place_ = {}; }
  bool receiving(uint64_t id) const { return in_body_ && current_.id == id; }
  const Status& failure() const { return failure_; }

 private:
  bool head_done();
  bool body_done();

  Handler handler_;
  std::array<std::byte, kPeerHeaderBytes> head_ = {};
  size_t head_read_ = 0, body_read_ = 0;
  bool in_body_ = false;
  PeerHeader current_;
  std::span<std::byte> place_;  // empty: thrown away
  PeerBytes trash_;
  Status failure_;
};

}  // namespace deepinfer::kv
