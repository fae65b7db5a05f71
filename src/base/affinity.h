// Where threads and memory of a large machine go, one core each, all memory nodes in turn, and which threads go first.
//
//   pin_to_core(3);                                      // this thread: the fourth core that the process may use
//   run_soon_after_waking();                             // this thread waits for devices
//   interleave(data, bytes);                             // pages that nobody has touched yet
//
// Wishes: what the system refuses, or where there is one node only, changes nothing.
#pragma once

#include <cstddef>

namespace deepinfer {

// The place counts modulo the cores of the process's affinity; false if the system refused.
bool pin_to_core(int place);

// For a thread that mostly sleeps and works briefly when a device has answered: the system shall run it soon after it
// wakes, before threads that compute. A short time slice (Linux 6.12) and, where the process may ask for it, a higher
// priority. False if the system refused both.
bool run_soon_after_waking();

// The core that this thread runs on, as the system numbers it; -1: not known.
int current_core();

// If this thread runs on `core` it goes on on another one, if it may use any; nothing keeps it from coming back.
bool leave_core(int core);

// Spreads the pages of [data, data + bytes) over all memory nodes, so that the threads of all of them read weights at
// the sum of their rates. data begins a page. False where there is one node or the system refused.
bool interleave(void* data, size_t bytes);

}  // namespace deepinfer
