// Destroys large objects on a thread of its own, so that a compile that has reached its limit ends at once and not
// after hundreds of milliseconds of freeing. Internal to the room.
//
//   discard(std::move(unique_ptr_to_something_large));      // from any thread; returns at once
//
// A few objects may wait; beyond that the caller's thread destroys them. What is handed over must not need its thread.
#pragma once

#include <memory>

namespace deepinfer::grammar {

void discard(std::shared_ptr<void> object);

}  // namespace deepinfer::grammar
