#include "app/watch.h"

#include <unistd.h>

#include "app/options/command_options.h"
#include "app/terminal/terminal.h"
#include "engine/engine.h"
#include "engine/stats_line.h"
#include "engine/trace/writers.h"

namespace deepinfer::app {

namespace {

constexpr auto kTiersEvery = std::chrono::milliseconds(200);

}  // namespace

void bind_watch(CommandOptions& options, WatchFlags* flags) {
  options.bind("trace-steps", &flags->trace_steps);
  options.bind("trace-chrome", &flags->trace_chrome);
  options.bind("stats-interval", &flags->stats_interval);
}

Result<std::unique_ptr<Watch>> Watch::open(const WatchFlags& flags) {
  std::unique_ptr<Watch> self(new Watch);
  std::vector<std::shared_ptr<engine::StepObserver>> all;
  if (!flags.trace_steps.empty()) {
    DI_ASSIGN_OR_RETURN(self->steps_, engine::StepTrace::open(flags.trace_steps));
    all.push_back(self->steps_);
  }
  if (!flags.trace_chrome.empty()) {
    DI_ASSIGN_OR_RETURN(self->chrome_, engine::ChromeTrace::open(flags.trace_chrome));
    all.push_back(self->chrome_);
  }
  if (flags.stats_interval > 0) {
    self->interval_ = flags.stats_interval;
    self->stats_ = std::make_shared<engine::StatsLine>();
    all.push_back(self->stats_);
  }
  if (!all.empty()) self->observer_ = std::make_shared<engine::Observers>(std::move(all));
  return self;
}

Watch::~Watch() = default;

void Watch::begin(const engine::ExecutorInfo& info) {
  if (steps_) steps_->write_header(info);
}

void Watch::tick(engine::Engine& engine) {
  if (chrome_ && Clock::now() >= tiers_due_) {
    chrome_->write_tiers(engine.stats().tier_counts);
    tiers_due_ = Clock::now() + kTiersEvery;
  }
  if (!stats_ || stats_->steps() < interval_) return;
  write_out(STDERR_FILENO, stats_->take(engine.stats(), engine.info()));
}

void Watch::last_tick(engine::Engine& engine) {
  tiers_due_ = {};
  tick(engine);
}

Status Watch::close() {
  if (steps_) DI_RETURN_IF_ERROR(steps_->close());
  return chrome_ ? chrome_->close() : Status();
}

Ticker::Ticker(Watch& watch, engine::Engine& engine) {
  thread_ = std::thread([this, &watch, &engine] {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(500), [this] { return ending_; })) watch.tick(engine);
    watch.last_tick(engine);
  });
}

Ticker::~Ticker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

}  // namespace deepinfer::app
