// What stores that know only names and bytes keep beside a record (internal to kv/): its tenant and its time, behind
// its last byte.
//
//   append_trailer(bytes, {.space = 7, .expires_at = t, .ttl_s = 3600});
//   std::optional<Trailer> t = read_trailer(bytes);     // nothing: not written by us, or cut
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace deepinfer::kv {

inline constexpr size_t kTrailerBytes = 32;

struct Trailer {
  uint64_t space = 0;
  int64_t expires_at = 0;  // seconds of Unix time
  uint32_t ttl_s = 0;
};

void write_trailer(const Trailer& trailer, std::span<std::byte> to);
std::optional<Trailer> read_trailer(std::span<const std::byte> last_bytes);

}  // namespace deepinfer::kv
