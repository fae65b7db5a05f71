// SIGINT, SIGTERM and SIGHUP as events of a long-running command.
//
//   Signals signals;                            // before any thread is started
//   load(&signals.stop_flag());
//   while (signals.wait() == Signals::kReload) reload();
//
// The first SIGINT or SIGTERM asks to stop; a second one ends the process at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace deepinfer::app {

class Signals {
 public:
  enum Event { kReload, kStop };

  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  const std::atomic<bool>& stop_flag() const { return stop_; }
  // Sleeps until one comes; kStop for ever after the first.
  Event wait();

 private:
  void watch();

  std::atomic<bool> stop_{false}, ending_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reload_ = false;
  std::thread watcher_;
};

}  // namespace deepinfer::app
