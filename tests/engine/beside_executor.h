// A device that says that it leaves the host its cores: the engine then works with two threads. An unsteady one takes its
// time where they hand over to each other, now and then: whatever they do meanwhile, they do in another order than
// beside a steady one.
//
//   auto engine = Engine::create(std::make_unique<BesideExecutor>(std::move(executor), true), tokenizer, options);
#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "engine/executor.h"

namespace deepinfer::testing {

class BesideExecutor : public engine::StepExecutor {
 private:
  template <class F>
  auto between(F&& call) {
    pause();
    auto result = call();
    pause();
    return result;
  }

  void pause() {
    if (!unsteady_) return;
    const unsigned dice = random_() % 16;
    if (dice == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1000));
    if (dice < 4) std::this_thread::yield();
  }

 public:
  BesideExecutor(std::unique_ptr<engine::StepExecutor> executor, bool unsteady)
      : executor_(std::move(executor)), info_(executor_->info()), unsteady_(unsteady) {
    info_.leaves_cores = true;
  }

  const engine::ExecutorInfo& info() const override { return info_; }
  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override {
    return between([&] { return executor_->copy(ops, host); });
  }
  Status forward(const model::StepPlan& plan) override {
    return between([&] { return executor_->forward(plan); });
  }
  Status forward_loading(const model::StepPlan& plan, engine::StepLoads& loads) override {
    return between([&] { return executor_->forward_loading(plan, loads); });
  }
  Result<std::span<const float>> logits(int rows) override {
    return between([&] { return executor_->logits(rows); });
  }
  Status draft(const model::DraftPlan& plan, const DraftChooser& choose, std::span<int32_t> tokens,
               std::span<float> confidence) override {
    return between([&] { return executor_->draft(plan, choose, tokens, confidence); });
  }

 private:
  const std::unique_ptr<engine::StepExecutor> executor_;
  engine::ExecutorInfo info_;
  const bool unsteady_;
  std::mt19937 random_{5};
};

}  // namespace deepinfer::testing
