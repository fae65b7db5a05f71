// Drafts on this CPU with the bundled model: the same requests on an engine without drafts and on one with them, in
// turns, at batch 1, 8, 32 and 64. Both keep running, so what the governor learns from the first requests is paid for
// here. No prompt comes twice, so that no answer is just known; both share prefixes. At batch 1 answers end where the
// model ends them, as when served; in larger batches all are of one length, so that the batch stays as large as it is.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/draft_recording.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "recipe/json.h"

namespace {

using namespace deepinfer;
using bench::kDrafts;
using bench::PromptKind;
using bench::must;

constexpr const char* kModel = "models/tiny";
constexpr const char* kKinds[] = {"chat", "tools", "text"};

std::shared_ptr<const checkpoint::Checkpoint> open_model() {
  return std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open(kModel)));
}

std::unique_ptr<engine::Engine> make_engine(int batch, bool drafts) {
  engine::EngineOptions o;
  const auto model = open_model();
  if (batch == 1) o.end_tokens = {static_cast<int32_t>(model->config().eos_token_id)};
  o.queue_events = 512;  // the reader must not be what is measured
  if (drafts) {
    o.drafts = {.mode = engine::DraftMode::kConfidence, .drafts_max = kDrafts};
    const recipe::Json json =
        must(recipe::parse_json(must(read_file(std::string(kModel) + "/draft_temperatures.json", 1 << 16))));
    for (const recipe::Json& t : json.find("draft_temperatures")->as_array())
      o.drafts.temperatures.push_back(static_cast<float>(t.as_double()));
  }
  const engine::ModelExecutorOptions sizes{
      .context_max = 1024, .sequences_max = batch, .drafts_max = drafts ? kDrafts : 0};
  auto executor =
      must(engine::ModelExecutor::create(model, ops::make_cpu_ops(available_cores()), sizes));
  return must(engine::Engine::create(std::move(executor), std::nullopt, o));
}

struct Seconds {
  double wall = 0, cpu = 0;  // of this process
};

Seconds now() {
  timespec t = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return {bench::wall_seconds(), static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec)};
}

// The prompts of a run, none of them twice.
class Requests {
 public:
  std::vector<int32_t> next(PromptKind kind) {
    uint32_t& seed = seeds_[static_cast<size_t>(kind)];
    for (;;) {
      std::vector<int32_t> ids = prompts_.ids(kind, seed++);
      if (seen_.insert(ids).second || seed > kSeedsMax) return ids;
    }
  }

 private:
  static constexpr uint32_t kSeedsMax = 20000;  // there are only so many texts
  const bench::Prompts prompts_{kModel};
  std::array<uint32_t, 3> seeds_ = {};
  std::set<std::vector<int32_t>> seen_;
};

struct Asked {
  PromptKind kind = PromptKind::kChat;
  std::vector<int32_t> prompt;
};

// From the first token of the last answer to begin until all have ended. Answers of the two engines are equal.
Seconds run(engine::Engine& e, const std::vector<Asked>& asked, int round, int tokens, std::vector<int32_t>* out) {
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (int i = 0; i < std::ssize(asked); ++i) {
    const Asked& a = asked[static_cast<size_t>(i)];
    engine::Request r;
    r.prompt = a.prompt;
    r.seed = static_cast<uint64_t>(round * std::ssize(asked) + i);
    r.max_tokens = tokens;
    // As the API sets it for requests with tools.
    if (a.kind == PromptKind::kTools) r.traffic = kv::Traffic::kAgent;
    r.sampling.temperature = (round + i) % 2 == 0 ? 0 : 0.8;
    streams.push_back(must(e.submit(r)));
  }
  engine::Event event;
  out->clear();
  for (auto& s : streams) {
    if (s->next(&event)) out->push_back(event.token);
  }
  const Seconds begin = now();
  for (auto& s : streams) {
    while (s->next(&event)) out->push_back(event.token);
  }
  const Seconds end = now();
  return {end.wall - begin.wall, end.cpu - begin.cpu};
}

void report(const std::string& name, double value, std::optional<double> goal, const char* unit = "ratio") {
  bench::report({.bench = "drafts", .name = name, .value = value, .unit = unit, .goal = goal});
}

double tokens_a_step(const engine::DraftStats& s) {
  return static_cast<double>(s.tokens) / static_cast<double>(std::max<int64_t>(1, s.turns));
}

struct Sums {
  std::array<double, 3> off_s = {}, on_s = {}, off_cpu = {}, on_cpu = {};  // by kind; of mixed ones the first
  std::array<engine::DraftStats, 3> stats = {};
  std::vector<double> ratios;  // of the pairs
};

double sum(const std::array<double, 3>& s) { return s[0] + s[1] + s[2]; }

// One engine of each.
void run_pair(int batch, int tokens, bool on_first, const std::vector<std::vector<Asked>>& asked, Sums* sums) {
  std::unique_ptr<engine::Engine> off, on;
  for (const bool drafts : {on_first, !on_first}) (drafts ? on : off) = make_engine(batch, drafts);
  std::vector<int32_t> plain, drafted;
  double off_s = 0, on_s = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto round = static_cast<int>(batch == 1 ? i / 3 : i);
    const size_t at = batch == 1 ? i % 3 : 0;
    const engine::DraftStats before = on->stats().drafts;
    Seconds a, b;
    for (const bool first : {true, false}) {
      if (first == (round % 2 == 0)) {
        a = run(*off, asked[i], round, tokens, &plain);
      } else {
        b = run(*on, asked[i], round, tokens, &drafted);
      }
    }
    if (plain != drafted) must(make_error(Code::kInternal, "drafts changed an answer"));
    off_s += a.wall;
    on_s += b.wall;
    sums->off_s[at] += a.wall;
    sums->on_s[at] += b.wall;
    sums->off_cpu[at] += a.cpu;
    sums->on_cpu[at] += b.cpu;
    const engine::DraftStats after = on->stats().drafts;
    sums->stats[at].tokens += after.tokens - before.tokens;
    sums->stats[at].turns += after.turns - before.turns;
  }
  sums->ratios.push_back(off_s / on_s);
}

// Kinds one after the other at batch 1, where a step is one request's; mixed in larger batches. Two engines that are
// alike differ by some percent for as long as they live, by where their memory lies: so there are several pairs.
void decode(int batch, int pairs, int rounds, int tokens) {
  Requests requests;
  std::vector<std::vector<Asked>> asked;
  for (int i = 0; i < rounds * (batch == 1 ? 3 : 1); ++i) {
    asked.emplace_back();
    for (int k = 0; k < batch; ++k) {
      const auto kind = static_cast<PromptKind>((batch == 1 ? i : k) % 3);
      asked.back().push_back({kind, requests.next(kind)});
    }
  }
  Sums sums;
  for (int pair = 0; pair < pairs; ++pair) run_pair(batch, tokens, pair % 2 == 0, asked, &sums);
  engine::DraftStats all;
  for (const engine::DraftStats& s : sums.stats) {
    all.tokens += s.tokens;
    all.turns += s.turns;
  }
  report(fmt::format("on_over_off_batch_{}", batch), sum(sums.off_s) / sum(sums.on_s), 0.98);
  report(fmt::format("on_over_off_batch_{}_median", batch), bench::median(sums.ratios), {});
  report(fmt::format("on_over_off_batch_{}_cpu", batch), sum(sums.off_cpu) / sum(sums.on_cpu), {});
  report(fmt::format("tokens_per_step_batch_{}", batch), tokens_a_step(all), {}, "tokens");
  if (batch > 1) return;
  for (size_t k = 0; k < 3; ++k) {
    report(fmt::format("on_over_off_batch_1_{}", kKinds[k]), sums.off_s[k] / sums.on_s[k],
           kKinds[k] == std::string_view("tools") ? std::optional(1.3) : std::nullopt);
    report(fmt::format("on_over_off_batch_1_{}_cpu", kKinds[k]), sums.off_cpu[k] / sums.on_cpu[k], {});
    report(fmt::format("tokens_per_step_batch_1_{}", kKinds[k]), tokens_a_step(sums.stats[k]), {}, "tokens");
  }
}

// What a step of 6 rows and a draft round of 5 cost, in steps of one row.
void costs(int repeats) {
  model::Options o;
  o.limits.context_max = 1024;
  o.pages = ops::KvLayout::pages_for(1024);
  const auto m = must(model::Model::create(open_model(), ops::make_cpu_ops(available_cores()), o));
  model::KvAllocator kv(o.pages, 1);
  model::Sequence s = must(model::Sequence::create(*m, kv));
  std::vector<float> logits;
  must(s.append(std::vector<int32_t>(64, 9), 1, &logits));
  std::vector<double> one, six, round;
  for (int i = 0; i < repeats; ++i) {
    for (std::vector<double>* times : {&one, &six}) {
      const std::vector<int32_t> rows(times == &one ? 1 : 1 + kDrafts, 9);
      model::StepPlan plan;
      must(s.add_rows(plan, rows, static_cast<int32_t>(rows.size())));
      plan.feeds_drafter = times == &six;
      const double begin = bench::wall_seconds();
      must(m->forward(plan));
      must(m->ops().synchronize());
      times->push_back(bench::wall_seconds() - begin);
    }
    const model::DraftPlan plan{.drafts = kDrafts,
                                .sequences = {{.slot = s.slot(), .position = s.size() - 1, .token = 9}}};
    const double begin = bench::wall_seconds();
    must(m->draft(plan, m->greedy_chooser()));
    must(m->ops().synchronize());
    round.push_back(bench::wall_seconds() - begin);
  }
  const auto in_steps = [&](const std::vector<double>& s) { return bench::median(s) / bench::median(one); };
  bench::report({.bench = "drafts", .name = "step_of_6_rows_over_1_row", .value = in_steps(six), .unit = "steps",
                 .higher_is_better = false});
  bench::report({.bench = "drafts", .name = "draft_round_over_1_row", .value = in_steps(round), .unit = "steps",
                 .higher_is_better = false});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  int only = 0;  // --batch N: no other one
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == std::string_view("--batch")) only = std::atoi(argv[i + 1]);
  }
  if (only == 0) costs(options.quick ? 20 : 400);
  struct Size {
    int batch, pairs, rounds, tokens;
  };
  const std::vector<Size> sizes =
      options.quick ? std::vector<Size>{{1, 1, 2, 16}, {8, 1, 1, 16}, {32, 1, 1, 8}, {64, 1, 1, 8}}
                    : std::vector<Size>{{1, 8, 40, 96}, {8, 6, 6, 96}, {32, 6, 3, 96}, {64, 6, 3, 96}};
  for (const Size& s : sizes) {
    if (only == 0 || only == s.batch) decode(s.batch, s.pairs, s.rounds, s.tokens);
  }
}
