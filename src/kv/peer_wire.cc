#include "kv/peer_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr char kMagic[4] = {'D', 'I', 'K', 'P'};
constexpr size_t kSumAt = 64, kPartsMax = 64, kTrashBytes = 64u << 10;

void put(std::byte* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t get(const std::byte* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  return value;
}

bool carries_record(PeerOp op) { return op == PeerOp::kPut || op == PeerOp::kRecord; }

}  // namespace

void set_peer_socket(int fd) {
  const int one = 1, bytes = kPeerSendBytes;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void encode_peer_header(const PeerHeader& h, std::span<std::byte, kPeerHeaderBytes> to) {
  std::byte* at = to.data();
  std::memcpy(at, kMagic, 4);
  put(at + 4, kPeerVersion, 1);
  put(at + 5, static_cast<uint64_t>(h.op), 1);
  put(at + 6, static_cast<uint64_t>(h.status), 1);
  put(at + 7, 0, 1);
  put(at + 8, h.id, 8);
  put(at + 16, h.count, 4);
  put(at + 20, h.bytes, 4);
  std::memcpy(at + 24, h.key.bytes.data(), 16);
  put(at + 40, h.space, 8);
  put(at + 48, h.ttl_s, 4);
  put(at + 52, 0, 4);
  put(at + 56, h.body_sum, 8);
  put(at + kSumAt, kv_checksum(std::span<const std::byte>(to).first(kSumAt)), 8);
}

Result<PeerHeader> decode_peer_header(std::span<const std::byte, kPeerHeaderBytes> from) {
  const auto bad = [](std::string_view what) { return make_error(Code::kDataLoss, "A KV peer's frame {}.", what); };
  const std::byte* at = from.data();
  if (std::memcmp(at, kMagic, 4) != 0) return bad("is of another protocol");
  if (get(at + 4, 1) != kPeerVersion) return bad("is of another version");
  if (get(at + kSumAt, 8) != kv_checksum(std::span<const std::byte>(from).first(kSumAt))) return bad("is damaged");
  PeerHeader h;
  const uint64_t op = get(at + 5, 1), status = get(at + 6, 1);
  if (op < static_cast<uint64_t>(PeerOp::kChallenge) || op > static_cast<uint64_t>(PeerOp::kDone) ||
      status > static_cast<uint64_t>(Code::kInternal) || get(at + 7, 1) != 0 || get(at + 52, 4) != 0)
    return bad("says what nobody understands");
  h.op = static_cast<PeerOp>(op);
  h.status = static_cast<Code>(status);
  h.id = get(at + 8, 8);
  h.count = static_cast<uint32_t>(get(at + 16, 4));
  h.bytes = static_cast<uint32_t>(get(at + 20, 4));
  std::memcpy(h.key.bytes.data(), at + 24, 16);
  h.space = get(at + 40, 8);
  h.ttl_s = static_cast<uint32_t>(get(at + 48, 4));
  h.body_sum = get(at + 56, 8);
  if (h.bytes > kPeerBodyMax) return bad("is too long");
  return h;
}

PeerBytes encode_peer_keys(std::span<const PeerKey> keys, bool with_ids) {
  const size_t each = with_ids ? 24 : 16;
  PeerBytes out(keys.size() * each);
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(out.data() + i * each, keys[i].key.bytes.data(), 16);
    if (with_ids) put(out.data() + i * each + 16, keys[i].id, 8);
  }
  return out;
}

Result<std::vector<PeerKey>> decode_peer_keys(std::span<const std::byte> body, uint32_t count, bool with_ids) {
  const size_t each = with_ids ? 24 : 16;
  if (count > kPeerKeysMax || body.size() != count * each)
    return make_error(Code::kDataLoss, "A KV peer's frame with {} keys has {} bytes.", count, body.size());
  std::vector<PeerKey> keys(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(keys[i].key.bytes.data(), body.data() + i * each, 16);
    if (with_ids) keys[i].id = get(body.data() + i * each + 16, 8);
  }
  return keys;
}

std::array<std::byte, 32> peer_proof(std::string_view token, std::span<const std::byte> challenge) {
  std::array<std::byte, 32> out = {};
  unsigned n = 0;
  ::HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
         reinterpret_cast<const unsigned char*>(challenge.data()), challenge.size(),
         reinterpret_cast<unsigned char*>(out.data()), &n);
  return out;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// ---- sending --------------------------------------------------------------------------------------------------------

void FrameSender::push(PeerHeader header, std::shared_ptr<const PeerBytes> body) {
  header.bytes = body ? static_cast<uint32_t>(body->size()) : 0;
  header.body_sum = body && !carries_record(header.op) ? kv_checksum(*body) : 0;
  Frame& f = frames_.emplace_back();
  encode_peer_header(header, f.header);
  f.body = std::move(body);
  bytes_ += f.size();
}

bool FrameSender::flush(int fd) {
  while (!frames_.empty()) {
    std::array<iovec, kPartsMax> parts;
    size_t count = 0, skip = sent_;
    for (const Frame& f : frames_) {
      if (count + 2 > parts.size()) break;
      const std::span<const std::byte> pieces[2] = {f.header,
                                                    f.body ? std::span(*f.body) : std::span<const std::byte>()};
      for (std::span<const std::byte> piece : pieces) {
        const size_t gone = std::min(skip, piece.size());
        skip -= gone;
        piece = piece.subspan(gone);
        if (!piece.empty()) parts[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
      }
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    bytes_ -= static_cast<uint64_t>(n);
    sent_ += static_cast<size_t>(n);
    for (; !frames_.empty() && sent_ >= frames_.front().size(); frames_.pop_front()) sent_ -= frames_.front().size();
  }
  return true;
}

// ---- receiving ------------------------------------------------------------------------------------------------------

bool FrameReceiver::head_done() {
  Result<PeerHeader> h = decode_peer_header(head_);
  head_read_ = 0;
  if (!h.ok()) {
    failure_ = h.status();
    return false;
  }
  current_ = h.value();
  body_read_ = 0;
  if (current_.bytes == 0) return handler_.frame(current_, {});
  in_body_ = true;
  place_ = handler_.place(current_);
  place_ = place_.size() >= current_.bytes ? place_.first(current_.bytes) : std::span<std::byte>();
  return true;
}

bool FrameReceiver::body_done() {
  in_body_ = false;
  if (!place_.empty() && !carries_record(current_.op) && kv_checksum(place_) != current_.body_sum) {
    failure_ = Status(Code::kDataLoss, "A KV peer's frame is damaged.");
    return false;
  }
  return handler_.frame(current_, place_);
}

FrameReceiver::Step FrameReceiver::receive(int fd) {
  // The rest of a body and the header behind it in one call.
  std::array<iovec, 2> parts;
  size_t count = 0, body = 0;
  if (in_body_) {
    body = current_.bytes - body_read_;
    if (place_.empty()) {
      trash_.resize(kTrashBytes);
      body = std::min(body, trash_.size());
      parts[count++] = {trash_.data(), body};
    } else {
      parts[count++] = {place_.data() + body_read_, body};
    }
  }
  const bool to_the_end = !in_body_ || body_read_ + body == current_.bytes;
  if (to_the_end) parts[count++] = {head_.data() + head_read_, kPeerHeaderBytes - head_read_};
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  ssize_t n = 0;
  do {
    n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Step::kEmpty;
  if (n <= 0) {
    failure_ = Status(Code::kUnavailable, n == 0 ? "the connection was closed" : std::strerror(errno));
    return Step::kBroken;
  }
  const size_t of_body = std::min(static_cast<size_t>(n), body);
  if (in_body_) {
    body_read_ += of_body;
    if (body_read_ == current_.bytes && !body_done()) return Step::kBroken;
  }
  head_read_ += static_cast<size_t>(n) - of_body;
  if (head_read_ == kPeerHeaderBytes && !head_done()) return Step::kBroken;
  return Step::kMore;
}

}  // namespace deepinfer::kv
