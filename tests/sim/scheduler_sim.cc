// Randomised runs of the scheduler against the fake model: every request ends once, with the tokens that it would get
// alone, within the limits, and every block, slot and host byte comes back.
//
//   scheduler_sim                        300 seeds, as in ./test.sh
//   scheduler_sim --seeds 10000          ./test.sh --all
//   scheduler_sim --first 4711 --seeds 1 --verbose     one seed again
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "tests/sim/fake_engine.h"

namespace deepinfer::sim {
namespace {

using sched::EndReason;

int64_t g_first_seed = 1, g_seeds = 300;
bool g_verbose = false;

struct Rng {
  std::mt19937_64 engine;
  int to(int low, int high) { return low + static_cast<int>(engine() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(engine) < p; }
};

struct Planned {
  sched::Request request;
  int at_step = 0;
  int cancel_after = -1;  // steps after it was submitted; -1: never
};

// One answer: what must come, and what came.
struct Answer {
  std::vector<int32_t> expected, got;
  std::optional<EndReason> end;
  uint64_t seed = 0;
  int cancel_step = -1;
};

struct Scenario {
  FakeShape shape;
  sched::SchedulerConfig config;
  FakeFaults faults;
  bool async = false, drafts = false;
  bool restarts = false;  // the device's cache is lost now and then
  int tier_delay = 0;     // steps until a page comes, at most
  double tier_loss = 0;
  double draft_quality = 0;
  std::vector<Planned> requests;
};

Scenario make_scenario(uint64_t seed) {
  Rng r{std::mt19937_64(seed)};
  Scenario s;
  FakeShape& f = s.shape;
  f.block_tokens = std::array{4, 8, 8, 16, 128}[r.to(0, 4)];
  f.window = r.to(2, 10);
  f.encoder_layers = r.to(1, 3);
  f.history = r.to(0, 3);
  s.async = r.chance(0.7);
  s.drafts = r.chance(0.4);
  s.draft_quality = r.chance(0.5) ? 0.8 : 0.2;

  sched::SchedulerConfig& c = s.config;
  c.block_tokens = f.block_tokens;
  c.window = f.window;
  c.encoder_layers = f.encoder_layers;
  c.history_tokens = f.history;
  c.backtrack = r.to(1, 4);
  c.drafts_max = s.drafts ? r.to(1, 4) : 0;
  const int back = std::max(c.backtrack, c.drafts_max + 1);
  c.keep = c.window + back + r.to(0, 8);
  c.ring_slots = c.window + back + (r.chance(0.8) ? c.keep + c.block_tokens + 2 : 0);
  f.ring_slots = c.ring_slots;
  c.slots = r.to(1, 8);
  c.sequences_max = r.chance(0.5) ? c.slots : r.to(1, 8);
  c.rows_max = c.sequences_max + r.to(0, r.chance(0.3) ? 300 : 60);
  c.outputs_max = c.sequences_max + r.to(0, 20);
  // Little memory makes them push each other out; much lets prefixes live.
  const bool tight = r.chance(0.5), talks = !tight && r.chance(0.6);
  f.vocabulary = tight ? 300 : 60;
  c.blocks = f.block_tokens == 128 ? r.to(2, 8) : (tight ? r.to(60, 250) : r.to(200, 1500)) / f.block_tokens;
  c.context_max = std::min(tight ? 250 : 400, c.blocks * c.block_tokens + r.to(-20, 20));
  if (r.chance(0.2)) c.blocks_per_step_max = (c.context_max + c.block_tokens - 1) / c.block_tokens + r.to(0, 20);
  c.prefill_rows_min = r.to(1, 16);
  c.step_target_s = r.chance(0.3) ? 0.1 : 0;
  c.skip_ahead_max = r.to(0, 4);
  c.skips_max = r.to(0, 10);
  c.preemptions_max = r.to(0, 4);
  c.spill = r.chance(0.7);
  c.prefix_cache = r.chance(0.85);
  c.snapshot_ttl_s = r.chance(0.2) ? 20 : 1e6;
  c.block_bytes = static_cast<size_t>(f.block_tokens) * 8;
  c.slot_bytes = static_cast<size_t>(f.encoder_layers + 1) * f.ring_slots * 8;
  c.snapshot_bytes = static_cast<size_t>(f.encoder_layers) * (f.window - 1) * 8;
  c.host_bytes_max = r.chance(0.2) ? 0 : r.to(1000, r.chance(0.5) ? 10'000 : 1'000'000);
  if (r.chance(0.3)) s.faults.flip = 0.2;
  if (r.chance(0.2)) s.faults.row_failure = 0.02;

  if (r.chance(0.4)) {
    c.tier_gets_max = r.to(1, 12);
    c.tier_puts_max = r.chance(0.2) ? 1 : 64;
    c.tier_wait_s = r.chance(0.3) ? r.to(0, 10) : 1000;
    s.restarts = r.chance(0.7);
    s.tier_delay = r.to(0, 12);
    s.tier_loss = r.chance(0.4) ? 0.2 : 0;
    c.tier_snapshots = r.chance(0.5);
  }

  const int count = r.to(1, 24);
  std::vector<std::vector<int32_t>> texts;  // for prefixes in common
  for (int i = 0; i < count; ++i) {
    Planned p;
    p.at_step = talks ? i * 40 : (r.chance(0.4) ? 0 : r.to(0, 150));
    if (!texts.empty() && r.chance(talks ? 0.95 : 0.6)) {
      const auto& text = texts[r.to(0, static_cast<int>(texts.size()) - 1)];
      p.request.prompt.assign(text.begin(),
                              text.begin() + (talks && r.chance(0.6) ? static_cast<int>(text.size())
                                                                     : r.to(0, static_cast<int>(text.size()))));
    }
    const int more = r.chance(0.1) && !p.request.prompt.empty() ? 0 : r.to(1, r.chance(0.3) ? 150 : 30);
    for (int k = 0; k < more; ++k) p.request.prompt.push_back(r.to(0, f.vocabulary - 1));
    p.request.max_tokens = r.to(0, 9) == 0 ? 0 : r.to(1, tight ? 150 : 60);
    p.request.samples = r.chance(0.2) ? r.to(1, 3) : 1;
    p.request.seed = r.engine();
    p.request.tenant = r.to(0, 2);
    p.request.priority = r.to(-1, 1);
    if (r.chance(0.15)) p.request.prefill = sched::Prefill::kFull;
    p.request.prompt_outputs = p.request.prefill == sched::Prefill::kFull && r.chance(0.5);
    p.request.cache = r.chance(0.9);
    p.request.ttl_s = r.chance(0.1) ? 30 : 1e6;
    if (r.chance(0.05)) p.request.deadline_s = p.at_step + r.to(0, 60);
    if (r.chance(0.15)) p.cancel_after = r.to(0, 60);
    // A conversation: the text that a later turn may start with.
    const int begin = p.request.prefill == sched::Prefill::kFull
                          ? 0
                          : std::max(0, static_cast<int>(p.request.prompt.size()) - c.keep);
    texts.push_back(p.request.prompt);
    for (int32_t t : solo_tokens(f, p.request.prompt, begin, p.request.seed, 0, 30)) texts.back().push_back(t);
    s.requests.push_back(std::move(p));
  }
  return s;
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : seed_(seed), scenario_(make_scenario(seed)), rng_{std::mt19937_64(seed * 7919)} {}

  void run() {
    sched::SchedulerConfig config = scenario_.config;
    if (scenario_.faults.flip > 0) config.faults.hook = [this](kv::FaultPoint) { return rng_.chance(0.05); };
    auto created = sched::Scheduler::create(config);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    scheduler_ = std::move(created).value();
    ASSERT_TRUE(scheduler_->add_tenant("a", 1).ok() && scheduler_->add_tenant("b", 4).ok());
    scheduler_->set_cost({.base_s = 0.01, .decode_row_s = 0.001, .prefill_row_s = 0.004});
    engine_.emplace(scenario_.shape, *scheduler_, config, scenario_.faults);

    std::optional<sched::StepResult> open;
    for (step_ = 0; submitted_ < scenario_.requests.size() || scheduler_->has_work() || open; ++step_) {
      ASSERT_LT(step_, 30'000) << "no end in sight" << dump();
      arrivals();
      cancels();
      move_pages();
      if (scenario_.restarts && step_ % 37 == 36) scheduler_->prefix_index().evict(scenario_.config.blocks);
      if (step_ % 50 == 49) scheduler_->expire(step_);
      if (scenario_.drafts && !open) offer_drafts();
      const sched::Plan& plan = scheduler_->plan(step_);
      take_ended();
      std::vector<int64_t> drawn;
      for (const sched::SampleRow& row : plan.samples) drawn.push_back(row.id);
      sched::StepResult result;
      engine_->execute(plan, &result, rng_.engine, [this](int64_t id) { return answers_[id].seed; });
      ASSERT_TRUE(engine_->errors.empty()) << engine_->errors << dump();
      if (open) commit(std::exchange(open, std::nullopt).value());
      drawn_.push_back(std::move(drawn));
      // With drafts, or now and then, the loop waits for its step before it plans the next.
      if (scenario_.async && !(scenario_.drafts && rng_.chance(0.8)) && scheduler_->has_work())
        open = std::move(result);
      else commit(result);
    }
    finish();
  }

  uint64_t plans_digest() const { return engine_->plans_digest; }
  sched::SchedulerStats stats() const { return scheduler_->stats(); }

 private:
  void arrivals() {
    for (Planned& p : scenario_.requests) {
      if (p.at_step != step_) continue;
      ++submitted_;
      sched::Request request = p.request;
      if (rng_.chance(0.3)) request.keys = scheduler_->prompt_keys(request.tenant, request.prompt, request.images);
      Result<int64_t> id = scheduler_->submit(std::move(request), step_);
      if (!id.ok()) {
        ASSERT_EQ(id.status().code(), Code::kResourceExhausted) << id.status().to_string() << dump();
        continue;
      }
      const int prompt = static_cast<int>(p.request.prompt.size());
      const int begin = p.request.prefill == sched::Prefill::kFull ? 0 : std::max(0, prompt - scenario_.config.keep);
      const int room = scenario_.config.context_max - prompt;
      const int output = p.request.max_tokens == 0 ? room : std::min(room, p.request.max_tokens);
      for (int i = 0; i < p.request.samples; ++i) {
        Answer& a = answers_[id.value() + i];
        a.seed = p.request.seed;
        a.expected =
            solo_tokens(scenario_.shape, p.request.prompt, begin, p.request.seed, static_cast<uint32_t>(i), output);
        prompts_[id.value() + i] = prompt;
        if (p.cancel_after >= 0 && rng_.chance(0.7)) a.cancel_step = step_ + p.cancel_after;
      }
    }
  }

  void cancels() {
    for (auto& [id, a] : answers_) {
      if (a.cancel_step == step_) scheduler_->cancel(id);
    }
    take_ended();
  }

  // A lower tier: pages come some steps later, or not at all.
  void move_pages() {
    for (auto it = on_their_way_.begin(); it != on_their_way_.end();) {
      if (it->first > step_) break;
      const auto record = tier_.find(it->second);
      const bool lost = record == tier_.end() || rng_.chance(scenario_.tier_loss);
      if (lost) {
        scheduler_->tier_arrived(it->second, {}, step_);
      } else if (it->second.bytes[0] % 2 == 0) {  // kept by reference
        const auto page = std::make_shared<const std::vector<std::byte>>(record->second);
        scheduler_->tier_arrived(it->second, *page, step_, page);
      } else {
        scheduler_->tier_arrived(it->second, record->second, step_);
      }
      it = on_their_way_.erase(it);
    }
    std::vector<sched::TierGet> gets;
    scheduler_->take_tier_gets(&gets);
    for (const sched::TierGet& g : gets) on_their_way_.emplace(step_ + rng_.to(0, scenario_.tier_delay), g.key);
    ASSERT_LE(static_cast<int>(on_their_way_.size()), scenario_.config.tier_gets_max) << dump();
    std::vector<sched::TierPut> puts;
    scheduler_->take_tier_puts(&puts);
    for (const sched::TierPut& p : puts) {
      const std::span<const std::byte> page = scheduler_->host().buffer(p.host);
      if (scheduler_->host().verify(p.host)) tier_[p.key].assign(page.begin(), page.end());
      scheduler_->host().unpin(p.host);
    }
  }

  void offer_drafts() {
    for (auto& [id, a] : answers_) {
      if (a.end || a.got.empty() || rng_.chance(0.2)) continue;
      std::vector<int32_t> drafts;
      for (int k = rng_.to(0, scenario_.config.drafts_max); k > 0; --k) {
        const size_t at = a.got.size() + drafts.size();
        const bool good = at < a.expected.size() && rng_.chance(scenario_.draft_quality);
        drafts.push_back(good ? a.expected[at] : rng_.to(0, scenario_.shape.vocabulary - 1));
      }
      ASSERT_TRUE(scheduler_->set_drafts(id, drafts).ok());
    }
  }

  void commit(const sched::StepResult& result) {
    const std::vector<int64_t> ids = std::move(drawn_.front());
    drawn_.erase(drawn_.begin());
    for (size_t i = 0; i < ids.size(); ++i) {
      Answer& a = answers_[ids[i]];
      if (!a.end && std::ranges::find(result.failed, ids[i]) == result.failed.end())
        a.got.insert(a.got.end(), result.samples[i].tokens.begin(), result.samples[i].tokens.end());
    }
    scheduler_->commit(result, step_);
    take_ended();
  }

  void take_ended() {
    std::vector<sched::Ended> ended;
    scheduler_->take_ended(&ended);
    for (const sched::Ended& e : ended) {
      ASSERT_TRUE(answers_.contains(e.id));
      Answer& a = answers_[e.id];
      ASSERT_FALSE(a.end) << "sequence " << e.id << " ended twice" << dump();
      a.end = e.reason;
    }
  }

  void finish() {
    for (const auto& [id, a] : answers_) {
      ASSERT_TRUE(a.end) << "sequence " << id << " never ended" << dump();
      const size_t n = std::min(a.got.size(), a.expected.size());
      const bool right = std::equal(a.got.begin(), a.got.begin() + static_cast<int64_t>(n), a.expected.begin());
      ASSERT_TRUE(right && a.got.size() <= a.expected.size())
          << "sequence " << id << " gave other tokens than alone, first at "
          << std::mismatch(a.got.begin(), a.got.begin() + static_cast<int64_t>(n), a.expected.begin()).first -
                 a.got.begin()
          << " of " << a.expected.size() << " behind a prompt of " << prompts_[id] << dump();
      switch (*a.end) {
        case EndReason::kStop:
        case EndReason::kMaxTokens:
        case EndReason::kContextFull:
          ASSERT_EQ(a.got.size(), a.expected.size())
              << "sequence " << id << " ended early: " << sched::end_reason_name(*a.end) << dump();
          ASSERT_EQ(*a.end == EndReason::kStop, a.expected.back() == kStopToken);
          break;
        case EndReason::kKvFull:
          ASSERT_GT(prompts_[id] + static_cast<int>(a.got.size()) + 1 + scenario_.config.drafts_max,
                    scenario_.config.blocks * scenario_.config.block_tokens - scenario_.config.block_tokens)
              << "sequence " << id << " had room for more" << dump();
          break;
        case EndReason::kFailed:
          ASSERT_GT(scenario_.faults.row_failure, 0) << dump();
          break;
        default:
          break;
      }
    }
    const Status accounting = scheduler_->check_accounting();
    ASSERT_TRUE(accounting.ok()) << accounting.to_string() << dump();
    scheduler_->prefix_index().evict(scenario_.config.blocks);
    ASSERT_EQ(scheduler_->blocks().free_count(), scenario_.config.blocks) << dump();
    ASSERT_EQ(scheduler_->prefix_index().counters().token_mismatches, 0);
  }

  std::string dump() const {
    const sched::SchedulerConfig& c = scenario_.config;
    return fmt::format(
        "\nseed {} step {}: {} blocks of {}, {} slots, rows {}, sequences {}, window {} x {}, keep {}, ring {}, "
        "{}{}{}host {}",
        seed_, step_, c.blocks, c.block_tokens, c.slots, c.rows_max, c.sequences_max, c.window, c.encoder_layers,
        c.keep, c.ring_slots, scenario_.async ? "async, " : "", scenario_.drafts ? "drafts, " : "",
        c.spill ? "spill, " : "", c.host_bytes_max);
  }

  const uint64_t seed_;
  Scenario scenario_;
  Rng rng_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::optional<FakeEngine> engine_;
  std::map<int64_t, Answer> answers_;
  std::map<int64_t, int> prompts_;
  std::vector<std::vector<int64_t>> drawn_;
  std::map<kv::BlockKey, std::vector<std::byte>> tier_;
  std::multimap<int, kv::BlockKey> on_their_way_;  // by the step at which they come
  size_t submitted_ = 0;
  int step_ = 0;
};

TEST(SchedulerSim, EverySeed) {
  sched::SchedulerStats sum;
  for (int64_t seed = g_first_seed; seed < g_first_seed + g_seeds; ++seed) {
    SCOPED_TRACE(fmt::format("scheduler_sim --first {} --seeds 1", seed));
    Simulation s(seed);
    s.run();
    ASSERT_FALSE(testing::Test::HasFailure());
    const sched::SchedulerStats stats = s.stats();
    if (g_verbose)
      fmt::print("seed {}: {} plans, {} rows, {} spilled, {} recomputed\n", seed, stats.plans, stats.rows,
                 stats.spilled, stats.recomputed);
    for (auto field :
         {&sched::SchedulerStats::rows, &sched::SchedulerStats::late_rows, &sched::SchedulerStats::spilled,
          &sched::SchedulerStats::recomputed, &sched::SchedulerStats::spill_losses,
          &sched::SchedulerStats::copies_on_write, &sched::SchedulerStats::forks, &sched::SchedulerStats::cached_tokens,
          &sched::SchedulerStats::replayed_rows, &sched::SchedulerStats::snapshots_taken,
          &sched::SchedulerStats::snapshots_used, &sched::SchedulerStats::tier_puts,
          &sched::SchedulerStats::tier_blocks, &sched::SchedulerStats::tier_losses,
          &sched::SchedulerStats::tier_puts_skipped, &sched::SchedulerStats::ended}) {
      sum.*field += stats.*field;
    }
    if (seed % 10 == 0) {
      Simulation again(seed);
      again.run();
      ASSERT_EQ(again.plans_digest(), s.plans_digest()) << "the same seed gave other plans";
    }
  }
  fmt::print(
      "{} seeds: {} answers, {} rows ({} late), preempted {} spilled + {} recomputed ({} spills lost), {} forks, {} "
      "copies on write, "
      "{} tokens cached ({} rows replayed), snapshots {} taken, {} used, blocks {} to a lower tier ({} not), {} back "
      "({} in vain)\n",
      g_seeds, sum.ended, sum.rows, sum.late_rows, sum.spilled, sum.recomputed, sum.spill_losses, sum.forks,
      sum.copies_on_write, sum.cached_tokens, sum.replayed_rows, sum.snapshots_taken, sum.snapshots_used,
      sum.tier_puts, sum.tier_puts_skipped, sum.tier_blocks, sum.tier_losses);
  if (g_seeds < 300) return;
  // The runs are worth something only if they get into the corners.
  for (int64_t n :
       {sum.late_rows, sum.spilled, sum.recomputed, sum.spill_losses, sum.copies_on_write, sum.cached_tokens,
        sum.replayed_rows, sum.snapshots_used, sum.tier_puts, sum.tier_blocks, sum.tier_losses})
    EXPECT_GT(n, 0);
}

}  // namespace
}  // namespace deepinfer::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) deepinfer::sim::g_verbose = true;
    if (i + 1 < argc && std::strcmp(argv[i], "--seeds") == 0) deepinfer::sim::g_seeds = std::atoll(argv[i + 1]);
    if (i + 1 < argc && std::strcmp(argv[i], "--first") == 0) deepinfer::sim::g_first_seed = std::atoll(argv[i + 1]);
  }
  return RUN_ALL_TESTS();
}
