// Pages that come while the step that needs them runs (sched/tiers.h, "Beside computing"): the step counts if all have
// come, and is as if it had never been if not.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

constexpr int kPrompt = 60;  // 6 blocks of 8 before the decoder's rows
constexpr int kBlocks = 6;

SchedulerConfig config_of(int rows_max = 64) {
  SchedulerConfig c = small_config();
  c.tier_gets_max = 16;
  c.tier_wait_s = 1000;
  c.tier_puts_max = 0;
  c.load_beside_s = 1000;
  c.tier_known = [](std::span<const kv::BlockKey> keys) {
    return kv::Tier::Known{std::min<size_t>(keys.size(), kBlocks), true};
  };
  c.rows_max = rows_max;
  return c;
}

struct Beside {
  explicit Beside(const SchedulerConfig& config = config_of()) : driver(config) {}

  Scheduler& s() { return *driver.s; }
  const Plan& plan() { return s().plan(driver.now += 1); }
  void ask() { s().take_tier_gets(&gets); }
  void answer(int get, bool there = true) {
    const std::vector<std::byte> page(small_config().block_bytes);
    s().tier_arrived(gets.at(static_cast<size_t>(get)).key, there ? std::span(page) : std::span<const std::byte>(),
                     driver.now);
  }
  // Up to a plan that waits for all blocks of the prompt but the first.
  int64_t begin() {
    const int64_t id = driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
    const Plan& p = plan();
    EXPECT_EQ(p.beside.size(), static_cast<size_t>(kBlocks));
    EXPECT_EQ(p.step.sequences.size(), 1u);
    EXPECT_EQ(p.step.sequences[0].cached, 48);
    EXPECT_EQ(s().load_state(), LoadState::kComing);
    ask();
    EXPECT_EQ(gets.size(), static_cast<size_t>(kBlocks));
    answer(0);
    return id;
  }
  // The step has drawn a token.
  void commit() { s().commit({.samples = {{.tokens = {77}}}}, driver.now); }
  void throw_away() {
    s().end_load(false);
    EXPECT_EQ(s().load_state(), LoadState::kNone);
    EXPECT_TRUE(plan().step.sequences.empty()) << "it began again before the step had ended";
    s().commit({.samples = {{.tokens = {77}}}}, driver.now);  // of the thrown one
    s().commit({}, driver.now);
  }
  std::vector<Ended> ends() {
    std::vector<Ended> list;
    s().take_ended(&list);
    return list;
  }

  Driver driver;
  std::vector<TierGet> gets;
};

TEST(Beside, AStepThatWasGivenAllPagesCounts) {
  Beside b;
  const int64_t id = b.begin();
  for (int i = 1; i < kBlocks; ++i) {
    EXPECT_EQ(b.s().load_state(), LoadState::kComing);
    b.answer(i);
  }
  EXPECT_EQ(b.s().load_state(), LoadState::kHere);
  b.s().end_load(true);
  EXPECT_EQ(b.s().load_state(), LoadState::kNone);
  EXPECT_EQ(b.s().progress(id).cached_tokens, 48);
  b.commit();
  EXPECT_EQ(b.s().stats().tier_blocks, kBlocks);
  EXPECT_EQ(b.s().stats().loads_beside, 1);
  EXPECT_EQ(b.s().stats().loads_thrown, 0);
  const std::vector<Ended> ends = b.ends();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].reason, EndReason::kMaxTokens);
  b.driver.drain();
}

TEST(Beside, APageThatIsNotThereThrowsTheStepAway) {
  for (int lost = 1; lost < kBlocks; ++lost) {
    SCOPED_TRACE(lost);
    Beside b;
    const int64_t id = b.begin();
    for (int i = 1; i < kBlocks; ++i) b.answer(i, i != lost);
    EXPECT_EQ(b.s().load_state(), LoadState::kLost);
    b.throw_away();
    EXPECT_EQ(b.s().tokens(id).size(), static_cast<size_t>(kPrompt)) << "a token of a step that does not count";
    EXPECT_TRUE(b.ends().empty());
    const Plan& again = b.plan();
    ASSERT_EQ(again.step.sequences.size(), 1u);
    EXPECT_EQ(again.step.sequences[0].cached, 8 * lost);
    EXPECT_TRUE(again.beside.empty());
    EXPECT_EQ(std::ranges::count(again.before, MemoryOp::Kind::kLoadBlock, &MemoryOp::kind), lost);
    EXPECT_EQ(b.s().progress(id).cached_tokens, 8 * lost);
    b.commit();
    EXPECT_EQ(b.ends().size(), 1u);
    EXPECT_EQ(b.s().stats().loads_thrown, 1);
    EXPECT_EQ(b.s().stats().tier_blocks, lost);
    EXPECT_EQ(b.s().stats().cached_tokens, 8 * lost);
    b.driver.drain();
  }
}

// Else the next request of the tenant whose page got lost would wait for another one's second.
TEST(Beside, AThrownStepIsNotChargedTwice) {
  SchedulerConfig config = config_of();
  config.sequences_max = config.slots = 1;
  Beside b(config);
  const int32_t other = b.s().add_tenant("other", 1).value();
  b.begin();
  for (int i = 1; i < kBlocks; ++i) b.answer(i, i + 1 < kBlocks);
  b.throw_away();
  ASSERT_FALSE(b.plan().empty());  // 12 rows, and then the 8 of the lost block with them: 20
  const auto submit = [&](int32_t tenant, int first) {
    return b.driver.submit({.prompt = prompt_of(24, first), .max_tokens = 1, .tenant = tenant, .cache = false});
  };
  const std::vector<int64_t> in_order = {submit(other, 1000), submit(0, 2000), submit(other, 3000)};
  b.commit();
  EXPECT_EQ(b.ends().size(), 1u);
  std::vector<int64_t> served;
  for (int i = 0; i < 20 && served.size() < in_order.size(); ++i) {
    for (const model::StepSequence& q : b.driver.step().step.sequences) served.push_back(q.id);
  }
  EXPECT_EQ(served, in_order);
  b.driver.drain();
}

TEST(Beside, LatePagesAreWaitedForWithoutAStep) {
  Beside b;
  b.begin();
  b.answer(3);
  b.throw_away();
  EXPECT_TRUE(b.plan().empty());
  b.s().commit({}, b.driver.now);
  for (int i : {1, 2, 4, 5}) b.answer(i);
  const Plan& again = b.plan();
  ASSERT_EQ(again.step.sequences.size(), 1u);
  EXPECT_EQ(again.step.sequences[0].cached, 48);
  EXPECT_TRUE(again.beside.empty());
  b.commit();
  EXPECT_EQ(b.ends().size(), 1u);
  EXPECT_EQ(b.s().stats().loads_beside, 1);
  b.driver.drain();
}

// Its next rows are planned only once it is known what became of the first.
TEST(Beside, AnOwnerThatDoesNotSayThrowsTheStepAway) {
  Beside b(config_of(16));
  const int64_t id = b.begin();
  for (int i = 1; i < kBlocks; ++i) b.answer(i);
  EXPECT_TRUE(b.plan().step.sequences.empty());
  b.s().commit({}, b.driver.now);
  b.s().commit({}, b.driver.now);
  EXPECT_EQ(b.s().stats().loads_thrown, 1);
  b.driver.drain();
  EXPECT_EQ(b.driver.ended[id], EndReason::kMaxTokens);
}

TEST(Beside, AStepThatIsCommittedBeforeAnybodySaysIsThrownAway) {
  Beside b;
  const int64_t id = b.begin();
  for (int i = 1; i < kBlocks; ++i) b.answer(i);
  b.commit();
  EXPECT_EQ(b.s().stats().loads_thrown, 1);
  EXPECT_EQ(b.s().prefix_index().size(), 0);
  EXPECT_TRUE(b.ends().empty());
  b.driver.drain();
  EXPECT_EQ(b.driver.ended[id], EndReason::kMaxTokens);
}

// The device's own blocks before them have left meanwhile.
TEST(Beside, PagesThatFitNowhereAnyMoreAreNotWaitedFor) {
  Beside b;
  b.driver.submit({.prompt = prompt_of(20), .max_tokens = 1});
  b.ask();
  for (size_t i = 0; i < b.gets.size(); ++i) b.answer(static_cast<int>(i), false);
  b.driver.drain();
  b.gets.clear();
  const int64_t id = b.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 3});
  b.ask();
  ASSERT_FALSE(b.gets.empty());
  EXPECT_EQ(b.s().prefix_index().evict(100), 2);
  EXPECT_EQ(b.plan().beside.size(), 0u);
  EXPECT_EQ(b.s().load_state(), LoadState::kNone);
  b.commit();
  for (size_t i = 0; i < b.gets.size(); ++i) b.answer(static_cast<int>(i));
  b.driver.drain();
  EXPECT_EQ(b.driver.ended[id], EndReason::kMaxTokens);
  EXPECT_EQ(b.s().stats().loads_beside, 0);
  EXPECT_EQ(b.s().stats().loads_thrown, 0);
}

TEST(Beside, ACancelledRequestLeavesNothing) {
  for (const bool all_came : {false, true}) {
    Beside b;
    const int64_t id = b.begin();
    for (int i = 1; all_came && i < kBlocks; ++i) b.answer(i);
    b.s().cancel(id);
    EXPECT_EQ(b.s().load_state(), LoadState::kLost);
    b.s().end_load(false);
    b.commit();
    for (int i = 1; !all_came && i < kBlocks; ++i) b.answer(i);
    EXPECT_EQ(b.ends().size(), 1u);
    b.driver.drain();
    EXPECT_EQ(b.s().prefix_index().size(), 0) << "blocks of a step that does not count were kept";
  }
}

// Rows of others would wait in the same step.
TEST(Beside, OnlyForARequestThatIsAlone) {
  Beside b;
  const int64_t other = b.driver.submit({.prompt = prompt_of(7, 500), .max_tokens = 50});
  b.driver.step();
  b.driver.step();
  b.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  const Plan& p = b.plan();
  EXPECT_TRUE(p.beside.empty());
  ASSERT_EQ(p.step.sequences.size(), 1u);
  EXPECT_EQ(p.step.sequences[0].id, other);
  EXPECT_EQ(b.s().load_state(), LoadState::kNone);
  b.s().commit({.samples = {{.tokens = {5}}}}, b.driver.now);
  b.ask();
  for (int i = 0; i < kBlocks; ++i) b.answer(i);
  b.driver.drain();
}

// Where nobody knows what is there, the first block that is not says it.
TEST(Beside, FromTheFirstGapOnItIsKnownWhatIsThere) {
  SchedulerConfig config = config_of();
  config.tier_known = nullptr;
  Beside b(config);
  b.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  b.ask();
  ASSERT_EQ(b.gets.size(), 1u);
  b.answer(0);
  EXPECT_TRUE(b.plan().empty());
  b.s().commit({}, b.driver.now);
  b.ask();
  ASSERT_EQ(b.gets.size(), static_cast<size_t>(kBlocks));
  b.answer(4, false);
  EXPECT_EQ(b.plan().beside.size(), 4u);
  EXPECT_EQ(b.s().load_state(), LoadState::kComing);
  for (int i : {1, 2, 3}) b.answer(i);
  EXPECT_EQ(b.s().load_state(), LoadState::kHere);
  b.s().end_load(true);
  b.commit();
  b.answer(5);
  b.driver.drain();
  EXPECT_EQ(b.s().stats().tier_blocks, 4);
}

TEST(Beside, OthersJoinTheStepBehind) {
  Beside b;
  b.begin();
  const int64_t other = b.driver.submit({.prompt = prompt_of(7, 500), .max_tokens = 2});
  b.answer(1, false);
  b.s().end_load(false);
  const Plan& p = b.plan();
  ASSERT_EQ(p.step.sequences.size(), 1u);
  EXPECT_EQ(p.step.sequences[0].id, other);
  b.commit();
  b.commit();
  for (int i = 2; i < kBlocks; ++i) b.answer(i);
  b.driver.drain();
  EXPECT_EQ(b.driver.ended[other], EndReason::kMaxTokens);
}

TEST(Beside, NotForSlowTiersNorSeveralAnswers) {
  SchedulerConfig slow = config_of();
  slow.load_beside_s = 2;
  Beside b(slow);
  for (const int first : {0, 300}) {  // the second time it is known how slow they are
    b.driver.submit({.prompt = prompt_of(kPrompt, first), .max_tokens = 1});
    b.gets.clear();
    const bool begins = !b.plan().empty();
    EXPECT_EQ(begins, first == 0);
    b.ask();
    for (int i = 0; i < kBlocks; ++i) {
      b.driver.now += 5;
      b.answer(i);
    }
    if (begins) b.s().end_load(true);
    b.commit();
    b.driver.drain();
  }

  Beside two;
  two.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1, .samples = 2});
  EXPECT_TRUE(two.plan().empty());
  two.s().commit({}, two.driver.now);
  two.ask();
  for (int i = 0; i < kBlocks; ++i) two.answer(i);
  two.driver.drain();
}

}  // namespace
}  // namespace deepinfer::sched
