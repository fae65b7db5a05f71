// A prompt of which 96% are cached beside the same work cold, on a random checkpoint: from the device, from host memory
// and from an SSD after a restart, without and with --snapshot-ssd. Rows that are computed must be those of
// design.md 6, or the program fails.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "base/thread_pool.h"
#include "bench/kv/cases.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/random_checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/step_observer.h"
#include "kv/host_tier.h"
#include "kv/ssd_tier.h"
#include "kv/tier_stack.h"
#include "ops/cpu/cpu_ops.h"

namespace bench::kv {
namespace {

namespace checkpoint = deepinfer::checkpoint;
namespace engine = deepinfer::engine;
namespace ops = deepinfer::ops;

constexpr int kPositions = 65536, kBlock = 128;

std::shared_ptr<const checkpoint::Checkpoint> random_checkpoint(const std::string& dir) {
  checkpoint::ModelConfig config = checkpoint::tiny_config();
  config.max_position_embeddings = kPositions;
  must(checkpoint::write_random_checkpoint(config, dir, {.seed = 41}));
  return std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open(dir)));
}

std::vector<int32_t> random_tokens(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

struct Answer {
  double first_token_s = 0;
  double waited_s = 0;  // of it, until its first step began
  double cpu_s = 0;     // of all threads
  int cached = 0, computed = 0;
};

double cpu_seconds() {
  timespec t = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class FirstStep : public engine::StepObserver {
 public:
  void watch() { began_ = 0; }
  double began() const { return began_; }  // wall_seconds()
  void on_step(const engine::StepRecord& r) override {
    if (began_ == 0 && !r.plan.step.tokens.empty()) began_ = wall_seconds() - (r.at.streamed - r.at.started);
  }
  bool wants_logits() const override { return false; }

 private:
  std::atomic<double> began_ = 0;
};

class Machine {
 public:
  // Device memory for one prompt of `tokens` and a little more.
  Machine(std::shared_ptr<const checkpoint::Checkpoint> c, int tokens, std::shared_ptr<Tier> tier,
          bool tier_snapshots = false) {
    const engine::ModelExecutorOptions sizes{
        .context_max = tokens + kBlock, .sequences_max = 1, .blocks = tokens / kBlock + 4};
    auto executor = must(engine::ModelExecutor::create(c, ops::make_cpu_ops(deepinfer::available_cores()), sizes));
    engine::EngineOptions o;
    o.tier = std::move(tier);
    o.tier_snapshots = tier_snapshots;
    o.host_bytes_max = 2ull << 30;
    o.tier_wait_s = 60;
    o.tier_flush_s = 60;
    o.observer = first_step_;
    engine_ = must(engine::Engine::create(std::move(executor), std::nullopt, o));
  }

  Answer run(std::vector<int32_t> prompt, bool cache = true) {
    engine::Request r;
    const auto n = static_cast<int>(prompt.size());
    r.prompt = std::move(prompt);
    r.max_tokens = 1;
    r.seed = 1;
    r.cache = cache;
    first_step_->watch();
    const double submitted = wall_seconds(), cpu = cpu_seconds();
    const auto stream = must(engine_->submit(r));
    engine::Event event;
    while (stream->next(&event)) must(event.error);
    // Blocks and the snapshot of the windows are written behind the answer: a next turn that comes at once would miss
    // them, and what they take is the prompt's.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double cpu_s = cpu_seconds() - cpu;
    const engine::Usage& u = event.usage;
    return {u.first_token_s, first_step_->began() - submitted, cpu_s, u.cached_tokens,
            n - u.cached_tokens + u.replayed_tokens};
  }
  engine::Engine& engine() { return *engine_; }

 private:
  const std::shared_ptr<FirstStep> first_step_ = std::make_shared<FirstStep>();
  std::unique_ptr<engine::Engine> engine_;
};

struct Shape {
  int tokens = 0, cached = 0, keep = 0, replay = 0;
  // The earlier prompt: as short as it can be and leave `cached` tokens and a snapshot of the windows behind them.
  int earlier() const { return cached + keep; }
  // Rows of the encoder half behind a snapshot, and without one.
  int rows(bool snapshot) const { return tokens - cached + (snapshot ? 0 : replay); }
  double ceiling(bool snapshot) const { return static_cast<double>(tokens + keep) / (rows(snapshot) + keep); }
};

void check_rows(const Shape& shape, const Answer& a, bool snapshot) {
  if (a.computed == shape.rows(snapshot) && a.cached == shape.cached) return;
  must(deepinfer::make_error(deepinfer::Code::kInternal,
                             "{} of {} tokens were cached and {} rows computed; it should have been {} and {}",
                             a.cached, shape.tokens, a.computed, shape.cached, shape.rows(snapshot)));
}

void report_gain(const std::string& name, const Shape& shape, const std::vector<double>& cold,
                 const std::vector<double>& hit, bool snapshot, double goal) {
  report({.bench = "kv",
          .name = name,
          .value = median(cold) / median(hit),
          .unit = "times as fast as cold",
          .ceiling = shape.ceiling(snapshot),
          .ceiling_is = fmt::format("(N+KEEP)/((N-S)+KEEP) with N = {}, N-S = {}, KEEP = {}", shape.tokens,
                                    shape.rows(snapshot), shape.keep),
          .goal = goal});
}

struct Overhead {
  double cpu = 0, wall = 0;  // of the second machine, in those of the first
  double first_s = 0;        // a prompt on the first
};

// Two machines and the same new prompts on both by turns (A B B A), so that what changes slowly is in both. They are
// new, and either is made first: where an engine's memory lies makes two equal ones differ by a few hundredths.
Overhead compare(const std::shared_ptr<const checkpoint::Checkpoint>& c, const Shape& shape, bool tiers, bool swapped,
                 unsigned seed) {
  const auto make = [&](bool second) {
    std::vector<std::shared_ptr<Tier>> levels;
    if (second && tiers) levels.push_back(std::make_shared<HostTier>(HostTierOptions{.bytes_max = 4ull << 30}));
    const auto stack = levels.empty() ? nullptr : std::make_shared<TierStack>(std::move(levels));
    return std::make_unique<Machine>(c, shape.tokens, stack);
  };
  std::unique_ptr<Machine> machines[2];
  for (const bool second : {swapped, !swapped}) machines[second] = make(second);
  for (const auto& m : machines) m->run(random_tokens(shape.tokens, seed));
  Answer sum[2] = {};
  for (unsigned i = 0; i < 4; ++i) {
    const bool second = i == 1 || i == 2;
    const Answer a = machines[second]->run(random_tokens(shape.tokens, seed + 1 + i / 2));
    if (a.cached != 0) check_rows(shape, a, false);
    sum[second].first_token_s += a.first_token_s;
    sum[second].cpu_s += a.cpu_s;
  }
  return {sum[1].cpu_s / sum[0].cpu_s, sum[1].first_token_s / sum[0].first_token_s, sum[0].first_token_s / 2};
}

// What tiers cost a prompt that none of them has, its writes included; and beside it what two machines without tiers
// differ by.
void missing_prompts(const std::shared_ptr<const checkpoint::Checkpoint>& c, const Shape& shape,
                     const std::string& name, int turns) {
  std::vector<double> cpu, wall, cold, equal;
  for (int turn = 0; turn < turns; ++turn) {
    const auto seed = static_cast<unsigned>(1'000'000 + 10 * turn);
    const bool swapped = turn % 2 == 1;
    const Overhead o = compare(c, shape, true, swapped, seed);
    cpu.push_back(o.cpu);
    wall.push_back(o.wall);
    cold.push_back(o.first_s);
    equal.push_back(compare(c, shape, false, swapped, seed).cpu);
  }
  const auto [least, most] = std::ranges::minmax(equal);
  report({.bench = "kv",
          .name = "missing_prompt_" + name + "_cpu",
          .value = median(cpu),
          .unit = "times the CPU time of the same without tiers",
          .ceiling = 1,
          .ceiling_is = fmt::format("no tiers; two engines without differ by {:.3f} ({:.3f} to {:.3f})", median(equal),
                                    least, most),
          .goal = 1.01,
          .goal_is_ratio = true,
          .higher_is_better = false});
  report({.bench = "kv",
          .name = "missing_prompt_" + name,
          .value = median(cold) * median(wall) * 1e3,
          .unit = "ms",
          .ceiling = median(cold) * 1e3,
          .ceiling_is = "the same without tiers",
          .goal = 1.01,
          .goal_is_ratio = true,
          .higher_is_better = false});
}

void prompts(const std::shared_ptr<const checkpoint::Checkpoint>& c, const Shape& shape, const std::string& name,
             int turns, int missing_turns, double goal, double ssd_goal) {
  std::vector<double> cold, device, host, disk, disk_snapshots, waited;
  const Folder folder("prefill");
  const auto stack = [](std::shared_ptr<Tier> t) { return std::make_shared<TierStack>(std::vector{std::move(t)}); };
  const auto open_ssd = [&](int turn, bool snapshots) {
    const std::string dir = fmt::format("{}/{}{}", folder.path(), turn, snapshots ? "s" : "");
    return stack(must(SsdTier::open(dir, {.bytes_max = 4ull << 30})));
  };
  // After a restart between the two prompts.
  const auto from_ssd = [&](int turn, const std::vector<int32_t>& first, const std::vector<int32_t>& text,
                            bool snapshots) {
    { Machine(c, shape.tokens, open_ssd(turn, snapshots), snapshots).run(first); }
    ::sync();  // a restart takes long enough for the device to be done with the writes before it
    Machine restarted(c, shape.tokens, open_ssd(turn, snapshots), snapshots);
    restarted.run(random_tokens(1024, 99), false);  // what only a new process pays
    const Answer a = restarted.run(text);
    check_rows(shape, a, snapshots);
    if (!snapshots) waited.push_back(a.waited_s);
    return a.first_token_s;
  };
  Machine bare(c, shape.tokens, nullptr);
  Machine tiered(c, shape.tokens, stack(std::make_shared<HostTier>(HostTierOptions{.bytes_max = 4ull << 30})));
  for (int turn = 0; turn < turns; ++turn) {
    const auto seed = static_cast<unsigned>(10 * turn);
    const std::vector<int32_t> text = random_tokens(shape.tokens, seed), other = random_tokens(shape.tokens, seed + 1);
    std::vector<int32_t> first(text.begin(), text.begin() + shape.earlier());
    first.back() = 1;  // so that no block behind the cached ones fits
    cold.push_back(bare.run(other).first_token_s);
    bare.run(first);
    Answer a = bare.run(text);
    check_rows(shape, a, true);
    device.push_back(a.first_token_s);

    tiered.run(first);
    tiered.run(other);  // takes the device's memory
    a = tiered.run(text);
    check_rows(shape, a, true);
    host.push_back(a.first_token_s);

    disk.push_back(from_ssd(turn, first, text, false));
    disk_snapshots.push_back(from_ssd(turn, first, text, true));
  }
  report_gain("prefill_" + name + "_from_device", shape, cold, device, true, goal);
  report_gain("prefill_" + name + "_from_host", shape, cold, host, true, goal);
  report_gain("prefill_" + name + "_from_ssd", shape, cold, disk, false, ssd_goal);
  report_gain("prefill_" + name + "_from_ssd_snapshots", shape, cold, disk_snapshots, true, ssd_goal);
  report({.bench = "kv",
          .name = "prefill_" + name + "_ssd_wait",
          .value = median(waited) * 1e3,
          .unit = "ms",
          .ceiling = median(disk) * 1e3,
          .ceiling_is = "all of the time to the first token: the share that reads beside computing could hide",
          .higher_is_better = false});
  missing_prompts(c, shape, name, missing_turns);
}

void prefill(const std::string& name, int tokens, int turns, int missing_turns, double goal, double ssd_goal) {
  const Folder folder("checkpoint");
  const auto c = random_checkpoint(folder.path() + "/tiny");
  const engine::ExecutorInfo info = Machine(c, kBlock, nullptr).engine().info();
  const int window = info.window, layers = info.encoder_layers;
  const int blocks = (tokens * 96 / 100 + kBlock - 1) / kBlock;  // at least 96%, in whole blocks
  const Shape shape{
      .tokens = tokens, .cached = blocks * kBlock, .keep = window + 12, .replay = window + (layers - 1) * (window - 1)};
  prompts(c, shape, name, turns, missing_turns, goal, ssd_goal);
}

}  // namespace

void prefill_4k(bool quick) { prefill("4k", 4096, quick ? 1 : 9, quick ? 1 : 12, 12, 12); }
void prefill_32k(bool quick) { prefill("32k", quick ? 4096 : 32768, quick ? 1 : 3, quick ? 1 : 2, 20, 18); }

}  // namespace bench::kv
