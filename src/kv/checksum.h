// XXH3-64 in the widest instructions that the processor has (internal to kv/; use kv_checksum and copy_record of
// kv/record.h). The same number from each: xxHash defines it whatever the instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::kv {

uint64_t checksum_plain(const void* bytes, size_t count);
uint64_t checksum_avx2(const void* bytes, size_t count);    // only where __builtin_cpu_supports says so
uint64_t checksum_avx512(const void* bytes, size_t count);

// Copies the bytes and gives their checksum, in one pass where the instructions allow it. They must not overlap.
uint64_t copy_checksum_plain(const void* from, void* to, size_t count);
uint64_t copy_checksum_avx2(const void* from, void* to, size_t count);
uint64_t copy_checksum_avx512(const void* from, void* to, size_t count);

}  // namespace deepinfer::kv
