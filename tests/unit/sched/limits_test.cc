// What is refused, and how: configurations that cannot work, requests over a limit.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

TEST(Config, KeepBelowTheMinimumIsRefusedWithTheNumbers) {
  SchedulerConfig c = small_config();
  c.keep = 6;  // window 4 + backtrack 2
  EXPECT_TRUE(check(c).ok());
  c.keep = 5;
  const Status status = check(c);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("KEEP is 5"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("raise it to 6"), std::string::npos) << status.message();
  c.keep = 8;
  c.drafts_max = 5;  // 5 + 1 is more than the backtracking
  EXPECT_NE(check(c).message().find("raise it to 10"), std::string::npos) << check(c).message();
}

TEST(Config, SizesThatCannotWorkAreRefused) {
  const auto refused = [](void (*change)(SchedulerConfig&)) {
    SchedulerConfig c = small_config();
    change(c);
    return !check(c).ok() && !Scheduler::create(c).ok();
  };
  EXPECT_FALSE(refused([](SchedulerConfig&) {}));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.blocks = 0; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.slots = 0; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.rows_max = 3; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.outputs_max = 3; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.ring_slots = 5; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.context_max = 1; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.skips_max = -1; }));
  EXPECT_TRUE(refused([](SchedulerConfig& c) { c.blocks_per_step_max = 31; }));
}

TEST(Submit, NamesTheLimitAndCountsIt) {
  SchedulerConfig c = small_config();
  c.blocks = 20;  // 160 tokens
  c.waiting_max = 2;
  c.samples_max = 3;
  c.tenants_max = 2;
  Driver d(c);
  const auto refusal = [&](Request r, Limit limit) {
    const int64_t before = d.s->stats().limit_hits[static_cast<int>(limit)];
    const Status status = d.s->submit(std::move(r), 0).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.message().find(limit_name(limit)), std::string::npos) << status.message();
    EXPECT_EQ(d.s->stats().limit_hits[static_cast<int>(limit)], before + 1);
  };
  refusal({.prompt = prompt_of(256)}, Limit::kContext);
  refusal({.prompt = prompt_of(200)}, Limit::kBlocks);
  refusal({.prompt = prompt_of(9), .samples = 4}, Limit::kSamples);
  d.submit({.prompt = prompt_of(9), .max_tokens = 1});
  d.submit({.prompt = prompt_of(9), .max_tokens = 1});
  refusal({.prompt = prompt_of(9)}, Limit::kWaiting);
  d.drain();
  EXPECT_TRUE(d.s->add_tenant("a", 1).ok());
  EXPECT_EQ(d.s->add_tenant("b", 1).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(d.s->set_drafts(1, std::vector<int32_t>{1}).code(), Code::kResourceExhausted);
}

TEST(Submit, SamplesNeedSlots) {
  SchedulerConfig c = small_config();
  c.slots = 2;
  Driver d(c);
  EXPECT_NE(d.s->submit({.prompt = prompt_of(4), .samples = 3}, 0).status().message().find("slots"), std::string::npos);
}

TEST(Submit, RefusesNonsense) {
  Driver d(small_config());
  const auto code = [&](Request r) { return d.s->submit(std::move(r), 0).status().code(); };
  EXPECT_EQ(code({}), Code::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .max_tokens = -1}), Code::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .samples = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .tenant = 5}), Code::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .priority = 9}), Code::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .prompt_outputs = true}), Code::kInvalidArgument);
  EXPECT_FALSE(d.s->add_tenant("x", 0).ok());
  EXPECT_FALSE(d.s->has_work());
}

}  // namespace
}  // namespace deepinfer::sched
