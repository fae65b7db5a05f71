// Window snapshots in lower tiers: a prompt from there replays no rows, and without them, or with damaged ones, it
// replays; the answer is that of a cold prompt either way.
#include "kv/cache_key.h"
#include "kv/record.h"
#include "kv/ssd_tier.h"
#include "kv/tier_stack.h"
#include "tests/engine/support.h"
#include "tests/support/fake_tier.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

using testing::Collected;
using testing::make_request;

constexpr int kPrompt = 900, kCached = 768;

// Times without end: what comes is waited for, however slow the machine is.
constexpr double kPatient = 1000;

std::unique_ptr<engine::Engine> engine_on(std::shared_ptr<kv::Tier> tier, bool snapshots, double timeout_s = kPatient) {
  testing::EngineSetup s;
  s.sequences = 4;
  s.options.tier = std::move(tier);
  s.options.tier_snapshots = snapshots;
  s.options.tier_wait_s = kPatient;
  s.options.tier_timeout_s = timeout_s;
  s.options.tier_flush_s = kPatient;
  return testing::make_engine(s);
}

struct Answers {
  std::vector<int32_t> prompt = testing::random_prompt(kPrompt, 3), longer;
  Collected cold, cold_longer;

  Answers() {
    longer = prompt;
    for (const int32_t t : testing::random_prompt(30, 4)) longer.push_back(t);
    const auto alone = testing::make_engine({});
    cold = testing::run(*alone, make_request(prompt, false))[0];
    cold_longer = testing::run(*alone, make_request(longer, false))[0];
  }
};

const Answers& answers() {
  static const Answers a;
  return a;
}

std::shared_ptr<kv::Tier> ssd(const std::string& dir) {
  auto opened = kv::SsdTier::open(dir, {.bytes_max = 64 << 20, .segment_bytes = 8 << 20});
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return std::make_shared<kv::TierStack>(std::vector<std::shared_ptr<kv::Tier>>{std::move(opened).value()});
}

TEST(TierSnapshots, APromptFromSsdReplaysNoRows) {
  for (const bool snapshots : {false, true}) {
    const testing::TempDir dir;
    {
      const auto first = engine_on(ssd(dir.path()), snapshots);
      expect_equal(testing::run(*first, make_request(answers().prompt))[0], answers().cold);
    }
    const auto second = engine_on(ssd(dir.path()), snapshots);
    const Collected longer = testing::run(*second, make_request(answers().longer))[0];
    expect_equal(longer, answers().cold_longer);
    EXPECT_EQ(longer.usage.cached_tokens, kCached);
    EXPECT_EQ(longer.usage.replayed_tokens, snapshots ? 0 : 125);
    const engine::EngineStats stats = second->stats();
    EXPECT_EQ(stats.scheduler.snapshots_loaded, snapshots ? 1 : 0);
    EXPECT_EQ(stats.scheduler.snapshots_used > 0, snapshots);
    EXPECT_TRUE(second->check_accounting().ok()) << second->check_accounting().message();
  }
}

TEST(TierSnapshots, TheSamePromptAfterARestart) {
  const testing::TempDir dir;
  for (int life = 0; life < 3; ++life) {
    const auto engine = engine_on(ssd(dir.path()), true);
    const Collected got = testing::run(*engine, make_request(answers().prompt))[0];
    expect_equal(got, answers().cold);
    EXPECT_EQ(got.usage.cached_tokens, life == 0 ? 0 : kCached);
    EXPECT_EQ(got.usage.replayed_tokens, 0);
    EXPECT_EQ(engine->stats().scheduler.snapshots_loaded, life == 0 ? 0 : 1);
  }
}

// A tier that does something to records of another size than the first one's: the windows.
class WindowsFault : public kv::FakeTier {
 public:
  enum class Kind : uint8_t { kNone, kMissing, kFlipped, kCut, kNever, kForeign };

  explicit WindowsFault(Kind kind) : kv::FakeTier({.delay_max = 3}, 1), kind_(kind) {}
  Ticket put(const kv::BlockKey& key, std::span<const std::byte> record, const kv::PutInfo& info) override {
    if (block_bytes_ == 0) block_bytes_ = record.size();
    if (record.size() == block_bytes_) return kv::FakeTier::put(key, record, info);
    ++windows_;
    std::vector<std::byte> bytes(record.begin(), record.end());
    if (kind_ == Kind::kFlipped) bytes[bytes.size() / 2] ^= std::byte{4};
    if (kind_ == Kind::kCut) bytes.resize(bytes.size() - 5);
    kv::BlockKey as = key;
    if (kind_ == Kind::kMissing) as.bytes[3] ^= 1;
    if (kind_ == Kind::kForeign && windows_ == 1) foreign_ = bytes;
    if (kind_ == Kind::kForeign && windows_ > 1) bytes = foreign_;
    return kv::FakeTier::put(as, bytes, info);
  }
  Ticket get(const kv::BlockKey& key, std::span<std::byte> into) override {
    if (kind_ == Kind::kNever && block_bytes_ > 0 && into.size() != block_bytes_) return 1'000'000 + ++never_;
    return kv::FakeTier::get(key, into);
  }
  int windows() const { return windows_; }

 private:
  const Kind kind_;
  size_t block_bytes_ = 0;
  int windows_ = 0;
  Ticket never_ = 0;
  std::vector<std::byte> foreign_;
};

TEST(TierSnapshots, DamagedWindowsCostRowsNeverAnAnswer) {
  using Kind = WindowsFault::Kind;
  for (const Kind kind : {Kind::kNone, Kind::kMissing, Kind::kFlipped, Kind::kCut, Kind::kNever, Kind::kForeign}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto tier = std::make_shared<WindowsFault>(kind);
    {
      const auto first = engine_on(tier, true);
      if (kind == Kind::kForeign) testing::run(*first, make_request(testing::random_prompt(kPrompt, 77)));
      expect_equal(testing::run(*first, make_request(answers().prompt))[0], answers().cold);
    }
    EXPECT_GE(tier->windows(), 1);
    const auto second = engine_on(tier, true, kind == Kind::kNever ? 0.3 : kPatient);
    const Collected got = testing::run(*second, make_request(answers().prompt))[0];
    expect_equal(got, answers().cold);
    if (kind != Kind::kNever) {  // on a machine that stands still blocks may be given up as well
      EXPECT_EQ(got.usage.cached_tokens, kCached);
      EXPECT_EQ(got.usage.replayed_tokens, kind == Kind::kNone ? 0 : 125);
    }
    EXPECT_TRUE(second->check_accounting().ok()) << second->check_accounting().message();
  }
}

TEST(TierSnapshots, AnyFaultOfTheTierCostsTimeNeverAnAnswer) {
  int64_t loaded = 0;
  for (unsigned seed = 1; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.lost_record = seed == 2 ? 0.2 : 0.02,
                                                                    .flip = seed == 3 ? 0.4 : 0.05,
                                                                    .cut = 0.02,
                                                                    .swapped = seed == 4 ? 0.4 : 0.02,
                                                                    .error = 0.02,
                                                                    .delay_max = 20},
                                                     seed);
    for (int life = 0; life < 3; ++life) {
      const auto engine = engine_on(tier, true);
      expect_equal(testing::run(*engine, make_request(answers().prompt))[0], answers().cold);
      expect_equal(testing::run(*engine, make_request(answers().longer))[0], answers().cold_longer);
      loaded += engine->stats().scheduler.snapshots_loaded;
    }
  }
  EXPECT_GT(loaded, 0);
}

// Cancelled while pages are under way, and several at once that begin alike.
TEST(TierSnapshots, CancelledAndSharedLoads) {
  const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.delay_max = 40}, 1);
  testing::run(*engine_on(tier, true), make_request(answers().prompt));
  for (int round = 0; round < 6; ++round) {
    const auto engine = engine_on(tier, true);
    auto cancelled = engine->submit(make_request(answers().prompt)).value();
    auto a = engine->submit(make_request(answers().prompt)).value();
    auto b = engine->submit(make_request(answers().longer)).value();
    if (round % 2 == 0) cancelled->cancel();
    expect_equal(testing::collect(*a, 1)[0], answers().cold);
    expect_equal(testing::collect(*b, 1)[0], answers().cold_longer);
    testing::collect(*cancelled, 1);
    EXPECT_TRUE(engine->check_accounting().ok()) << engine->check_accounting().message();
  }
}

}  // namespace
}  // namespace deepinfer
