#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

namespace deepinfer {
namespace {

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// The number behind `key` at the start of a line ("MemAvailable:" in kB, "inactive_file" in bytes).
uint64_t value_of(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    uint64_t value = 0;
    return rest >> value ? value : 0;
  }
  return 0;
}

void lower(MemoryRoom* room, uint64_t bytes, const char* what) {
  if (bytes < room->bytes) *room = {bytes, what};
}

// Limit minus use of one group; page cache that can be dropped does not count as used.
void consider_group(MemoryRoom* room, const std::string& dir, const char* limit_name, const char* use_name,
                    const char* cache_key) {
  const std::optional<uint64_t> limit = number_in(dir + "/" + limit_name), use = number_in(dir + "/" + use_name);
  if (!limit || !use) return;  // "max", or no such controller
  const uint64_t cache = value_of(dir + "/memory.stat", cache_key);
  const uint64_t used = *use > cache ? *use - cache : 0;
  lower(room, *limit > used ? *limit - used : 0, "left in the control group");
}

void consider_groups(MemoryRoom* room) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (a == std::string::npos || b == std::string::npos) continue;
    const std::string controllers = line.substr(a + 1, b - a - 1);
    std::string path = line.substr(b + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    while (true) {  // limits of the groups above hold as well
      if (v2) {
        consider_group(room, "/sys/fs/cgroup" + path, "memory.max", "memory.current", "inactive_file ");
      } else {
        consider_group(room, "/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                       "total_inactive_file ");
      }
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
}

}  // namespace

MemoryRoom available_memory() {
  MemoryRoom room;
  if (const uint64_t kib = value_of("/proc/meminfo", "MemAvailable:"); kib > 0) {
    lower(&room, kib * 1024, "free on this machine");
  }
  consider_groups(&room);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const uint64_t used = number_in("/proc/self/statm").value_or(0) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    lower(&room, limit.rlim_cur > used ? limit.rlim_cur - used : 0, "left of the address-space limit (ulimit -v)");
  }
  return room;
}

uint64_t own_memory() { return value_of("/proc/self/status", "RssAnon:") * 1024; }

}  // namespace deepinfer
