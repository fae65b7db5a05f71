#include "engine/stats_line.h"

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

struct Fixture {
  StatsLine line;
  sched::Plan plan;
  sched::StepResult result;
  EngineStats stats;
  ExecutorInfo info;

  Fixture() {
    info.rows_max = 64;
    info.blocks = info.slots = 8;
    plan.step.sequences.push_back({.count = 8, .kind = model::RowKind::kPrefill});  // the rest comes later
    plan.step.sequences.push_back({.first_position = 20, .count = 3, .kind = model::RowKind::kVerify, .outputs = 3});
    plan.samples.push_back({.rows = 3});
    result.samples.resize(1);
    result.samples[0].tokens = {5, 6};
  }
  void step() { line.on_step({plan, result, {}, {0, 5e-6, 1e-5, 1e-3 + 1e-5, 2e-3, 3e-3}}); }
};

TEST(StatsLine, CountsAWindowAndBeginsANewOne) {
  Fixture f;
  f.step();
  f.step();
  EXPECT_EQ(f.line.steps(), 2);
  const std::string text = f.line.take(f.stats, f.info);
  EXPECT_TRUE(has(text, "step 2 (prefill)")) << text;
  EXPECT_TRUE(has(text, "drafts 2 of 4 accepted")) << text;
  EXPECT_TRUE(has(text, "chunked 2")) << text;
  EXPECT_TRUE(has(text, "11.0 rows a step, 17% full")) << text;
  EXPECT_TRUE(has(text, "contexts 8 to 23")) << text;
  EXPECT_TRUE(has(text, "forward 0 (1000)")) << text;
  EXPECT_FALSE(has(text, "GFLOP")) << text;
  EXPECT_EQ(f.line.steps(), 0);
}

TEST(StatsLine, WorkAndDraftsAreThoseOfTheWindow) {
  Fixture f;
  f.info.peak_flops = 1e12;
  f.stats.work = WorkStats{{8e9, 1e9, 1e9}, 30, 20};
  f.stats.times.forward = 0.5;
  f.stats.drafts.verified = {10, 5};
  f.stats.drafts.accepted = {5, 5};
  f.stats.drafts.verify_rows = 20;
  f.stats.drafts.turns = 10;
  f.stats.drafts.tokens = 20;
  f.step();
  std::string text = f.line.take(f.stats, f.info);
  EXPECT_TRUE(has(text, "10 GFLOP a step (10% attention, 10% index) | 0.02 TFLOP/s, attention 0.002, 2.0% of 1 (MFU)"))
      << text;
  EXPECT_TRUE(has(text, "experts: the busiest 1.50 of the mean")) << text;
  EXPECT_TRUE(has(text, "drafts accepted by place: 50% 100% | 2.00 verified and 2.00 tokens a step and answer\n"))
      << text;

  f.stats.work->work.linear += 5e9;
  f.stats.work->expert_busiest += 8;
  f.stats.work->expert_mean += 2;
  f.stats.times.forward += 0.1;
  f.stats.drafts.verified[0] += 4;
  f.stats.drafts.accepted[0] += 1;
  f.stats.drafts.confidence_judged = 4;
  f.stats.drafts.confidence_error = 1;
  f.step();
  text = f.line.take(f.stats, f.info);
  EXPECT_TRUE(has(text, "5 GFLOP a step (0% attention, 0% index) | 0.05 TFLOP/s, attention 0, 5.0% of 1 (MFU)"))
      << text;
  EXPECT_TRUE(has(text, "experts: the busiest 4.00 of the mean")) << text;
  EXPECT_TRUE(has(text, "by place: 25% | ")) << text;
  EXPECT_TRUE(has(text, "confidence off by 0.25")) << text;
}

}  // namespace
}  // namespace deepinfer::engine
