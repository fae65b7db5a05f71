// Digests of files as hubs name them: SHA-256 of the content (LFS), or the git blob id, SHA-1 of "blob SIZE\0" and the
// content.
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"

namespace deepinfer::checkpoint {

// Lower-case hex. `digits` is 64 for SHA-256 and 40 for a git blob id. kCancelled after *stop.
Result<std::string> digest_of_file(const std::string& path, size_t digits, const std::atomic<bool>* stop);

}  // namespace deepinfer::checkpoint
