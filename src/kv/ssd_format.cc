#include "kv/ssd_format.h"

#include <cstring>

#include "base/io_queue.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr char kFrameMagic[4] = {'D', 'I', 'S', 'F'};
constexpr char kIndexMagic[4] = {'D', 'I', 'S', 'I'};
constexpr uint64_t kRecordBytesMax = 1ull << 32;

// What is in a frame header, byte for byte; the checksum covers all before it.
struct Packed {
  char magic[4];
  uint32_t version;
  uint32_t segment;
  uint32_t ttl_s;
  uint64_t sequence;
  uint64_t offset;
  uint8_t key[16];
  uint64_t space;
  uint64_t bytes;
  int64_t expires_at;
  uint64_t checksum;
};
static_assert(sizeof(Packed) == 80 && sizeof(Packed) <= kFrameHeaderBytes);

uint64_t checksum_of(const Packed& p) {
  return kv_checksum(std::as_bytes(std::span(&p, 1)).first(offsetof(Packed, checksum)));
}

Packed pack(const FrameHeader& h) {
  Packed p{};
  std::memcpy(p.magic, kFrameMagic, 4);
  p.version = kSsdVersion;
  p.segment = h.segment;
  p.sequence = h.sequence;
  p.offset = h.offset;
  std::memcpy(p.key, h.key.bytes.data(), sizeof p.key);
  p.space = h.space;
  p.bytes = h.bytes;
  p.expires_at = h.expires_at;
  p.ttl_s = h.ttl_s;
  p.checksum = checksum_of(p);
  return p;
}

bool unpack(const Packed& p, FrameHeader* h) {
  if (std::memcmp(p.magic, kFrameMagic, 4) != 0 || p.version != kSsdVersion || p.checksum != checksum_of(p))
    return false;
  if (p.bytes > kRecordBytesMax) return false;
  h->sequence = p.sequence;
  h->segment = p.segment;
  h->offset = p.offset;
  std::memcpy(h->key.bytes.data(), p.key, sizeof p.key);
  h->space = p.space;
  h->bytes = p.bytes;
  h->expires_at = p.expires_at;
  h->ttl_s = p.ttl_s;
  return true;
}

}  // namespace

size_t frame_bytes(size_t record_bytes) { return io_aligned(kFrameHeaderBytes + record_bytes); }

void write_frame_header(const FrameHeader& header, std::span<std::byte> to) {
  const Packed p = pack(header);
  std::memset(to.data(), 0, kFrameHeaderBytes);
  std::memcpy(to.data(), &p, sizeof p);
}

Result<FrameHeader> read_frame_header(std::span<const std::byte> from, uint32_t segment, uint64_t offset) {
  Packed p;
  FrameHeader h;
  if (from.size() >= sizeof p) {
    std::memcpy(&p, from.data(), sizeof p);
    if (unpack(p, &h) && h.segment == segment && h.offset == offset) return h;
  }
  return make_error(Code::kDataLoss, "no frame at {} of segment {}", offset, segment_name(segment));
}

std::string segment_name(uint32_t segment) { return fmt::format("{:08x}.kv", segment); }
std::string index_name(uint32_t segment) { return fmt::format("{:08x}.idx", segment); }
std::string spare_name(uint32_t segment) { return fmt::format("{:08x}.spare", segment); }

bool parse_segment_name(const std::string& name, uint32_t* segment) {
  if (name.size() != 11 || !name.ends_with(".kv")) return false;
  uint32_t value = 0;
  for (const char c : name.substr(0, 8)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  *segment = value;
  return true;
}

std::string encode_index(std::span<const FrameHeader> frames) {
  std::string out(kIndexMagic, 4);
  const auto count = static_cast<uint32_t>(frames.size());
  out.append(reinterpret_cast<const char*>(&count), 4);
  for (const FrameHeader& h : frames) {
    const Packed p = pack(h);
    out.append(reinterpret_cast<const char*>(&p), sizeof p);
  }
  const uint64_t sum = kv_checksum(std::as_bytes(std::span(out)));
  out.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return out;
}

Result<std::vector<FrameHeader>> decode_index(std::string_view bytes, uint32_t segment) {
  const auto bad = [segment] {
    return make_error(Code::kDataLoss, "{} is damaged; the segment is read instead", index_name(segment));
  };
  uint32_t count = 0;
  uint64_t sum = 0;
  if (bytes.size() < 16 || std::memcmp(bytes.data(), kIndexMagic, 4) != 0) return bad();
  std::memcpy(&count, bytes.data() + 4, 4);
  if (bytes.size() != 16 + count * sizeof(Packed)) return bad();
  std::memcpy(&sum, bytes.data() + bytes.size() - 8, 8);
  if (sum != kv_checksum(std::as_bytes(std::span(bytes)).first(bytes.size() - 8))) return bad();
  std::vector<FrameHeader> out(count);
  for (uint32_t i = 0; i < count; ++i) {
    Packed p;
    std::memcpy(&p, bytes.data() + 8 + i * sizeof p, sizeof p);
    if (!unpack(p, &out[i]) || out[i].segment != segment) return bad();
  }
  return out;
}

}  // namespace deepinfer::kv
