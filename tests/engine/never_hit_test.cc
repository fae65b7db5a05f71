// A store that real models share, which differ in one part of a block's key each: nobody gets a block of another, and
// every answer is the cold one (design.md, decision 2). Images are no part of an engine's request; their part of the key
// is tested in unit/kv and unit/sched.
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "checkpoint/random_checkpoint.h"
#include "kv/host_tier.h"
#include "kv/tier_stack.h"
#include "tests/engine/support.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using testing::Collected;

constexpr int kPrompt = 450, kBorder = 384;

// A real model under another name of its layout or KV type.
class Renamed : public engine::StepExecutor {
 public:
  Renamed(std::unique_ptr<engine::StepExecutor> executor, const std::function<void(engine::ExecutorInfo*)>& change)
      : executor_(std::move(executor)), info_(executor_->info()) {
    change(&info_);
  }
  const engine::ExecutorInfo& info() const override { return info_; }
  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override { return executor_->copy(ops, host); }
  Status forward(const model::StepPlan& plan) override { return executor_->forward(plan); }
  Status forward_loading(const model::StepPlan& plan, engine::StepLoads& loads) override {
    return executor_->forward_loading(plan, loads);
  }
  Result<std::span<const float>> logits(int rows) override { return executor_->logits(rows); }

 private:
  const std::unique_ptr<engine::StepExecutor> executor_;
  engine::ExecutorInfo info_;
};

struct Variant {
  std::string name;
  std::string weights;  // a folder
  std::function<std::unique_ptr<ops::Ops>()> ops = [] { return ops::make_cpu_ops(2); };
  std::function<void(engine::ExecutorInfo*)> change = [](engine::ExecutorInfo*) {};
  std::string tenant;
  int32_t first_token = 7;  // as another template begins
  bool bounded = false;
};

struct Outcome {
  Collected answer;
  engine::EngineStats stats;
};

Outcome run(const Variant& v, std::shared_ptr<kv::Tier> tier) {
  engine::EngineOptions options;
  options.tier = std::move(tier);
  options.tier_wait_s = options.tier_flush_s = 60;
  options.bounded_replay = v.bounded;
  auto c = checkpoint::Checkpoint::open(v.weights);
  EXPECT_TRUE(c.ok()) << c.status().message();
  auto executor = engine::ModelExecutor::create(std::make_shared<const checkpoint::Checkpoint>(std::move(c).value()),
                                                v.ops(), {.context_max = 640, .sequences_max = 1, .rows_max = 128});
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  auto made =
      engine::Engine::create(std::make_unique<Renamed>(std::move(executor).value(), v.change), std::nullopt, options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  engine::Request r;
  r.prompt = testing::random_prompt(kPrompt, 3);
  r.prompt[0] = v.first_token;
  r.seed = 5;
  r.max_tokens = 4;
  r.logprobs = true;
  if (!v.tenant.empty()) r.tenant = made.value()->add_tenant(v.tenant, 1).value();
  Outcome out{.answer = testing::run(*made.value(), r)[0]};
  EXPECT_TRUE(made.value()->drain(60).ok());
  out.stats = made.value()->stats();
  return out;
}

TEST(NeverHit, WhateverPartOfTheKeyDiffers) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
  const fs::path other = fs::temp_directory_path() / ("deepinfer-never-hit-" + std::to_string(::getpid()));
  ASSERT_TRUE(checkpoint::write_random_checkpoint(checkpoint::tiny_config(), other, {.seed = 43}).ok());
  const std::string weights = testing::tiny_random_dir();
  const std::vector<Variant> variants = {
      {.name = "base", .weights = weights},
      {.name = "weights", .weights = other},
      {.name = "numeric class", .weights = weights, .ops = [] { return ops::make_plain_ops(2); }},
      {.name = "KV type",  // fp64 records in pages of another size, by the reference without rounding
       .weights = weights,
       .ops = [] { return ops::make_reference_ops(ops::ReferenceMode::kOff, 2); }},
      {.name = "layout's name", .weights = weights, .change = [](engine::ExecutorInfo* i) { i->layout += "-2"; }},
      {.name = "KV type's name", .weights = weights, .change = [](engine::ExecutorInfo* i) { i->kv_dtype += "-2"; }},
      {.name = "tenant", .weights = weights, .tenant = "acme"},
      {.name = "another tenant", .weights = weights, .tenant = "acme2"},
      {.name = "template", .weights = weights, .first_token = 8},
      {.name = "bounded replay", .weights = weights, .bounded = true}};
  const auto shared = std::make_shared<kv::TierStack>(std::vector<std::shared_ptr<kv::Tier>>{
      std::make_shared<kv::HostTier>(kv::HostTierOptions{.bytes_max = 1 << 30})});
  std::vector<Collected> cold;
  for (const Variant& v : variants) {
    SCOPED_TRACE(v.name);
    cold.push_back(run(v, nullptr).answer);
    const Outcome first = run(v, shared);  // beside the blocks of all before it
    EXPECT_EQ(first.answer.usage.cached_tokens, 0);
    EXPECT_EQ(first.stats.tier.hits, 0);
    EXPECT_GT(first.stats.tier.missing, 0);
    EXPECT_EQ(first.answer.tokens, cold.back().tokens);
    EXPECT_EQ(first.answer.logprobs, cold.back().logprobs);
  }
  // Each finds its own, and the same answer but for the approximation that was asked for.
  for (size_t i = 0; i < variants.size(); ++i) {
    SCOPED_TRACE(variants[i].name);
    const Outcome again = run(variants[i], shared);
    EXPECT_EQ(again.answer.usage.cached_tokens, kBorder);
    EXPECT_GT(again.stats.tier.hits, 0);
    EXPECT_EQ(again.stats.tier.damaged, 0);
    if (variants[i].bounded) continue;
    EXPECT_EQ(again.answer.tokens, cold[i].tokens);
    EXPECT_EQ(again.answer.logprobs, cold[i].logprobs);
  }
  fs::remove_all(other);
}

}  // namespace
}  // namespace deepinfer
