#include "app/terminal/interrupt.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "app/terminal/result.h"

namespace deepinfer::app {
namespace {

constexpr int64_t kPatienceS = 2;

std::atomic<bool> g_interrupted{false};
std::atomic<int64_t> g_since_s{0};
struct sigaction g_previous;

static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t now_s() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec;
}

void on_signal(int) {
  if (!g_interrupted.exchange(true)) {
    g_since_s = now_s();
  } else if (now_s() - g_since_s >= kPatienceS) {
    ::_exit(kExitInterrupted);
  }
}

}  // namespace

Interrupt::Interrupt() {
  g_interrupted = false;
  struct sigaction action {};
  action.sa_handler = &on_signal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &g_previous);
}

Interrupt::~Interrupt() { ::sigaction(SIGINT, &g_previous, nullptr); }

const std::atomic<bool>& Interrupt::flag() const { return g_interrupted; }

void Interrupt::clear() { g_interrupted = false; }

}  // namespace deepinfer::app
