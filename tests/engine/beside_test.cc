// Pages of lower tiers that come while the step that reads them runs: whatever becomes of them in mid-run, the answer
// is that of a cold prompt, bit for bit.
#include <algorithm>
#include <functional>
#include <map>
#include <thread>

#include "kv/host_tier.h"
#include "kv/record.h"
#include "kv/ssd_tier.h"
#include "kv/tier_stack.h"
#include "tests/engine/support.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

using engine::Request;
using testing::Collected;
using testing::make_request;

constexpr int kPrompt = 900, kBlocks = 6;  // blocks before the decoder's rows

enum class Fate : uint8_t { kGood, kMissing, kFlipped, kCut, kError, kNever };

// A tier in memory that does to each get, counted from 0, what it is told, and answers one a poll. One that lends gives
// records instead of copying them.
class ScriptedTier : public kv::Tier {
 public:
  std::string_view name() const override { return "scripted"; }
  Ticket get(const kv::BlockKey& key, std::span<std::byte> into) override {
    waiting_.push_back({++last_, key, into, fate ? fate(gets++) : Fate::kGood});
    return last_;
  }
  Ticket get_lending(const kv::BlockKey& key, std::span<std::byte> into, const kv::PutInfo& /*who*/) override {
    return get(key, lends ? std::span<std::byte>() : into);
  }
  Ticket put(const kv::BlockKey& key, std::span<const std::byte> record, const kv::PutInfo&) override {
    records_[key].assign(record.begin(), record.end());
    done_.push_back({.ticket = ++last_});
    return last_;
  }
  Known known_prefix(std::span<const kv::BlockKey> keys) const override {
    const auto end = std::ranges::find_if(keys, [this](const kv::BlockKey& key) { return !records_.contains(key); });
    return {static_cast<size_t>(end - keys.begin()), true};
  }
  void erase(const kv::BlockKey& key) override { records_.erase(key); }
  size_t poll(std::span<Completion> done) override {
    const auto next = std::ranges::find_if(waiting_, [](const Get& g) { return g.fate != Fate::kNever; });
    if (next != waiting_.end()) {
      done_.push_back(answer(*next));
      waiting_.erase(next);
    }
    const size_t n = std::min(done.size(), done_.size());
    std::move(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n), done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  void cancel(Ticket ticket) override {
    std::erase_if(waiting_, [ticket](const Get& g) { return g.ticket == ticket; });
    std::erase_if(done_, [ticket](const Completion& c) { return c.ticket == ticket; });
  }

  std::function<Fate(int get)> fate;  // empty: all are good
  size_t flipped_byte = 0;            // of the record
  bool lends = false;
  int gets = 0;

 private:
  struct Get {
    Ticket ticket = 0;
    kv::BlockKey key;
    std::span<std::byte> into;
    Fate fate = Fate::kGood;
  };
  Completion answer(const Get& g) {
    const auto at = records_.find(g.key);
    if (at == records_.end() || g.fate == Fate::kMissing)
      return {.ticket = g.ticket, .status = make_error(Code::kNotFound, "no such record")};
    if (g.fate == Fate::kError) return {.ticket = g.ticket, .status = make_error(Code::kIo, "the device failed")};
    if (g.into.empty()) return lend(g, at->second);
    std::ranges::copy(at->second, g.into.begin());
    if (g.fate == Fate::kFlipped) g.into[flipped_byte] ^= std::byte{16};
    return {.ticket = g.ticket, .bytes = at->second.size() / (g.fate == Fate::kCut ? 2 : 1)};
  }

  Completion lend(const Get& g, const std::vector<std::byte>& record) const {
    auto lent = std::make_shared<kv::RecordBytes>(record.begin(), record.end());
    if (g.fate == Fate::kFlipped) (*lent)[flipped_byte] ^= std::byte{16};
    if (g.fate == Fate::kCut) lent->resize(lent->size() / 2);
    return {.ticket = g.ticket, .bytes = lent->size(), .lent = lent};
  }

  std::map<kv::BlockKey, std::vector<std::byte>> records_;
  std::vector<Get> waiting_;
  std::vector<Completion> done_;
  Ticket last_ = 0;
};

constexpr double kLong = 1000;  // seconds: nothing here hangs on how fast the machine is

testing::EngineSetup setup_with(std::shared_ptr<kv::Tier> tier) {
  testing::EngineSetup s;
  s.sequences = 4;
  s.options.tier = std::move(tier);
  s.options.tier_wait_s = s.options.tier_timeout_s = s.options.tier_flush_s = s.options.tier_beside_s = kLong;
  return s;
}

std::unique_ptr<engine::Engine> engine_on(std::shared_ptr<kv::Tier> tier) {
  return testing::make_engine(setup_with(std::move(tier)));
}

const std::vector<int32_t>& prompt() {
  static const std::vector<int32_t> p = testing::random_prompt(kPrompt, 3);
  return p;
}

const Collected& cold() {
  static const Collected c = testing::run(*testing::make_engine({}), make_request(prompt(), false))[0];
  return c;
}

std::shared_ptr<ScriptedTier> filled_tier() {
  auto tier = std::make_shared<ScriptedTier>();
  testing::run(*engine_on(tier), make_request(prompt()));
  tier->gets = 0;
  return tier;
}

void expect_clean(engine::Engine& engine) {
  EXPECT_TRUE(engine.check_accounting().ok()) << engine.check_accounting().message();
}

// One step holds all rows, or the first of several.
TEST(Beside, EqualsAColdPrompt) {
  for (const int rows : {256, 512, 64}) {
    SCOPED_TRACE(rows);
    testing::EngineSetup setup = setup_with(filled_tier());
    setup.rows = rows;
    const auto engine = testing::make_engine(setup);
    const Collected got = testing::run(*engine, make_request(prompt()))[0];
    expect_equal(got, cold());
    EXPECT_EQ(got.usage.cached_tokens, 768);
    EXPECT_EQ(engine->stats().scheduler.loads_beside, 1);
    EXPECT_EQ(engine->stats().scheduler.loads_thrown, 0);
    EXPECT_EQ(engine->stats().scheduler.tier_blocks, kBlocks);
    expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());  // what was kept of them
    expect_clean(*engine);
  }
}

class BesideLent : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<ScriptedTier> filled() const {
    auto tier = filled_tier();
    tier->lends = GetParam();
    return tier;
  }
};
INSTANTIATE_TEST_SUITE_P(CopiedAndLent, BesideLent, ::testing::Bool());

TEST_P(BesideLent, AFaultInMidRunIsComputed) {
  const auto tier = filled();
  for (const Fate fate : {Fate::kMissing, Fate::kFlipped, Fate::kCut, Fate::kError}) {
    for (const int bad : {0, 2, 5}) {
      SCOPED_TRACE(static_cast<int>(fate) * 100 + bad);
      tier->gets = 0;
      tier->fate = [&](int get) { return get == bad ? fate : Fate::kGood; };
      const auto engine = engine_on(tier);
      const Collected got = testing::run(*engine, make_request(prompt()))[0];
      expect_equal(got, cold());
      EXPECT_EQ(got.usage.cached_tokens, 128 * bad);
      EXPECT_EQ(got.ends, 1);
      EXPECT_EQ(engine->stats().scheduler.loads_beside, 1);
      EXPECT_EQ(engine->stats().scheduler.loads_thrown, 1);
      expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
      expect_clean(*engine);
    }
  }
}

// A bit of each layer's part of a page, its keys, its entries and its last byte.
TEST_P(BesideLent, AFlippedBitInAnyLayersPartIsComputed) {
  const auto tier = filled();
  const size_t page = testing::make_engine({})->info().block_bytes, header = kv::record_bytes(128, page) - 8 - page;
  constexpr int kPlaces = 8;
  for (int i = 0; i < kPlaces; ++i) {
    SCOPED_TRACE(i);
    tier->gets = 0;
    tier->flipped_byte = header + static_cast<size_t>(i) * (page - 1) / (kPlaces - 1);
    tier->fate = [&](int get) { return get == i % kBlocks ? Fate::kFlipped : Fate::kGood; };
    const auto engine = engine_on(tier);
    expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
    EXPECT_EQ(engine->stats().tier.damaged, 1);
    EXPECT_EQ(engine->stats().scheduler.loads_thrown, 1);
  }
}

// The step gives up before the request does.
TEST(Beside, APageThatNeverComesIsComputed) {
  const auto tier = filled_tier();
  tier->fate = [](int get) { return get == 4 ? Fate::kNever : Fate::kGood; };
  testing::EngineSetup setup = setup_with(tier);
  setup.options.tier_beside_s = 0.05;
  setup.options.tier_wait_s = setup.options.tier_flush_s = 0.3;
  const auto engine = testing::make_engine(setup);
  const Collected got = testing::run(*engine, make_request(prompt()))[0];
  expect_equal(got, cold());
  EXPECT_LE(got.usage.cached_tokens, 128 * 4);
  EXPECT_EQ(engine->stats().scheduler.tier_loads_late, 1);
}

TEST(Beside, CancelledOrStoppedInMidRun) {
  const auto tier = filled_tier();
  testing::EngineSetup setup = setup_with(tier);
  setup.options.tier_beside_s = 0.05;
  setup.options.tier_wait_s = setup.options.tier_flush_s = 0.3;
  setup.options.queue_events = 1;
  Request endless = make_request(prompt());
  endless.max_tokens = 100;  // more than fit into a stream that nobody reads: it cannot end by itself
  for (const bool stopped : {false, true}) {
    SCOPED_TRACE(stopped);
    tier->gets = 0;
    tier->fate = [](int get) { return get == 4 ? Fate::kNever : Fate::kGood; };
    auto engine = testing::make_engine(setup);
    auto stream = engine->submit(endless).value();
    while (engine->stats().scheduler.tier_loads == 0) std::this_thread::yield();
    if (stopped) engine.reset();
    else stream->cancel();
    EXPECT_EQ(testing::collect(*stream, 1)[0].reason, engine::FinishReason::kCancelled);
    if (stopped) continue;
    expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
    expect_clean(*engine);
  }
}

// Requests that come in mid-run, and a device that is too small for all of them.
TEST(Beside, BesideOthersAndPreempted) {
  std::vector<Request> requests;
  std::vector<Collected> alone;
  const auto bare = testing::make_engine({});
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> p = prompt();
    p.push_back(100 + i);
    requests.push_back(make_request(std::move(p), false));
    alone.push_back(testing::run(*bare, requests.back())[0]);
    requests.back().cache = true;
  }
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const auto tier = filled_tier();
    std::mt19937 random(seed);
    tier->fate = [&](int) { return random() % 10 == 0 ? static_cast<Fate>(random() % 5) : Fate::kGood; };
    testing::EngineSetup s = setup_with(tier);
    s.blocks = 20;
    const auto engine = testing::make_engine(s);
    std::vector<std::unique_ptr<engine::Stream>> streams;
    for (const Request& r : requests) streams.push_back(engine->submit(r).value());
    for (size_t i = 0; i < streams.size(); ++i) expect_equal(testing::collect(*streams[i], 1)[0], alone[i]);
    expect_clean(*engine);
  }
}

// Host memory whose records are replaced by others as soon as it has lent them, before anybody reads their pages.
class ForgettingTier : public kv::HostTier {
 public:
  using HostTier::HostTier;
  size_t poll(std::span<Completion> done) override {
    const size_t n = HostTier::poll(done);
    for (const Completion& c : done.first(n)) {
      if (c.lent == nullptr) continue;
      ++lent;
      const std::vector<std::byte> other(c.lent->size(), std::byte{0x5a});
      for (int i = 0; i < 2 * kBlocks; ++i) {
        kv::BlockKey key;
        key.bytes[0] = static_cast<uint8_t>(i);
        put(key, other, {});
      }
    }
    return n;
  }
  int lent = 0;
};

TEST(Beside, FromHostMemoryThatLends) {
  const size_t record = kv::record_bytes(128, testing::make_engine({})->info().block_bytes);
  for (const int rows : {512, 64}) {
    SCOPED_TRACE(rows);
    const auto host = std::make_shared<ForgettingTier>(kv::HostTierOptions{.bytes_max = kBlocks * record});
    const auto stack = [&] {
      return std::make_shared<kv::TierStack>(std::vector<std::shared_ptr<kv::Tier>>{host},
                                             kv::TierStackOptions{.level_timeout_s = kLong});
    };
    std::vector<int32_t> first = prompt();
    first.resize(128 * kBlocks + 1);
    testing::run(*engine_on(stack()), make_request(first));
    EXPECT_EQ(host->stats().records, kBlocks);
    testing::EngineSetup setup = setup_with(stack());
    setup.rows = rows;
    const auto engine = testing::make_engine(setup);
    expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
    EXPECT_EQ(host->lent, kBlocks);
    EXPECT_EQ(engine->stats().scheduler.tier_blocks, kBlocks);
    expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
    expect_clean(*engine);
  }
}

// The SSD's own faults: reads that fail, give half or one wrong bit.
TEST(Beside, FromAnSsdThatFails) {
  const testing::TempDir dir;
  kv::SsdTierOptions options{.bytes_max = 64 << 20, .segment_bytes = 4 << 20};
  const auto open = [&] {
    return std::make_shared<kv::TierStack>(
        std::vector<std::shared_ptr<kv::Tier>>{kv::SsdTier::open(dir.path() + "/kv", options).value()},
        kv::TierStackOptions{.level_timeout_s = kLong});
  };
  testing::run(*engine_on(open()), make_request(prompt()));
  int64_t thrown = 0;
  for (const kv::FaultPoint point : {kv::FaultPoint::kSsdRead, kv::FaultPoint::kSsdShort, kv::FaultPoint::kSsdFlip}) {
    for (const int bad : {1, 3, 5}) {
      SCOPED_TRACE(static_cast<int>(point) * 10 + bad);
      int reads = 0;
      options.faults.hook = [&](kv::FaultPoint p) { return p == point && reads++ == bad; };
      const auto engine = engine_on(open());
      expect_equal(testing::run(*engine, make_request(prompt()))[0], cold());
      thrown += engine->stats().scheduler.loads_thrown;
    }
  }
  EXPECT_EQ(thrown, 9);
}

}  // namespace
}  // namespace deepinfer
