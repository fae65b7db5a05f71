// What watches an engine because the user asked for it: traces, and a line of statistics now and then.
//
//   WatchFlags flags;  bind_watch(*options, &flags);
//   DI_ASSIGN_OR_RETURN(auto watch, Watch::open(flags));
//   engine_options.observer = watch->observer();                    // null if nothing is asked for
//   watch->begin(engine->info());
//   watch->tick(*engine);                                           // now and then, or: Ticker ticker(*watch,
//                                                                   *engine);
//   DI_RETURN_IF_ERROR(watch->close());                             // once the engine has ended
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"

namespace deepinfer::engine {
class ChromeTrace;
class Engine;
class StatsLine;
class StepObserver;
class StepTrace;
struct ExecutorInfo;
}  // namespace deepinfer::engine

namespace deepinfer::app {

class CommandOptions;

struct WatchFlags {
  std::string trace_steps, trace_chrome;
  int stats_interval = 0;
};

void bind_watch(CommandOptions& options, WatchFlags* flags);

class Watch {
 public:
  static Result<std::unique_ptr<Watch>> open(const WatchFlags& flags);
  ~Watch();

  std::shared_ptr<engine::StepObserver> observer() const { return observer_; }
  void begin(const engine::ExecutorInfo& info);
  // Writes figures of the KV tiers to the trace of times, and prints the line of statistics to standard error, where
  // due.
  void tick(engine::Engine& engine);
  void last_tick(engine::Engine& engine);  // all figures of tiers up to the end, due or not
  Status close();

 private:
  using Clock = std::chrono::steady_clock;

  Watch() = default;
  int interval_ = 0;
  std::shared_ptr<engine::StepTrace> steps_;
  std::shared_ptr<engine::ChromeTrace> chrome_;
  Clock::time_point tiers_due_ = {};
  std::shared_ptr<engine::StatsLine> stats_;
  std::shared_ptr<engine::StepObserver> observer_;
};

// Ticks on a thread of its own while it lives, for commands that only wait. Both must outlive it.
class Ticker {
 public:
  Ticker(Watch& watch, engine::Engine& engine);
  ~Ticker();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::app
