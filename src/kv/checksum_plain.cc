#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "kv/checksum.h"

namespace deepinfer::kv {

uint64_t checksum_plain(const void* bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t copy_checksum_plain(const void* from, void* to, size_t count) {
  if (count > 0) std::memcpy(to, from, count);
  return XXH3_64bits(to, count);  // of the copy: it is in the processor's cache
}

}  // namespace deepinfer::kv
