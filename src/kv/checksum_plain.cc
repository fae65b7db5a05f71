#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/checksum.h"

namespace deepinfer::kv {

uint64_t checksum_plain(const void* bytes, size_t count) { return XXH3_64bits(bytes, count); }

}  // namespace deepinfer::kv
