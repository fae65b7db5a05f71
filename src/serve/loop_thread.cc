#include "serve/loop_thread.h"

#include <cstdio>
#include <ctime>
#include <exception>

namespace deepinfer::serve {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

}  // namespace

LoopThread::LoopThread() { update_clock(); }

LoopThread::~LoopThread() { stop(); }

void LoopThread::start() {
  tick();
  thread_ = std::thread([this] { run(); });
}

void LoopThread::run() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception& e) {  // out of memory, in one connection's work
      std::fprintf(stderr, "deepinfer: an I/O thread goes on after a failure: %s\n", e.what());
    }
  }
}

// One wake-up for all that is posted until the loop gets to it.
void LoopThread::post(std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(jobs_mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > 1) return;
  }
  asio::post(context_, [this] { run_jobs(); });
}

void LoopThread::run_jobs() {
  {
    const std::lock_guard<std::mutex> lock(jobs_mutex_);
    running_jobs_.swap(jobs_);
  }
  for (std::function<void()>& job : running_jobs_) job();
  running_jobs_.clear();
}

void LoopThread::stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stop_connections(true);
    timer_.cancel();
    work_.reset();
    context_.stop();
  });
  thread_.join();
}

void LoopThread::stop_connections(bool now) {
  // stop() may remove the connection from the set.
  const std::vector<Swept*> all(connections_.begin(), connections_.end());
  for (Swept* c : all) {
    if (connections_.contains(c)) c->stop(now);
  }
}

void LoopThread::update_clock() {
  now_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count();
  const std::time_t now_s = std::time(nullptr);
  if (now_s == date_s_ && !date_.empty()) return;
  date_s_ = now_s;
  std::tm parts = {};
  ::gmtime_r(&now_s, &parts);
  char text[40];
  date_.assign(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

void LoopThread::tick() {
  update_clock();
  const std::vector<Swept*> all(connections_.begin(), connections_.end());
  for (Swept* c : all) {
    if (connections_.contains(c)) c->sweep(now_ms());
  }
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) tick();
  });
}

}  // namespace deepinfer::serve
