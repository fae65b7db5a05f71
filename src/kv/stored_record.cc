#include "kv/stored_record.h"

#include <cstring>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr char kMagic[4] = {'D', 'I', 'T', '1'};

struct Packed {
  char magic[4];
  uint32_t ttl_s;
  uint64_t space;
  int64_t expires_at;
  uint64_t checksum;
};
static_assert(sizeof(Packed) == kTrailerBytes);

uint64_t checksum_of(const Packed& p) {
  return kv_checksum(std::as_bytes(std::span(&p, 1)).first(offsetof(Packed, checksum)));
}

}  // namespace

void write_trailer(const Trailer& trailer, std::span<std::byte> to) {
  Packed p{.magic = {},
           .ttl_s = trailer.ttl_s,
           .space = trailer.space,
           .expires_at = trailer.expires_at,
           .checksum = 0};
  std::memcpy(p.magic, kMagic, sizeof p.magic);
  p.checksum = checksum_of(p);
  std::memcpy(to.data(), &p, sizeof p);
}

std::optional<Trailer> read_trailer(std::span<const std::byte> last_bytes) {
  Packed p;
  if (last_bytes.size() < sizeof p) return std::nullopt;
  std::memcpy(&p, last_bytes.last(sizeof p).data(), sizeof p);
  if (std::memcmp(p.magic, kMagic, sizeof p.magic) != 0 || p.checksum != checksum_of(p)) return std::nullopt;
  return Trailer{.space = p.space, .expires_at = p.expires_at, .ttl_s = p.ttl_s};
}

}  // namespace deepinfer::kv
