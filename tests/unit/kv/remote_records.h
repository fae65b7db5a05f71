// Records that the tests of remote stores put and expect back: key, tokens and payload follow from a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/record.h"

namespace deepinfer::kv::remote_records {

inline constexpr size_t kPayload = 20000;

inline BlockKey key_of(uint32_t i) {
  BlockKey k;
  for (size_t b = 0; b < 4; ++b) k.bytes[b] = static_cast<uint8_t>(i >> (8 * b));
  k.bytes[9] = static_cast<uint8_t>(i * 37);
  return k;
}

inline std::vector<std::byte> record_of(uint32_t i) {
  std::vector<std::byte> record(record_bytes(8, kPayload));
  seal_record(key_of(i), std::vector<int32_t>(8, static_cast<int32_t>(i)),
              std::vector<std::byte>(kPayload, static_cast<std::byte>(i)), record);
  return record;
}

}  // namespace deepinfer::kv::remote_records
