// Ctrl-C as a flag: while an Interrupt lives, SIGINT sets interrupted() instead of ending the program.
//
//   Interrupt interrupt;
//   while (!interrupt.flag()) work();
//
// One at a time. A second Ctrl-C while the first has not been seen for two seconds ends the program, in case the work
// hangs.
#pragma once

#include <atomic>

namespace deepinfer::app {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>& flag() const;
  void clear();
};

}  // namespace deepinfer::app
