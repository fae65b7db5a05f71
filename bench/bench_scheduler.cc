// Time and allocations of planning a step: 256 sequences decode and 1,000 requests wait, as the engine calls it: plan N
// + 1, then commit N. Thread CPU time a call; allocations counted by replacing operator new.
#include <cstdlib>
#include <new>

#include "bench/bench.h"
#include "sched/scheduler.h"

static int64_t g_allocations = 0;

void* operator new(size_t n) {
  ++g_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

using namespace deepinfer;

constexpr int kRunning = 256, kWaiting = 1000;

struct Times {
  std::vector<double> plan_us, commit_us;
  int64_t allocations = 0, steps = 0, rows = 0;
};

std::unique_ptr<sched::Scheduler> make_scheduler(int prompt, bool prompts_in_steps) {
  sched::SchedulerConfig c;
  c.blocks = kRunning * (prompt / 128 + 40);
  c.slots = c.sequences_max = c.outputs_max = kRunning;
  c.rows_max = kRunning + 512;
  c.context_max = 1 << 20;
  c.waiting_max = 4 * kWaiting;
  c.block_bytes = 114'048;
  c.slot_bytes = 3'128'928;
  c.snapshot_bytes = 1'351'680;
  c.host_bytes_max = 8ull << 30;
  c.host_keeps_bytes = false;
  c.ring_slots = 134 + 268;
  c.prefill_rows_min = prompts_in_steps ? 256 : 32;
  auto s = sched::Scheduler::create(c);
  if (!s.ok()) {
    std::fprintf(stderr, "%s\n", s.status().to_string().c_str());
    std::exit(1);
  }
  for (int t = 1; t <= 16; ++t) (void)s.value()->add_tenant(fmt::format("tenant{}", t), 1 + t % 3).ok();
  return std::move(s).value();
}

void submit(sched::Scheduler& s, int count, int prompt, int max_tokens, uint64_t& seed) {
  for (int i = 0; i < count; ++i) {
    sched::Request r;
    for (int k = 0; k < prompt; ++k) r.prompt.push_back(static_cast<int32_t>((seed * 31 + k * 7) % 100'000));
    r.max_tokens = max_tokens;
    r.tenant = static_cast<int32_t>(seed % 17);
    r.seed = ++seed;
    const auto id = s.submit(std::move(r), 0);
    if (!id.ok()) std::fprintf(stderr, "%s\n", id.status().to_string().c_str());
  }
}

// Runs `steps` steps; a step counts once `ready` sequences decode in it.
Times run(sched::Scheduler& s, int steps, int ready, bool decode_only) {
  Times t;
  sched::StepResult results[2];
  std::vector<sched::Ended> ended;
  const auto fill = [](const sched::Plan& plan, sched::StepResult& result) {
    result.samples.resize(plan.samples.size());
    for (size_t i = 0; i < plan.samples.size(); ++i) result.samples[i].tokens.assign(1, static_cast<int32_t>(i + 1));
  };
  double now = 0;
  bool decoded_before = false;  // what is committed is the step before
  fill(s.plan(now), results[0]);
  int64_t n = 1;
  for (; t.steps < steps; ++n) {
    if (n > 200'000) {
      std::fprintf(stderr, "only %lld of %d steps had %d sequences\n", static_cast<long long>(t.steps), steps, ready);
      std::exit(1);
    }
    now += 0.01;
    const int64_t allocations = g_allocations;
    const double a = bench::thread_cpu_seconds();
    const sched::Plan& plan = s.plan(now);
    const double b = bench::thread_cpu_seconds();
    const int64_t planned = g_allocations - allocations;
    fill(plan, results[n % 2]);
    const bool seals = !plan.before.empty();
    for (const sched::MemoryOp& op : plan.before) {
      if (op.kind == sched::MemoryOp::Kind::kSeal) s.host().seal(op.host);
    }
    const bool counts = static_cast<int>(plan.samples.size()) >= ready &&
                        (!decode_only || (!seals && plan.step.tokens.size() == plan.samples.size()));
    const int64_t before_commit = g_allocations;
    const double c = bench::thread_cpu_seconds();
    s.commit(results[(n - 1) % 2], now);
    const double d = bench::thread_cpu_seconds();
    ended.clear();
    s.take_ended(&ended);
    const int64_t committed = g_allocations - before_commit;
    const bool both = counts && (decoded_before || !decode_only);
    decoded_before = counts;
    if (!both) continue;
    ++t.steps;
    t.rows += static_cast<int64_t>(plan.step.tokens.size());
    t.plan_us.push_back(1e6 * (b - a));
    t.commit_us.push_back(1e6 * (d - c));
    t.allocations += planned + committed;
  }
  s.commit(results[(n - 1) % 2], now);
  return t;
}

void report(const std::string& name, double value, const std::string& unit, std::optional<double> goal) {
  bench::report(
      {.bench = "scheduler", .name = name, .value = value, .unit = unit, .goal = goal, .higher_is_better = false});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const int steps = options.quick ? 100 : 3000;
  uint64_t seed = 1;
  {
    auto s = make_scheduler(2048, false);
    submit(*s, kRunning, 2048, 200'000, seed);
    submit(*s, kWaiting, 2048, 200'000, seed);
    const Times t = run(*s, steps, kRunning, true);
    report("plan_decode_256_running_1000_waiting", bench::median(t.plan_us), "us", 50);
    report("plan_decode_256_running_1000_waiting_p99", bench::quantile(t.plan_us, 0.99), "us", std::nullopt);
    report("commit_decode_256", bench::median(t.commit_us), "us", std::nullopt);
    report("allocations_decode_step", static_cast<double>(t.allocations) / static_cast<double>(t.steps), "allocations",
           0);
  }
  {
    auto s = make_scheduler(32'768, false);
    submit(*s, kRunning, 32'768, 200'000, seed);
    submit(*s, kWaiting, 1024, 200'000, seed);
    const Times t = run(*s, options.quick ? 50 : 1000, kRunning, true);
    report("plan_decode_256_of_32k_context", bench::median(t.plan_us), "us", std::nullopt);
  }
  {
    // Answers of 200 tokens: prompts come and go, so that steps mix decode with prefill, admissions and ends.
    auto s = make_scheduler(2048, true);
    submit(*s, kRunning, 2048, 200, seed);
    Times sum;
    for (int round = 0; round < (options.quick ? 2 : 40); ++round) {
      submit(*s, kWaiting - s->stats().waiting, 2048, 200, seed);
      const Times t = run(*s, 50, 1, false);
      sum.plan_us.insert(sum.plan_us.end(), t.plan_us.begin(), t.plan_us.end());
      sum.rows += t.rows;
    }
    report("plan_mixed_1000_waiting", bench::median(sum.plan_us), "us", 50);
    report("plan_mixed_1000_waiting_p99", bench::quantile(sum.plan_us, 0.99), "us", std::nullopt);
  }
  return 0;
}
