// Agents on an engine whose device holds a tenth of their KV: a prefix that all sessions share, turns that add to it,
// sessions in turns. How much of what came in was not computed, beside what could be saved at all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "engine/engine.h"
#include "kv/host_tier.h"
#include "kv/tier_stack.h"

namespace deepinfer::engine {
namespace {

constexpr int kBlock = kv::kBlockTokens;

struct Workload {
  int prefix = 20000, turns = 30, new_tokens = 1500, sessions = 200, overflow = 10, at_once = 8;
  int length(int turn) const { return prefix + new_tokens * (turn + 1); }
  int blocks() const { return prefix / kBlock + sessions * (length(turns - 1) - prefix) / kBlock; }
};

// A device that only counts.
class CountingDevice : public StepExecutor {
 public:
  explicit CountingDevice(const Workload& w) : logits_(64 * 8) {
    info_.vocab_size = 8;
    info_.context_max = w.length(w.turns) + kBlock;
    info_.rows_max = 4096;
    info_.sequences_max = info_.slots = w.at_once;
    info_.outputs_max = 64;
    info_.blocks = std::max(w.blocks() / w.overflow, 2 * info_.context_max / kBlock);
    info_.block_bytes = info_.slot_bytes = 8;
    info_.windows_bytes = 8;
    info_.window = 128;
    info_.encoder_layers = 20;
    info_.ring_slots = 1024;
    info_.backtrack = 12;
  }
  const ExecutorInfo& info() const override { return info_; }
  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override {
    for (const sched::MemoryOp& op : ops) {
      if (op.kind == sched::MemoryOp::Kind::kSeal) host.seal(op.host);
    }
    return Status();
  }
  Status forward(const model::StepPlan& plan) override {
    rows += static_cast<int64_t>(plan.tokens.size());
    return Status();
  }
  Result<std::span<const float>> logits(int n) override {
    return std::span<const float>(logits_).first(static_cast<size_t>(n) * 8);
  }

  int64_t rows = 0;

 private:
  ExecutorInfo info_;
  std::vector<float> logits_;
};

// Whole blocks of an earlier prompt of `before` tokens that the prompt can be served from.
int64_t allowed(int before, int tokens, int keep) {
  return std::min(before, tokens - keep) / kBlock * kBlock;
}

TEST(AgentWorkload, HitsWhatCanBeHit) {
  Workload w;
  if (std::getenv("DEEPINFER_TEST_ALL") == nullptr) {  // the same shape, a tenth of the tokens
    w.sessions = 50;
    w.turns = 12;
  }
  const auto host = std::make_shared<kv::HostTier>(kv::HostTierOptions{.bytes_max = 4ull << 30});
  auto device = std::make_unique<CountingDevice>(w);
  const CountingDevice& counted = *device;
  const int keep = 128 + 12;
  ASSERT_GE(w.blocks(), std::min(w.overflow, 4) * counted.info().blocks);
  EngineOptions o;
  o.tier = std::make_shared<kv::TierStack>(std::vector<std::shared_ptr<kv::Tier>>{host});
  o.tier_wait_s = 600;
  // Else a device that computes nothing is found faster than a machine that stalls loads.
  o.step_cost.prefill_row_s = 1;
  auto engine = Engine::create(std::move(device), std::nullopt, o).value();

  std::mt19937 random(5);
  const auto append = [&](std::vector<int32_t>* to, int n) {
    for (int i = 0; i < n; ++i) to->push_back(static_cast<int32_t>(random() % 8));
  };
  std::vector<int32_t> prefix;
  append(&prefix, w.prefix);
  std::vector<std::vector<int32_t>> texts(static_cast<size_t>(w.sessions), prefix);
  int64_t input = 0, hit = 0, could = 0;
  for (int turn = 0; turn < w.turns; ++turn) {
    for (int first = 0; first < w.sessions; first += w.at_once) {
      std::vector<std::unique_ptr<Stream>> streams;
      for (int s = first; s < std::min(w.sessions, first + w.at_once); ++s) {
        std::vector<int32_t>& text = texts[static_cast<size_t>(s)];
        append(&text, w.new_tokens);
        input += static_cast<int64_t>(text.size());
        const int before = turn > 0 ? w.length(turn - 1) : s == 0 ? 0 : w.prefix;
        could += allowed(before, static_cast<int>(text.size()), keep);
        Request r;
        r.prompt = text;
        r.max_tokens = 1;
        r.ignore_end = true;
        r.text = false;
        r.traffic = kv::Traffic::kAgent;
        streams.push_back(engine->submit(std::move(r)).value());
        // The very first prompt brings the prefix; nobody can be served from it before it is there.
        if (turn > 0 || s > 0) continue;
        Event e;
        while (streams.back()->next(&e)) EXPECT_TRUE(e.error.ok());
        hit += e.usage.cached_tokens;
        streams.clear();
      }
      for (auto& stream : streams) {
        Event e;
        while (stream->next(&e)) EXPECT_TRUE(e.error.ok()) << e.error.message();
        hit += e.usage.cached_tokens;
      }
    }
  }
  const EngineStats stats = engine->stats();
  const double share = static_cast<double>(hit) / static_cast<double>(input);
  const double best = static_cast<double>(could) / static_cast<double>(input);
  std::printf(
      "%d sessions of %d turns on a device of 1/%.1f: %.2f%% of %lld input tokens hit, %.2f%% allowed (%.2f%% of "
      "it); %lld rows ran; %lld blocks came from the tier\n",
      w.sessions, w.turns, static_cast<double>(w.blocks()) / counted.info().blocks, 100 * share,
      static_cast<long long>(input), 100 * best, 100.0 * static_cast<double>(hit) / static_cast<double>(could),
      static_cast<long long>(counted.rows), static_cast<long long>(stats.scheduler.tier_blocks));
  EXPECT_GE(static_cast<double>(hit), 0.99 * static_cast<double>(could));
  if (w.turns == 30) {
    EXPECT_GE(share, 0.96);
  }
  EXPECT_GT(stats.scheduler.tier_blocks, 0);
  ASSERT_FALSE(stats.tier_counts.empty());
  EXPECT_EQ(stats.tier_counts[0].traffic, kv::Traffic::kAgent);
  EXPECT_EQ(stats.tier_counts[0].hits, stats.tier.hits);
}

}  // namespace
}  // namespace deepinfer::engine
