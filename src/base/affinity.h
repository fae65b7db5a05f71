// Where threads and memory of a large machine go: one core each, all memory nodes in turn.
//
//   pin_to_core(3);                                      // this thread: the fourth core that the process may use
//   interleave(data, bytes);                             // pages that nobody has touched yet
//
// Wishes: what the system refuses, or where there is one node only, changes nothing.
#pragma once

#include <cstddef>

namespace deepinfer {

// The place counts modulo the cores of the process's affinity; false if the system refused.
bool pin_to_core(int place);

// Spreads the pages of [data, data + bytes) over all memory nodes, so that the threads of all of them read weights at
// the sum of their rates. data begins a page. False where there is one node or the system refused.
bool interleave(void* data, size_t bytes);

}  // namespace deepinfer
