// A block on its way to or from a tier: header, tokens, payload, checksum.
//
//   std::vector<std::byte> record(record_bytes(tokens.size(), page.size()));
//   seal_record(key, tokens, page, record);
//   DI_ASSIGN_OR_RETURN(auto payload, open_record(record, key, tokens));   // a view into `record`
//
// Layout, little endian: "DIKV", format version u32, key 16 bytes, token count u32, 4 zero bytes, payload bytes u64,
// tokens i32 each, payload, XXH3-64 over all before. open_record compares version, key, tokens and checksum, and trusts
// no length in the record; anything else is kDataLoss, which the caller counts as a miss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {

inline constexpr uint32_t kRecordVersion = 1;

size_t record_bytes(size_t tokens, size_t payload_bytes);
void seal_record(const BlockKey& key, std::span<const int32_t> tokens, std::span<const std::byte> payload,
                 std::span<std::byte> record);
// `checked`: the checksum was compared with these very bytes already (record_is_whole).
Result<std::span<const std::byte>> open_record(std::span<const std::byte> record, const BlockKey& key,
                                               std::span<const int32_t> tokens, bool checked = false);

// Whether the bytes are a record whose checksum fits, whatever its key and tokens.
bool record_is_whole(std::span<const std::byte> record);

// Copies a record and says whether the copy is whole. `to` gets all bytes either way.
bool copy_record(std::span<const std::byte> record, std::span<std::byte> to);

// The checksum that every store of KV uses: XXH3-64.
uint64_t kv_checksum(std::span<const std::byte> bytes);
// Copies the bytes and gives the checksum of the copy, in one pass over memory. They must not overlap.
uint64_t copy_checksum(std::span<const std::byte> bytes, std::byte* to);

}  // namespace deepinfer::kv
