// One I/O thread with its connections (internal to serve/; includes Asio).
//
// Timeouts are swept a few times a second instead of being timers of their own: a request then costs no timer.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "serve/exchange.h"

namespace deepinfer::serve {

namespace asio = boost::asio;

// What the sweep sees of a connection.
class Swept {
 public:
  virtual ~Swept() = default;
  virtual void sweep(int64_t now_ms) = 0;
  // Ends it: now, or once its response is done.
  virtual void stop(bool now) = 0;
};

class LoopThread : public Loop {
 public:
  using Executor = asio::io_context::executor_type;

  LoopThread();
  ~LoopThread() override;

  void start();
  void stop();  // joins

  void post(std::function<void()> job) override;
  int64_t now_ms() const override { return now_ms_.load(std::memory_order_relaxed); }
  asio::io_context& context() { return context_; }
  // The Date header's value; on the loop's thread.
  const std::string& date() const { return date_; }

  // On the loop's thread.
  void add(Swept* connection) { connections_.insert(connection); }
  void remove(Swept* connection) { connections_.erase(connection); }
  void stop_connections(bool now);
  size_t connections() const { return connections_.size(); }

 private:
  void run();
  void run_jobs();
  void tick();
  void update_clock();

  std::unordered_set<Swept*> connections_;  // order is of no meaning: each is treated alone
  asio::io_context context_{1};             // its end ends the connections
  asio::executor_work_guard<Executor> work_{context_.get_executor()};
  asio::steady_timer timer_{context_};
  std::mutex jobs_mutex_;
  std::vector<std::function<void()>> jobs_, running_jobs_;
  std::atomic<int64_t> now_ms_{0};
  std::string date_;
  int64_t date_s_ = 0;
  std::thread thread_;
};

}  // namespace deepinfer::serve
