#include "app/terminal/signals.h"

#include <signal.h>
#include <unistd.h>

#include "app/terminal/result.h"

namespace deepinfer::app {
namespace {

sigset_t watched() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR2}) ::sigaddset(&set, s);
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by all threads that come
  watcher_ = std::thread([this] { watch(); });
}

Signals::~Signals() {
  ending_ = true;
  ::pthread_kill(watcher_.native_handle(), SIGUSR2);
  watcher_.join();
}

void Signals::watch() {
  const sigset_t set = watched();
  while (true) {
    int signal = 0;
    if (::sigwait(&set, &signal) != 0) continue;
    if (signal == SIGUSR2) {
      if (ending_) return;
      continue;
    }
    if (signal != SIGHUP && stop_.exchange(true)) ::_exit(kExitInterrupted);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reload_ |= signal == SIGHUP;
    }
    changed_.notify_all();
  }
}

Signals::Event Signals::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reload_ || stop_; });
  if (stop_) return kStop;
  reload_ = false;
  return kReload;
}

}  // namespace deepinfer::app
