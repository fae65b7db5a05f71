// How much memory this process may still take, so that a need can be refused with a sentence before it is allocated.
//
//   MemoryRoom room = available_memory();
//   if (needed > room.bytes) return make_error(..., "needs {}, {} {}", needed, room.bytes, room.limited_by);
//
// The least of: MemAvailable of /proc/meminfo, what the control groups (v1 and v2) leave, and the address-space limit.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

struct MemoryRoom {
  uint64_t bytes = ~uint64_t{0};
  std::string
      limited_by;  // "free on this machine", "left in the control group", "left of the address-space limit (ulimit -v)"
};

MemoryRoom available_memory();

// Memory of this process that is no file's and not shared; 0 if the system does not say.
uint64_t own_memory();

}  // namespace deepinfer
