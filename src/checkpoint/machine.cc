#include "checkpoint/machine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include <dlfcn.h>
#include <sys/statvfs.h>

#include "base/thread_pool.h"

namespace deepinfer::checkpoint {
namespace {

// Files of /proc and /sys report a size of 0, so they are read to their end.
std::string read_pseudo_file(const std::string& path) {
  std::string text;
  std::FILE* f = std::fopen(path.c_str(), "re");
  if (f == nullptr) return text;
  std::array<char, 4096> buffer;
  while (text.size() < (1 << 20)) {
    const size_t n = std::fread(buffer.data(), 1, buffer.size(), f);
    if (n == 0) break;
    text.append(buffer.data(), n);
  }
  std::fclose(f);
  return text;
}

// A number at the start of the text; UINT64_MAX for "max", for nothing and for what does not fit.
uint64_t limit_value(std::string_view text) {
  uint64_t v = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
  return r.ec == std::errc() ? v : UINT64_MAX;
}

// Narrows `limit` by one cgroup folder: limit and usage files, and how much of the usage is page cache.
void narrow(const std::string& folder, const char* limit_file, const char* usage_file, std::string_view cache_key,
            MemoryLimit* limit) {
  const uint64_t most = limit_value(read_pseudo_file(folder + "/" + limit_file));
  if (most >= uint64_t{1} << 60) return;  // version 1 writes a huge number for "no limit"
  limit->limit = std::min(limit->limit, most);
  const uint64_t usage = limit_value(read_pseudo_file(folder + "/" + usage_file));
  if (usage == UINT64_MAX) return;
  const std::string stat = read_pseudo_file(folder + "/memory.stat");
  uint64_t cache = 0;
  const size_t at = stat.find(std::string(cache_key) + " ");
  if (at != std::string::npos && (at == 0 || stat[at - 1] == '\n'))
    cache = limit_value(std::string_view(stat).substr(at + cache_key.size() + 1));
  const uint64_t held = usage > cache ? usage - cache : 0;
  limit->free = std::min(limit->free, most > held ? most - held : 0);
}

// The driver entry points that are needed, by their documented signatures.
struct CudaDriver {
  int (*init)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(size_t*, int) = nullptr;

  bool load(void* library) {
    const auto find = [library](auto* entry, const char* symbol) {
      *entry = reinterpret_cast<std::remove_pointer_t<decltype(entry)>>(::dlsym(library, symbol));
      return *entry != nullptr;
    };
    return find(&init, "cuInit") && find(&count, "cuDeviceGetCount") && find(&get, "cuDeviceGet") &&
           find(&name, "cuDeviceGetName") && find(&memory, "cuDeviceTotalMem_v2");
  }
};

std::vector<Gpu> find_gpus() {
  std::vector<Gpu> gpus;
  // stays open: the driver does not like to be unloaded
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CudaDriver cuda;
  int n = 0;
  if (library == nullptr || !cuda.load(library) || cuda.init(0) != 0 || cuda.count(&n) != 0) return gpus;
  for (int i = 0; i < n; ++i) {
    int device = 0;
    std::array<char, 256> name{};
    size_t bytes = 0;
    if (cuda.get(&device, i) != 0 || cuda.memory(&bytes, device) != 0) continue;
    if (cuda.name(name.data(), static_cast<int>(name.size()) - 1, device) != 0) name[0] = '\0';
    gpus.push_back({name.data(), bytes});
  }
  return gpus;
}

}  // namespace

uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key) {
  const size_t at = meminfo.find(std::string(key) + ":");
  if (at == std::string_view::npos || (at > 0 && meminfo[at - 1] != '\n')) return 0;
  std::string_view rest = meminfo.substr(at + key.size() + 1);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  const uint64_t kib = limit_value(rest);
  return kib > UINT64_MAX / 1024 ? 0 : kib * 1024;
}

MemoryLimit cgroup_memory(const std::string& root, std::string_view self) {
  MemoryLimit limit;
  while (!self.empty()) {
    const size_t end = std::min(self.find('\n'), self.size());
    const std::string_view line = self.substr(0, end);
    self.remove_prefix(std::min(end + 1, self.size()));
    // ID:CONTROLLERS:PATH, with no controllers for version 2.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const bool version2 = controllers == ",,", version1 = controllers.find(",memory,") != std::string::npos;
    if (!version1 && !version2) continue;
    const std::string base = version2 ? root : root + "/memory";
    for (std::string path(line.substr(second + 1));; path.resize(path.find_last_of('/'))) {
      if (version2) narrow(base + path, "memory.max", "memory.current", "file", &limit);
      else narrow(base + path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", &limit);
      if (path.find_last_of('/') == std::string::npos) break;
    }
  }
  return limit;
}

Machine probe_machine(const std::string& directory) {
  Machine m;
  const std::string meminfo = read_pseudo_file("/proc/meminfo");
  const MemoryLimit limit = cgroup_memory("/sys/fs/cgroup", read_pseudo_file("/proc/self/cgroup"));
  m.ram_total = std::min(meminfo_bytes(meminfo, "MemTotal"), limit.limit);
  m.ram_free = std::min(meminfo_bytes(meminfo, "MemAvailable"), limit.free);
  m.cores = available_cores();
  m.gpus = find_gpus();
  struct statvfs fs {};
  if (::statvfs(directory.c_str(), &fs) == 0) m.disk_free = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  return m;
}

}  // namespace deepinfer::checkpoint
