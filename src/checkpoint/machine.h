// What this machine offers for weights: GPUs, memory, disk.
//
//   Machine m = probe_machine("models/tiny");
//   m.ram_free; m.gpus.size(); m.disk_free;
//
// Memory is what the kernel calls available, further limited by the memory cgroups that this process is in (versions 1
// and 2). GPUs are found through the driver's libcuda.so.1 if it is there; no CUDA context is made and
// CUDA_VISIBLE_DEVICES counts. Nothing here fails: what cannot be read is 0 or empty.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::checkpoint {

struct Gpu {
  std::string name;
  uint64_t memory = 0;  // bytes in all
};

struct Machine {
  uint64_t ram_total = 0;  // installed, or the cgroup's limit where that is smaller
  uint64_t ram_free = 0;   // usable now, page cache included
  int cores = 1;
  std::vector<Gpu> gpus;
  uint64_t disk_free = 0;  // on the file system of the folder asked about
};

Machine probe_machine(const std::string& directory);

// Parts of it, on texts and folders given by the caller (for tests).
// Value of a line like "MemAvailable:   24000000 kB" in bytes; 0 if there is none.
uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key);
struct MemoryLimit {
  uint64_t limit = UINT64_MAX;
  uint64_t free = UINT64_MAX;
};
// Tightest limit on the way from this process's cgroups (`self`: content of /proc/self/cgroup) up to `root`
// (/sys/fs/cgroup).
MemoryLimit cgroup_memory(const std::string& root, std::string_view self);

}  // namespace deepinfer::checkpoint
