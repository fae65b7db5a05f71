// The rows of single steps: overlap, chunks, budgets, drafts, forks, images.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

TEST(Steps, OverlappingPlansNameTheDrawOfTheStepBefore) {
  Driver d(small_config());
  const int64_t a = d.submit({.prompt = prompt_of(10), .max_tokens = 4});
  const int64_t b = d.submit({.prompt = prompt_of(5, 50), .max_tokens = 4});
  Plan p = d.step(true);
  ASSERT_EQ(p.samples.size(), 2u);
  EXPECT_EQ(p.step.tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 51, 52, 53, 54}));
  p = d.step(true);
  EXPECT_EQ(p.step.tokens, (std::vector<int32_t>{-1, -2}));
  EXPECT_EQ(d.rows_of(a)->first_position, 10);
  EXPECT_EQ(p.step.history, (std::vector<int32_t>{9, 8, 7, 54, 53, 52}));
  EXPECT_EQ(p.samples[1].position, 6);
  p = d.step(true);
  EXPECT_EQ(p.step.tokens, (std::vector<int32_t>{-1, -2}));
  EXPECT_EQ(p.step.history[0], static_cast<int32_t>(a * 1000 + 10)) << "the draw that is committed by now";
  d.drain(true);
  EXPECT_EQ(d.ended[a], EndReason::kMaxTokens);
  EXPECT_EQ(d.rows[a], 10 + 3) << "the end by max_tokens is known in advance: no row is wasted";
  EXPECT_EQ(d.rows[b], 5 + 3);
}

TEST(Steps, AStopIsSeenOneStepLateAndCostsOneRow) {
  Driver d(small_config());
  const int64_t id = d.submit({.prompt = prompt_of(10), .max_tokens = 50});
  d.tokens[{id, 14}] = Driver::kStop;
  d.drain(true);
  EXPECT_EQ(d.ended[id], EndReason::kStop);
  EXPECT_EQ(d.rows[id], 10 + 5);
  EXPECT_EQ(d.s->stats().late_rows, 1);
}

TEST(Steps, EveryRunningSequenceDecodesInEveryStep) {
  for (bool async : {false, true}) {
    Driver d(small_config());
    for (int i = 0; i < 4; ++i) d.submit({.prompt = prompt_of(6, 10 * i), .max_tokens = 40});
    d.step(async);
    for (int i = 0; i < 39; ++i) EXPECT_EQ(d.step(async).step.sequences.size(), 4u) << i;
    d.drain(async);
  }
}

TEST(Steps, TailAndFullPrefillInOneStep) {
  Driver d(small_config());
  const int64_t tail = d.submit({.prompt = prompt_of(20), .max_tokens = 2});
  const int64_t full =
      d.submit({.prompt = prompt_of(6, 40), .max_tokens = 2, .prefill = Prefill::kFull, .prompt_outputs = true});
  const int64_t tiny = d.submit({.prompt = prompt_of(7, 70), .max_tokens = 2});
  d.step();
  EXPECT_EQ(d.rows_of(tail)->decoder_begin, 12);
  EXPECT_EQ(d.rows_of(tail)->outputs, 1);
  EXPECT_EQ(d.rows_of(full)->decoder_begin, 0);
  EXPECT_EQ(d.rows_of(full)->outputs, 6);
  EXPECT_EQ(d.rows_of(tiny)->decoder_begin, 0) << "shorter than KEEP";
  EXPECT_EQ(d.last.samples[1].logits_row, 6) << "the last of its rows";
  d.step();
  EXPECT_EQ(d.rows_of(tail)->decoder_begin, 12);
  d.drain();
}

TEST(Steps, PromptLogitsKeepToTheLimitOfOutputs) {
  Driver d(small_config());  // 8 logits rows
  d.submit({.prompt = prompt_of(30), .max_tokens = 1, .prefill = Prefill::kFull, .prompt_outputs = true});
  int rows = 0;
  while (d.s->has_work()) {
    const Plan& p = d.step();
    for (const model::StepSequence& s : p.step.sequences) {
      EXPECT_EQ(s.outputs, s.count);
      EXPECT_LE(s.outputs, 8);
      rows += s.outputs;
    }
  }
  EXPECT_EQ(rows, 30);
}

TEST(Steps, PrefillBesideDecodeKeepsTheLatencyBudget) {
  SchedulerConfig c = small_config();
  c.step_target_s = 0.020;
  c.rows_max = 64;
  Driver d(c);
  d.s->set_cost({.base_s = 0.005, .decode_row_s = 0.001, .prefill_row_s = 0.001});
  d.submit({.prompt = prompt_of(8), .max_tokens = 100});
  EXPECT_EQ(d.step().step.tokens.size(), 8u);
  const int64_t long_one = d.submit({.prompt = prompt_of(150, 100), .max_tokens = 5});
  EXPECT_EQ(d.step().step.tokens.size(), 1u + 14u) << "5 ms + 1 decode row + 14 prefill rows = 20 ms";
  EXPECT_EQ(d.rows_of(long_one)->kind, model::RowKind::kPrefill);
  d.s->set_cost({.base_s = 0.5, .decode_row_s = 0.001, .prefill_row_s = 0.001});
  EXPECT_EQ(d.step().step.tokens.size(), 1u + 4u) << "never less than prefill_rows_min";
  d.drain();
}

TEST(Steps, ShortPromptsPassALongOne) {
  SchedulerConfig c = small_config();
  c.rows_max = 16;
  Driver d(c);
  const int64_t long_one = d.submit({.prompt = prompt_of(200), .max_tokens = 1});
  d.step();
  const int64_t short_one = d.submit({.prompt = prompt_of(10, 500), .max_tokens = 1});
  d.drain();
  EXPECT_EQ(d.order, (std::vector<int64_t>{long_one, short_one}))
      << "the budget is all taken while only one is admitted";
  // Admitted together they share the rows.
  Driver e(c);
  const int64_t first = e.submit({.prompt = prompt_of(14), .max_tokens = 100});
  e.submit({.prompt = prompt_of(200, 300), .max_tokens = 1});
  const int64_t last = e.submit({.prompt = prompt_of(16, 700), .max_tokens = 1});
  for (int i = 0; i < 40 && !e.ended.contains(last); ++i) e.step();
  EXPECT_TRUE(e.ended.contains(last));
  EXPECT_FALSE(e.ended.contains(first));
  e.drain();
}

TEST(Steps, DraftRowsAreVerifiedAndRolledBack) {
  SchedulerConfig c = small_config();
  c.drafts_max = 3;
  Driver d(c);
  const int64_t id = d.submit({.prompt = prompt_of(10), .max_tokens = 6});
  d.step();
  ASSERT_TRUE(d.s->set_drafts(id, std::vector<int32_t>{71, 72, 73}).ok());
  const Plan& p = d.s->plan(5);
  ASSERT_EQ(p.step.sequences.size(), 1u);
  EXPECT_EQ(p.step.sequences[0].kind, model::RowKind::kVerify);
  EXPECT_EQ(p.step.sequences[0].count, 4);
  EXPECT_EQ(p.step.sequences[0].outputs, 4);
  EXPECT_EQ(p.step.tokens, (std::vector<int32_t>{static_cast<int32_t>(id * 1000 + 10), 71, 72, 73}));
  EXPECT_EQ(p.samples[0].rows, 4);
  EXPECT_EQ(p.samples[0].position, 11);
  StepResult result;
  result.samples.push_back({.tokens = {71, 72, 99}});  // two accepted, then another
  d.s->commit(result, 6);
  EXPECT_EQ(std::vector<int32_t>(d.s->tokens(id).begin() + 11, d.s->tokens(id).end()),
            (std::vector<int32_t>{71, 72, 99}));
  ASSERT_TRUE(d.s->set_drafts(id, std::vector<int32_t>{5, 5, 5}).ok());
  d.step();
  EXPECT_EQ(d.rows_of(id)->first_position, 13) << "the rejected row is run again with the right token";
  EXPECT_EQ(d.last.step.tokens[0], 99);
  EXPECT_EQ(d.rows_of(id)->count, 2) << "two tokens are left: one draft is of use";
  d.drain();
  EXPECT_EQ(d.ended[id], EndReason::kMaxTokens);
}

// The rings hold rows from the last plan that fed them after one that did not.
// A step in flight whose drafts are not known when the next one is planned.
TEST(Steps, RowsAreKeptForDraftsThatAreStillToBeMade) {
  SchedulerConfig c = small_config();
  c.drafts_max = 3;
  c.keep = 16;
  c.drafts_ahead = true;
  Driver d(c);
  const int64_t a = d.submit({.prompt = prompt_of(10), .max_tokens = 9}),
                b = d.submit({.prompt = prompt_of(12, 50), .max_tokens = 40});
  const auto tokens_of = [](const Plan& p, size_t i) {
    const model::StepSequence& s = p.step.sequences[i];
    return std::vector<int32_t>(p.step.tokens.begin() + s.first_token, p.step.tokens.begin() + s.first_token + s.count);
  };
  const Plan& first = d.s->plan(1);  // both prompts
  ASSERT_EQ(first.samples.size(), 2u);
  d.s->set_draft_rows(a, 2);
  d.s->set_draft_rows(b, 1);
  const Plan& second = d.s->plan(2);  // while the first one runs
  EXPECT_EQ(d.s->draft_rows_kept(), 3);
  EXPECT_EQ(d.s->draft_room(a), 3);
  const std::vector<int32_t> drawn_a = {100}, drawn_b = {200}, drafts_a = {101}, drafts_b = {201, 202, 203};
  // The rows kept are shared anew: one of a's goes to b.
  d.s->place_drafts(std::array{PlacedDrafts{drawn_a, drafts_a}, PlacedDrafts{drawn_b, drafts_b}});
  EXPECT_EQ(tokens_of(second, 0), (std::vector<int32_t>{100, 101}));
  EXPECT_EQ(tokens_of(second, 1), (std::vector<int32_t>{200, 201, 202}));
  EXPECT_EQ(second.step.sequences[1].first_position, 12);
  EXPECT_EQ(second.samples[1].logits_row, 2);
  EXPECT_EQ(second.samples[1].rows, 3);
  EXPECT_EQ(second.samples[1].position, 13);
  d.s->commit({.samples = {{.tokens = drawn_a}, {.tokens = drawn_b}}, .failed = {}}, 3);
  // The third one is planned behind all drafts, and placed where they really ended: b's are refused, a's is not.
  d.s->set_draft_rows(b, 2);
  const Plan& third = d.s->plan(4);
  ASSERT_EQ(third.step.sequences.size(), 2u);
  EXPECT_EQ(third.step.sequences[1].first_position, 15);
  const std::vector<int32_t> two = {101, 102}, one = {300}, more = {301, 302};
  d.s->place_drafts(std::array{PlacedDrafts{two, {}}, PlacedDrafts{one, more}});
  EXPECT_EQ(third.step.sequences[0].first_position, 12);
  EXPECT_EQ(tokens_of(third, 0), (std::vector<int32_t>{102}));
  EXPECT_EQ(third.step.sequences[1].first_position, 13);
  EXPECT_EQ(tokens_of(third, 1), (std::vector<int32_t>{300, 301, 302}));
  const int h = c.history_tokens;
  EXPECT_EQ(std::vector<int32_t>(third.step.history.begin() + h, third.step.history.begin() + 2 * h),
            (std::vector<int32_t>{200, 61, 60}));
  d.s->commit({.samples = {{.tokens = two}, {.tokens = one}}, .failed = {}}, 5);
  EXPECT_EQ(d.s->tokens(a).size(), 13u);
  EXPECT_EQ(d.s->tokens(b).size(), 14u);
  // An end that is seen late: b's rows of the plan that is open already are dropped.
  d.s->set_draft_rows(a, 3);
  const Plan& fourth = d.s->plan(6);
  const std::vector<int32_t> a3 = {103}, a_drafts = {104, 105, 106}, b3 = {301, 302, 303};
  d.s->place_drafts(std::array{PlacedDrafts{a3, a_drafts}, PlacedDrafts{b3, {}}});
  EXPECT_EQ(fourth.step.sequences[0].count, 4);
  d.s->commit({.samples = {{.tokens = a3}, {.tokens = {301, 302}, .stop = true}}, .failed = {}}, 7);
  d.s->commit({.samples = {{.tokens = {104, 105, 106, 107}}, {.tokens = {304}}}, .failed = {}}, 8);
  EXPECT_EQ(d.s->tokens(a).size(), 18u);
  EXPECT_TRUE(d.s->tokens(b).empty()) << "it has ended";
  d.drain();
}

TEST(Steps, DraftRingsBeginWhereTheyWereFed) {
  SchedulerConfig c = small_config();
  c.drafts_max = 3;
  Driver d(c);
  const int64_t id = d.submit({.prompt = prompt_of(10), .max_tokens = 20});
  d.step();
  EXPECT_TRUE(d.last.step.feeds_drafter);
  EXPECT_EQ(d.rows_of(id)->draft_begin, 0);
  d.s->set_feeds_drafter(false);
  d.step();
  EXPECT_FALSE(d.last.step.feeds_drafter);
  EXPECT_EQ(d.rows_of(id)->draft_begin, 11) << "behind the row that was not fed";
  ASSERT_TRUE(d.s->set_drafts(id, std::vector<int32_t>{5, 5, 5}).ok());
  d.step();
  EXPECT_EQ(d.rows_of(id)->draft_begin, 15);
  d.s->set_feeds_drafter(true);
  d.step();
  EXPECT_EQ(d.rows_of(id)->draft_begin, 12) << "rejected rows run again";
  d.step();
  EXPECT_EQ(d.rows_of(id)->draft_begin, 12);
  d.s->cancel(id);
  d.drain();
}

TEST(Steps, DraftsDoNotCrowdOutPrompts) {
  SchedulerConfig c = small_config();
  c.drafts_max = 3;
  c.rows_max = 8;
  Driver d(c);
  const int64_t a = d.submit({.prompt = prompt_of(4), .max_tokens = 100}),
                b = d.submit({.prompt = prompt_of(4, 50), .max_tokens = 100});
  d.step();
  const int64_t prompt = d.submit({.prompt = prompt_of(12, 100), .max_tokens = 1});
  for (int i = 0; i < 5 && !d.ended.contains(prompt); ++i) {
    for (int64_t id : {a, b}) ASSERT_TRUE(d.s->set_drafts(id, std::vector<int32_t>{1, 2, 3}).ok());
    d.step();
  }
  EXPECT_TRUE(d.ended.contains(prompt));
  d.s->cancel(a);
  d.s->cancel(b);
  d.drain();
}

TEST(Steps, AnswersToOnePromptForkBehindIt) {
  Driver d(small_config());
  const int64_t id = d.submit({.prompt = prompt_of(20), .max_tokens = 3, .samples = 3, .cache = false});
  const Plan first = d.step();
  ASSERT_EQ(first.step.sequences.size(), 1u);
  ASSERT_EQ(first.samples.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first.samples[i].id, id + i);
    EXPECT_EQ(first.samples[i].sample, static_cast<uint32_t>(i));
    EXPECT_EQ(first.samples[i].logits_row, 0);
    EXPECT_EQ(first.samples[i].position, 20);
  }
  EXPECT_EQ(64 - d.s->blocks().free_count(), 3) << "the blocks are shared";
  const Plan second = d.step();
  EXPECT_EQ(d.ops[MemoryOp::Kind::kCopySlot], 2);
  EXPECT_EQ(d.ops[MemoryOp::Kind::kCopyBlock], 2) << "the last holder writes in place";
  EXPECT_EQ(second.step.sequences.size(), 3u);
  EXPECT_EQ(64 - d.s->blocks().free_count(), 5);
  d.drain();
  EXPECT_EQ(d.ended.size(), 3u);
}

TEST(Steps, ImagesHaveRowsAndHideTheirTokens) {
  Driver d(small_config());
  Request r{.prompt = prompt_of(12), .max_tokens = 1};
  r.images.push_back({.begin = 4, .count = 3, .first_row = 100});
  d.submit(std::move(r));
  const Plan& p = d.step();
  EXPECT_EQ(p.step.image_rows, (std::vector<int32_t>{-1, -1, -1, -1, 100, 101, 102, -1, -1, -1, -1, -1}));
  d.drain();
  SchedulerConfig c = small_config();
  c.rows_max = 7;
  Driver e(c);
  Request s{.prompt = prompt_of(12), .max_tokens = 1};
  s.images.push_back({.begin = 4, .count = 2});
  e.submit(std::move(s));
  e.step();
  EXPECT_EQ(e.step().step.history, (std::vector<int32_t>{6, INT32_MIN, INT32_MIN}));
  e.drain();
}

}  // namespace
}  // namespace deepinfer::sched
