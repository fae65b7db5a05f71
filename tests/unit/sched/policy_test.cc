// Shares, priorities, order of preemption, cancellation, deadlines, ends.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

SchedulerConfig one_at_a_time() {
  SchedulerConfig c = small_config();
  c.slots = c.sequences_max = 1;
  return c;
}

TEST(Shares, FollowTheWeights) {
  Driver d(one_at_a_time());
  const int32_t light = d.s->add_tenant("light", 1).value(), heavy = d.s->add_tenant("heavy", 3).value();
  std::map<int64_t, int32_t> owner;
  for (int i = 0; i < 60; ++i) {
    for (int32_t t : {light, heavy})
      owner[d.submit({.prompt = prompt_of(10, 20 * i + 1000 * t), .max_tokens = 2, .tenant = t})] = t;
  }
  d.drain();
  int served = 0;
  for (int i = 0; i < 40; ++i) served += owner[d.order[i]] == heavy;
  EXPECT_NEAR(served, 30, 2);
}

TEST(Shares, AFloodDelaysNobodyElse) {
  Driver d(one_at_a_time());
  const int32_t flood = d.s->add_tenant("flood", 1).value(), calm = d.s->add_tenant("calm", 1).value();
  for (int i = 0; i < 100; ++i) d.submit({.prompt = prompt_of(10, 20 * i), .max_tokens = 2, .tenant = flood});
  for (int i = 0; i < 20; ++i) d.step();
  const int64_t id = d.submit({.prompt = prompt_of(10, 9000), .max_tokens = 2, .tenant = calm});
  const size_t before = d.order.size();
  d.drain();
  const auto place = std::ranges::find(d.order, id) - d.order.begin() - static_cast<int64_t>(before);
  EXPECT_LE(place, 2) << "it is next, behind the one that runs";
}

TEST(Shares, IdlingEarnsNothing) {
  Driver d(one_at_a_time());
  const int32_t busy = d.s->add_tenant("busy", 1).value(), idle = d.s->add_tenant("idle", 1).value();
  std::map<int64_t, int32_t> owner;
  for (int i = 0; i < 60; ++i)
    owner[d.submit({.prompt = prompt_of(10, 20 * i), .max_tokens = 2, .tenant = busy})] = busy;
  while (d.order.size() < 30) d.step();
  for (int i = 0; i < 30; ++i)
    owner[d.submit({.prompt = prompt_of(10, 5000 + 20 * i), .max_tokens = 2, .tenant = idle})] = idle;
  d.drain();
  int served = 0;
  for (int i = 30; i < 50; ++i) served += owner[d.order[i]] == busy;
  EXPECT_NEAR(served, 10, 2) << "the newcomer does not catch up on what it did not use";
}

TEST(Shares, APriorityDoublesThem) {
  Driver d(one_at_a_time());
  std::map<int64_t, int> priority;
  for (int i = 0; i < 60; ++i) {
    for (int p : {0, 1})
      priority[d.submit({.prompt = prompt_of(10, 20 * i), .max_tokens = 2, .priority = p, .cache = false})] = p;
  }
  d.drain();
  int served = 0;
  for (int i = 0; i < 45; ++i) served += priority[d.order[i]];
  EXPECT_NEAR(served, 30, 2);
}

TEST(Admission, OthersPassOneThatDoesNotFitButNotForEver) {
  SchedulerConfig c = small_config();
  c.blocks = 20;
  c.prefix_cache = false;
  c.skips_max = 2;
  Driver d(c);
  const int32_t big_one = d.s->add_tenant("big", 1).value(), small = d.s->add_tenant("small", 1).value();
  d.submit({.prompt = prompt_of(80), .max_tokens = 60});
  d.step();
  const int64_t big = d.submit({.prompt = prompt_of(100, 500), .max_tokens = 1, .tenant = big_one});
  std::vector<int64_t> small_ones;
  for (int i = 0; i < 5; ++i)
    small_ones.push_back(d.submit({.prompt = prompt_of(8, 1000 + 10 * i), .max_tokens = 1, .tenant = small}));
  d.drain();
  const auto place = [&](int64_t id) { return std::ranges::find(d.order, id) - d.order.begin(); };
  EXPECT_LT(place(small_ones[1]), place(big));
  EXPECT_GT(place(small_ones[2]), place(big)) << "after two it is not passed again";
}

TEST(Preemption, TakesTheLowestPriorityThenTheLatest) {
  for (bool spill : {true, false}) {
    SchedulerConfig c = small_config();
    c.blocks = 12;
    c.spill = spill;
    Driver d(c);
    const int64_t old_low = d.submit({.prompt = prompt_of(20), .max_tokens = 30, .priority = -1});
    const int64_t old = d.submit({.prompt = prompt_of(20, 100), .max_tokens = 30});
    const int64_t young = d.submit({.prompt = prompt_of(20, 200), .max_tokens = 30});
    std::vector<int64_t> victims;
    for (int i = 0; i < 400 && d.s->has_work(); ++i) {
      d.step();
      for (int64_t id : {old_low, old, young}) {
        if (d.s->progress(id).preemptions > 0 && std::ranges::find(victims, id) == victims.end()) victims.push_back(id);
      }
    }
    ASSERT_GE(victims.size(), 1u);
    EXPECT_EQ(victims[0], old_low);
    EXPECT_EQ(std::ranges::count(victims, old), 0) << "the first in order never has to yield";
    EXPECT_EQ(spill ? d.s->stats().spilled > 0 : d.s->stats().recomputed > 0, true);
    EXPECT_EQ(d.ended.size(), 3u);
    EXPECT_TRUE(d.s->check_accounting().ok());
  }
}

TEST(Preemption, RecomputingKeepsDecoderBeginAndRunsEveryRowFromThere) {
  SchedulerConfig c = small_config();
  c.blocks = 9;
  c.spill = false;
  c.prefix_cache = false;
  Driver d(c);
  d.submit({.prompt = prompt_of(24), .max_tokens = 30});
  const int64_t id = d.submit({.prompt = prompt_of(20, 100), .max_tokens = 30});
  int32_t known = 0;
  bool again = false;
  while (d.s->has_work()) {
    const bool before = d.s->progress(id).preemptions > 0;
    d.step();
    const model::StepSequence* s = d.rows_of(id);
    if (s != nullptr) {
      EXPECT_EQ(s->decoder_begin, 12);
    }
    if (before && s != nullptr && !again) {
      again = true;
      EXPECT_EQ(s->first_position, 0);
      EXPECT_EQ(s->count, known);
      EXPECT_GT(known, 20) << "generated rows run again too";
    }
    known = std::max(known, static_cast<int32_t>(d.s->tokens(id).size()));
  }
  EXPECT_TRUE(again);
}

TEST(Preemption, WhoWasPreemptedOftenIsPreemptedNoMore) {
  SchedulerConfig c = small_config();
  c.blocks = 12;
  c.preemptions_max = 2;
  c.prefix_cache = false;
  Driver d(c);
  const int64_t low = d.submit({.prompt = prompt_of(20), .max_tokens = 60, .priority = -1});
  int worst = 0;
  for (int i = 0; i < 600 && !d.ended.contains(low); ++i) {
    if (d.s->stats().waiting < 2) d.submit({.prompt = prompt_of(20, 100 * i), .max_tokens = 20, .priority = 0});
    d.step();
    worst = std::max(worst, d.s->progress(low).preemptions);
  }
  EXPECT_TRUE(d.ended.contains(low));
  EXPECT_EQ(worst, 3) << "once more than preemptions_max";
  d.drain();
}

TEST(Ends, CancelInEveryState) {
  for (int at = 0; at < 40; ++at) {
    for (bool async : {false, true}) {
      SchedulerConfig c = small_config();
      c.blocks = 14;
      c.rows_max = 8;
      Driver d(c);
      std::vector<int64_t> ids;
      for (int i = 0; i < 3; ++i)
        ids.push_back(d.submit({.prompt = prompt_of(22, 100 * i), .max_tokens = 25, .samples = i == 1 ? 2 : 1}));
      for (int i = 0; i < at; ++i) d.step(async);
      d.s->cancel(ids[0]);
      d.s->cancel(ids[1] + 1);
      d.s->cancel(ids[2]);
      d.s->cancel(ids[2]);
      d.s->cancel(12345);
      d.drain(async);
      EXPECT_EQ(d.ended.size(), 4u);
      if (at < 10) {
        EXPECT_EQ(d.ended[ids[1] + 1], EndReason::kCancelled);
      }
      EXPECT_EQ(d.ended[ids[1]], EndReason::kMaxTokens) << "the other answer to the prompt goes on";
    }
  }
}

TEST(Ends, CancellingTheFirstAnswerLeavesTheOthers) {
  Driver d(small_config());
  const int64_t id = d.submit({.prompt = prompt_of(22), .max_tokens = 5, .samples = 3});
  d.s->cancel(id);
  d.drain(true);
  EXPECT_EQ(d.ended[id], EndReason::kCancelled);
  EXPECT_EQ(d.ended[id + 1], EndReason::kMaxTokens);
  EXPECT_EQ(d.ended[id + 2], EndReason::kMaxTokens);
}

TEST(Ends, Deadlines) {
  Driver d(one_at_a_time());
  const int64_t runs = d.submit({.prompt = prompt_of(10), .max_tokens = 100, .deadline_s = 20});
  const int64_t waits = d.submit({.prompt = prompt_of(10), .max_tokens = 100, .deadline_s = 5});
  const int64_t stays = d.submit({.prompt = prompt_of(10), .max_tokens = 3});
  d.drain();
  EXPECT_EQ(d.ended[runs], EndReason::kDeadline);
  EXPECT_EQ(d.ended[waits], EndReason::kDeadline);
  EXPECT_EQ(d.ended[stays], EndReason::kMaxTokens);
  EXPECT_EQ(d.order, (std::vector<int64_t>{waits, runs, stays}));
}

TEST(Ends, ContextAndMemoryRunOut) {
  SchedulerConfig c = small_config();
  c.context_max = 40;
  Driver d(c);
  const int64_t full = d.submit({.prompt = prompt_of(10)});
  d.drain();
  EXPECT_EQ(d.ended[full], EndReason::kContextFull);
  EXPECT_EQ(d.rows[full], 39);
  c.context_max = 256;
  c.blocks = 4;
  Driver e(c);
  const int64_t kv = e.submit({.prompt = prompt_of(10)});
  const int64_t other = e.submit({.prompt = prompt_of(10, 50), .max_tokens = 4});
  e.drain();
  EXPECT_EQ(e.ended[kv], EndReason::kKvFull);
  EXPECT_EQ(e.rows[kv], 32);
  EXPECT_EQ(e.ended[other], EndReason::kMaxTokens);
}

TEST(Ends, AFailedSequenceEndsAloneAndIsNotCached) {
  Driver d(small_config());
  const int64_t bad = d.submit({.prompt = prompt_of(24), .max_tokens = 5});
  const int64_t good = d.submit({.prompt = prompt_of(24, 100), .max_tokens = 5});
  d.s->plan(1);
  d.s->commit({.samples = {{}, {.tokens = {7}}}, .failed = {bad}}, 1);
  d.drain();
  EXPECT_EQ(d.ended[bad], EndReason::kFailed);
  EXPECT_EQ(d.ended[good], EndReason::kMaxTokens);
  const int64_t again = d.submit({.prompt = prompt_of(24), .max_tokens = 2});
  d.step();
  EXPECT_EQ(d.s->progress(again).cached_tokens, 0);
  d.drain();
  // A prompt whose first answer was cancelled only carries the others; when it fails, they fail and nothing is cached
  // either.
  const int64_t carrier = d.submit({.prompt = prompt_of(24, 500), .max_tokens = 5, .samples = 2});
  d.s->cancel(carrier);
  d.s->plan(100);
  d.s->commit({.samples = {{}, {}}, .failed = {carrier}}, 100);
  d.drain();
  EXPECT_EQ(d.ended[carrier], EndReason::kCancelled);
  EXPECT_EQ(d.ended[carrier + 1], EndReason::kFailed);
  const int64_t last = d.submit({.prompt = prompt_of(24, 500), .max_tokens = 2});
  d.step();
  EXPECT_EQ(d.s->progress(last).cached_tokens, 0);
  d.drain();
}

// It has made room for the next sequence when its step is only half planned, and that one's draw would be one too many.
TEST(Policy, ACarrierOfOtherAnswersCountsAmongTheDrawsOfItsStep) {
  SchedulerConfig config = small_config();
  config.sequences_max = config.outputs_max = 2;
  Driver d(config);
  const int64_t carrier = d.submit({.prompt = prompt_of(24), .max_tokens = 3, .samples = 2});
  const int64_t other = d.submit({.prompt = prompt_of(24, 100), .max_tokens = 3});
  d.s->cancel(carrier);
  const Plan& plan = d.s->plan(1);
  EXPECT_EQ(plan.samples.size(), 2u);
  d.s->commit({.samples = {{.tokens = {7}}, {.tokens = {7}}}}, 1);
  d.drain();
  EXPECT_EQ(d.ended[carrier], EndReason::kCancelled);
  EXPECT_EQ(d.ended[carrier + 1], EndReason::kMaxTokens);
  EXPECT_EQ(d.ended[other], EndReason::kMaxTokens);
}

}  // namespace
}  // namespace deepinfer::sched
