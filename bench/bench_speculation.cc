// Draft policies on a modelled device: the real scheduler runs drafts and acceptances recorded from the bundled model
// (bench/draft_recording.h). A step of B rows takes 4 ms + 0.02 ms x B, at most 256 rows, and 0.4 ms for the drafter.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/draft_recording.h"
#include "sched/draft_calibration.h"
#include "sched/draft_lengths.h"
#include "sched/scheduler.h"

namespace {

using namespace deepinfer;
using bench::kDrafts;

constexpr int kRowsMax = 256, kPrompt = 4, kPromptRows = 32, kQuickPrompts = 24, kFullPrompts = 2000;
constexpr double kStepS = 4e-3, kRowS = 2e-5, kDrafterS = 4e-4;

void must(const Status& s) {
  if (!s.ok()) std::exit((std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1));
}

double step_seconds(int rows) { return kStepS + kRowS * rows; }

sched::StepTime device_curve() {
  std::vector<sched::StepTime::Point> curve;
  for (int rows = 1; rows <= kRowsMax; ++rows) curve.push_back({rows, step_seconds(rows)});
  return sched::StepTime(curve);
}

using Survival = std::array<float, kDrafts>;

Survival survival_of(const bench::DraftRound& round, const sched::DraftTemperatures& t) {
  Survival out;
  sched::draft_survival(round.confidence, t, out);
  return out;
}

// A request in the simulation: it walks through a recorded answer.
struct Running {
  const bench::RecordedAnswer* answer = nullptr;
  size_t round = 0;  // tokens committed
  int tokens = 0;
  Survival newest = {}, older = {};
  int known = 0;  // survival lists there are
};

struct Policy {
  int fixed = -1;           // drafts of every request; -1: by confidence
  bool asynchronous = false;
};

struct Outcome {
  double tokens_s = 0;
  double tokens_step = 0, rows_step = 0;
};

class Simulation {
 public:
  Simulation(const bench::Recording& recording, const sched::DraftTemperatures& temperatures)
      : recording_(recording), temperatures_(temperatures), curve_(device_curve()) {}

  // Steady state: until the last request of `requests` is admitted.
  Outcome run(const Policy& policy, int concurrent, int requests) {
    running_.clear();
    scheduler_ = make_scheduler(concurrent);
    std::mt19937 random(5);
    std::vector<size_t> order(recording_.answers.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (int i = 0; i < requests; ++i) submit(recording_.answers[order[static_cast<size_t>(i) % order.size()]], i);
    double clock = 0, tokens = 0, steps = 0, rows_sum = 0;
    while (scheduler_->stats().waiting > 0) {
      choose(policy);
      const sched::Plan& plan = scheduler_->plan(clock);
      const int rows = static_cast<int>(plan.step.tokens.size());
      clock += step_seconds(rows) + (policy.fixed == 0 ? 0 : kDrafterS);
      tokens += commit(plan, clock);
      steps += 1;
      rows_sum += rows;
    }
    return {tokens / clock, tokens / steps, rows_sum / steps};
  }

 private:
  static std::unique_ptr<sched::Scheduler> make_scheduler(int concurrent) {
    sched::SchedulerConfig c;
    c.slots = c.sequences_max = concurrent;
    c.blocks = 4 * concurrent;
    c.rows_max = c.outputs_max = kRowsMax;
    c.prefill_rows_min = kPromptRows;
    c.window = 16;
    c.keep = 32;
    c.drafts_max = kDrafts;
    c.waiting_max = 1 << 20;
    c.prefix_cache = false;
    Result<std::unique_ptr<sched::Scheduler>> s = sched::Scheduler::create(c);
    must(s.status());
    return std::move(s).value();
  }

  void submit(const bench::RecordedAnswer& answer, int seed) {
    sched::Request r;
    r.prompt.assign(kPrompt, 1);
    r.seed = static_cast<uint64_t>(seed);
    r.max_tokens = static_cast<int32_t>(answer.rounds.size()) + 1;
    const Result<int64_t> id = scheduler_->submit(std::move(r), 0);
    must(id.status());
    running_[id.value()] = {.answer = &answer};
  }

  void choose(const Policy& policy) {
    const std::array<int32_t, kDrafts> drafts = {1, 1, 1, 1, 1};
    drafting_.clear();
    lengths_.begin();
    for (auto& [id, r] : running_) {
      if (r.tokens == 0 || r.round >= r.answer->rounds.size()) continue;  // not decoding
      drafting_.push_back(id);
      if (policy.fixed >= 0) {
        must(scheduler_->set_drafts(id, std::span(drafts).first(static_cast<size_t>(policy.fixed))));
        continue;
      }
      r.older = r.newest;
      r.newest = survival_of(r.answer->rounds[r.round], temperatures_);
      r.known = std::min(r.known + 1, 2);
      const std::span<const float> older = r.known == 2 ? std::span<const float>(r.older) : std::span<const float>();
      const std::span<const float> newest = policy.asynchronous ? older : std::span<const float>(r.newest);
      lengths_.add({.drafts = kDrafts, .tokens = kPrompt + r.tokens, .newest = newest, .older = older});
    }
    if (policy.fixed >= 0) return;
    const std::span<const int> verify =
        lengths_.choose(curve_, {.rows_max = kRowsMax - (scheduler_->stats().waiting > 0 ? kPromptRows : 0)});
    for (size_t i = 0; i < drafting_.size(); ++i)
      must(scheduler_->set_drafts(drafting_[i], std::span(drafts).first(static_cast<size_t>(verify[i]))));
  }

  double commit(const sched::Plan& plan, double clock) {
    sched::StepResult result;
    double tokens = 0;
    for (const sched::SampleRow& row : plan.samples) {
      Running& r = running_.at(row.id);
      int accepted = 0;
      if (row.rows > 1) accepted = std::min<int>(row.rows - 1, r.answer->rounds[r.round].accepted);
      result.samples.push_back({.tokens = std::vector<int32_t>(static_cast<size_t>(accepted) + 1, 1)});
      if (r.tokens > 0) r.round += static_cast<size_t>(accepted) + 1;
      r.tokens += accepted + 1;
      tokens += accepted + 1;
    }
    scheduler_->commit(result, clock);
    ended_.clear();
    scheduler_->take_ended(&ended_);
    for (const sched::Ended& e : ended_) running_.erase(e.id);
    return tokens;
  }

  const bench::Recording& recording_;
  const sched::DraftTemperatures temperatures_;
  const sched::StepTime curve_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::map<int64_t, Running> running_;
  std::vector<int64_t> drafting_;
  std::vector<sched::Ended> ended_;
  sched::DraftLengths lengths_;
};

// Accepted tokens with the `share` most confident drafts verified, against knowing which will be accepted.
double hindsight_share(const bench::Recording& recording, const sched::DraftTemperatures& temperatures, double share) {
  struct Draft {
    float survival;
    bool accepted;
  };
  std::vector<Draft> drafts;
  double accepted_total = 0;
  for (const bench::RecordedAnswer& a : recording.answers) {
    for (const bench::DraftRound& r : a.rounds) {
      const Survival s = survival_of(r, temperatures);
      for (int j = 0; j < kDrafts; ++j) drafts.push_back({s[static_cast<size_t>(j)], j < r.accepted});
      accepted_total += r.accepted;
    }
  }
  std::stable_sort(drafts.begin(), drafts.end(),
                   [](const Draft& a, const Draft& b) { return a.survival > b.survival; });
  const auto verified = static_cast<size_t>(share * static_cast<double>(drafts.size()));
  double accepted = 0;
  for (size_t i = 0; i < verified; ++i) accepted += drafts[i].accepted;
  return accepted / std::min(static_cast<double>(verified), accepted_total);
}

// Recorded once a build folder for the full run, which takes minutes.
bench::Recording recording_of(const bench::Options& options) {
  const int prompts = options.quick ? kQuickPrompts : kFullPrompts;
  const std::string path = fmt::format("build/drafts-{}.bin", prompts);
  bench::Recording r = bench::load_recording(path);
  if (r.answers.empty()) {
    std::fprintf(stderr, "recording the drafts of %d prompts\n", prompts);
    r = bench::record_drafts({.prompts = prompts, .threads = available_cores()});
    bench::save(r, path);
  }
  return r;
}

void report(const std::string& name, double value, double goal, const char* unit = "ratio") {
  bench::report({.bench = "speculation", .name = name, .value = value, .unit = unit, .goal = goal});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const bench::Recording all = recording_of(options);
  // Temperatures are fitted on one half of the answers; policies run on the other.
  bench::Recording half;
  std::vector<sched::DraftOutcome> outcomes;
  for (size_t i = 0; i < all.answers.size(); ++i) {
    if (i / 2 % 2 == 0) {
      half.answers.push_back(all.answers[i]);
      continue;
    }
    for (const bench::DraftRound& r : all.answers[i].rounds) outcomes.push_back({r.confidence, r.accepted});
  }
  const sched::DraftTemperatures temperatures = sched::fit_draft_temperatures(outcomes);
  Simulation simulation(half, temperatures);
  for (const int n : {8, 32, 64, 128}) {
    const int requests = std::max(8 * n, options.quick ? 0 : 2000);
    double best = 0, fixed = 0;
    for (int l = 0; l <= kDrafts; ++l) {
      fixed = simulation.run({.fixed = l}, n, requests).tokens_s;
      best = std::max(best, fixed);
    }
    for (const bool asynchronous : {false, true}) {
      const Outcome o = simulation.run({.asynchronous = asynchronous}, n, requests);
      const char* mode = asynchronous ? "asynchronous" : "synchronous";
      report(fmt::format("{}_over_best_fixed_{}_requests", mode, n), o.tokens_s / best, 0.98);
      if (n >= 64) report(fmt::format("{}_over_fixed5_{}_requests", mode, n), o.tokens_s / fixed, 1.04);
    }
  }
  for (int share = 10; share < 100; share += 10) {
    const double x = hindsight_share(half, temperatures, share / 100.0);
    if (share == 70) {
      report("accepted_of_hindsight_bound_at_70_percent", x, 0.9);
    } else {
      bench::report({.bench = "speculation",
                     .name = fmt::format("accepted_of_hindsight_bound_at_{}_percent", share),
                     .value = x,
                     .unit = "ratio"});
    }
  }
}
