// A device that takes its time at the points where threads hand over to each other, now and then: whatever the engine's
// threads do meanwhile, they do in another order than beside a steady one.
//
//   auto engine = Engine::create(std::make_unique<UnsteadyExecutor>(std::move(executor)), tokenizer, options);
#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "engine/executor.h"

namespace deepinfer::testing {

class UnsteadyExecutor : public engine::StepExecutor {
 private:
  template <class F>
  auto between(F&& call) {
    pause();
    auto result = call();
    pause();
    return result;
  }

  void pause() {
    const unsigned dice = random_() % 16;
    if (dice == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1000));
    if (dice < 4) std::this_thread::yield();
  }

 public:
  explicit UnsteadyExecutor(std::unique_ptr<engine::StepExecutor> executor) : executor_(std::move(executor)) {}

  const engine::ExecutorInfo& info() const override { return executor_->info(); }
  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override {
    return between([&] { return executor_->copy(ops, host); });
  }
  Status forward(const model::StepPlan& plan) override {
    return between([&] { return executor_->forward(plan); });
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
  std::mt19937 random_{5};
};

}  // namespace deepinfer::testing
