// The engine around the model: time between two forwards and CPU time of each part of a step, throughput against a bare
// loop on a device of sleeping steps, and decode of the bundled model at batch 1, 8 and 32 beside a loop that does
// nothing but forwards.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/kv_memory.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/kv_layout.h"

namespace {
std::atomic<int64_t> g_heap_bytes{0};  // of this program's objects; what malloc keeps for later is none
}

static void* counted(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  g_heap_bytes.fetch_add(static_cast<int64_t>(::malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}

[[gnu::noinline]] void* operator new(size_t n) { return counted(std::malloc(n)); }
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(unit, (n + unit - 1) / unit * unit));
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  g_heap_bytes.fetch_sub(static_cast<int64_t>(::malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { ::operator delete(p); }

namespace {

using namespace deepinfer;
using bench::must;

constexpr int kVocab = 8192, kPrompt = 16;

// A device whose steps only take time, or none: logits are fixed random rows.
class SleepingDevice : public engine::StepExecutor {
 public:
  SleepingDevice(int sequences, std::chrono::microseconds step) : step_(step) {
    info_.vocab_size = kVocab;
    info_.context_max = 4096;
    info_.rows_max = 1024;
    info_.sequences_max = sequences;
    info_.outputs_max = 64;
    info_.blocks = 32 * sequences;
    info_.slots = sequences;
    info_.window = 128;
    info_.encoder_layers = 20;
    info_.ring_slots = 512;
    info_.backtrack = 12;
    info_.leaves_cores = true;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    logits_.resize(64 * kVocab);
    for (float& x : logits_) x = normal(random);
  }
  const engine::ExecutorInfo& info() const override { return info_; }
  Status copy(std::span<const sched::MemoryOp>, kv::HostStore&) override { return Status(); }
  Status forward(const model::StepPlan& plan) override {
    const double begin = bench::wall_seconds();
    // Steps that go on with the sequences of the step before them: nothing but decode.
    if (step_.count() > 0) {
      if (plan.sequences.size() == rows_ && plan.tokens.size() == rows_) gaps_.push_back(begin - ended_);
      std::this_thread::sleep_for(step_);
    }
    rows_ = plan.sequences.size();
    ended_ = bench::wall_seconds();
    return Status();
  }
  // Seconds between the end of a forward and the begin of the next one, in decode. While no step runs.
  std::vector<double> take_gaps() { return std::exchange(gaps_, {}); }
  Result<std::span<const float>> logits(int rows) override {
    return std::span<const float>(logits_).first(static_cast<size_t>(rows) * kVocab);
  }

 private:
  const std::chrono::microseconds step_;
  engine::ExecutorInfo info_;
  std::vector<float> logits_;
  std::vector<double> gaps_;
  size_t rows_ = 0;
  double ended_ = 0;
};

std::vector<int32_t> random_tokens(int n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

engine::Request make_request(int i, int tokens, bool full_pass) {
  engine::Request r;
  r.prompt = random_tokens(kPrompt, i);
  r.seed = static_cast<uint64_t>(i);
  r.max_tokens = tokens;
  r.ignore_end = true;
  r.sampling.temperature = full_pass ? 0.8 : 0;
  if (full_pass) {
    r.sampling.top_p = 0.9;
    r.sampling.frequency_penalty = 0.2f;
  }
  return r;
}

// `batch` answers of `tokens` tokens.
std::vector<std::unique_ptr<engine::Stream>> start(engine::Engine& e, int batch, int tokens, bool full_pass) {
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (int i = 0; i < batch; ++i) streams.push_back(must(e.submit(make_request(i, tokens, full_pass))));
  return streams;
}

void read_all(std::vector<std::unique_ptr<engine::Stream>>& streams) {
  engine::Event event;
  for (auto& s : streams) {
    while (s->next(&event)) {
    }
  }
}

// CPU seconds a step of each part. Only sample lies between two forwards.
engine::StepTimes step_times(engine::Engine& e, int batch, int tokens, bool full_pass) {
  const engine::EngineStats a = e.stats();
  auto streams = start(e, batch, tokens, full_pass);
  read_all(streams);
  const engine::EngineStats b = e.stats();
  const auto steps = static_cast<double>(b.steps - a.steps);
  return {.plan = (b.times.plan - a.times.plan) / steps,
          .prepare = (b.times.prepare - a.times.prepare) / steps,
          .sample = (b.times.sample - a.times.sample) / steps,
          .launch = (b.times.launch - a.times.launch) / steps,
          .commit = (b.times.commit - a.times.commit) / steps,
          .stream = (b.times.stream - a.times.stream) / steps};
}

// When the steps began in which `batch` answers got a token each: requests come one by one, so that the first and the
// last steps have fewer.
class FullSteps : public engine::StepObserver {
 public:
  explicit FullSteps(size_t batch) : batch_(batch) {}
  bool wants_logits() const override { return false; }
  void on_step(const engine::StepRecord& r) override {
    const model::StepPlan& step = r.plan.step;
    if (step.sequences.size() == batch_ && step.tokens.size() == batch_) begins_.push_back(r.at.started);
  }
  double tokens_per_second() const {
    return static_cast<double>(batch_ * (begins_.size() - 1)) / (begins_.back() - begins_.front());
  }

 private:
  const size_t batch_;
  std::vector<double> begins_;
};

std::unique_ptr<engine::Engine> make_engine(std::unique_ptr<engine::StepExecutor> executor, int tokens,
                                            std::shared_ptr<engine::StepObserver> observer = nullptr) {
  engine::EngineOptions o;
  o.observer = std::move(observer);
  o.queue_events = tokens + 8;  // the reader must not be what is measured
  o.cpu_times = true;
  return must(engine::Engine::create(std::move(executor), std::nullopt, o));
}

// Tokens a second while `batch` answers are decoded.
double decode_rate(std::unique_ptr<engine::StepExecutor> executor, int batch, int tokens) {
  const auto steps = std::make_shared<FullSteps>(batch);
  const auto e = make_engine(std::move(executor), tokens, steps);
  auto streams = start(*e, batch, tokens, false);
  read_all(streams);
  must(e->check_accounting());  // the observer has seen the last step
  return steps->tokens_per_second();
}

void outside_forward(int batch, bool full_pass, int tokens, int repeats, double goal) {
  auto executor = std::make_unique<SleepingDevice>(batch, std::chrono::microseconds(1000));
  SleepingDevice* device = executor.get();
  const auto e = make_engine(std::move(executor), tokens);
  std::vector<double> plan, sample, commit, stream, gaps;
  for (int i = 0; i < repeats; ++i) {
    const engine::StepTimes t = step_times(*e, batch, tokens, full_pass);
    plan.push_back((t.plan + t.prepare) * 1e6);
    sample.push_back((t.sample + t.launch) * 1e6);
    commit.push_back(t.commit * 1e6);
    stream.push_back(t.stream * 1e6);
    must(e->check_accounting());  // no step runs any more
    std::vector<double> wall = device->take_gaps();
    for (double& g : wall) g *= 1e6;
    gaps.push_back(bench::median(wall));
  }
  const std::string name = fmt::format("{}_batch_{}", full_pass ? "full_pass" : "greedy", batch);
  const auto report = [&](const std::string& part, const std::vector<double>& v, std::optional<double> g) {
    bench::report({.bench = "engine",
                   .name = part + "_" + name,
                   .value = bench::median(v),
                   .unit = "us",
                   .goal = g,
                   .higher_is_better = false});
  };
  report("outside_forward", gaps, goal);
  report("plan", plan, {});
  report("sample", sample, {});
  report("commit", commit, {});
  report("stream", stream, {});
}

void sleeping_steps(int batch, int tokens, int repeats) {
  std::vector<double> with, bare;
  for (int i = 0; i < repeats; ++i) {
    with.push_back(decode_rate(std::make_unique<SleepingDevice>(batch, std::chrono::milliseconds(5)), batch, tokens));
    SleepingDevice device(batch, std::chrono::milliseconds(5));
    model::StepPlan plan;
    const double begin = bench::wall_seconds();
    for (int k = 0; k < tokens; ++k) must(device.forward(plan));
    bare.push_back(batch * tokens / (bench::wall_seconds() - begin));
  }
  bench::report({.bench = "engine",
                 .name = fmt::format("steps_of_5_ms_batch_{}", batch),
                 .value = bench::median(with),
                 .unit = "tokens/s",
                 .ceiling = bench::median(bare),
                 .ceiling_is = "the same steps in a bare loop",
                 .goal = 0.99,
                 .goal_is_ratio = true});
}

// Forwards of `batch` sequences and nothing else.
double bare_decode(model::Model& m, int batch, int tokens) {
  model::KvAllocator kv(m.kv_memory().page_count, m.kv_memory().slot_count);
  std::vector<model::Sequence> sequences;
  std::vector<float> logits;
  for (int i = 0; i < batch; ++i) {
    sequences.push_back(must(model::Sequence::create(m, kv)));
    must(sequences.back().append(random_tokens(kPrompt, i), 1, &logits));
  }
  model::StepPlan plan;
  const std::vector<int32_t> list = random_tokens(tokens, 0);
  const double begin = bench::wall_seconds();
  for (int k = 0; k < tokens; ++k) {
    plan.clear();
    const std::span token(&list[static_cast<size_t>(k)], 1);
    for (model::Sequence& s : sequences) must(s.add_rows(plan, token, 1));
    must(m.forward(plan));
    must(m.ops().synchronize());
    for (model::Sequence& s : sequences) s.commit_rows(token);
  }
  return batch * tokens / (bench::wall_seconds() - begin);
}

void bundled(int batch, int tokens, int repeats) {
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open("models/tiny")));
  constexpr int kContext = 1024;
  const engine::ModelExecutorOptions sizes{
      .context_max = kContext, .sequences_max = batch, .blocks = batch * ops::KvLayout::pages_for(kContext)};
  const auto make = [&] {
    return must(engine::ModelExecutor::create(checkpoint, ops::make_cpu_ops(available_cores()), sizes));
  };
  // Both on a model of their own that nobody has used: its memory is new to the caches.
  std::vector<double> with, bare;
  for (int i = 0; i < repeats; ++i) {
    with.push_back(decode_rate(make(), batch, tokens));
    bare.push_back(bare_decode(make()->model(), batch, tokens));
  }
  bench::report({.bench = "engine",
                 .name = fmt::format("bundled_decode_batch_{}", batch),
                 .value = bench::median(with),
                 .unit = "tokens/s",
                 .ceiling = bench::median(bare),
                 .ceiling_is = "forwards in a bare loop"});
}

// A prompt of 4,096 tokens once more: its blocks and windows are cached.
void prefix_hit(int tokens, int repeats) {
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open("models/tiny")));
  const engine::ModelExecutorOptions sizes{.context_max = tokens + 128, .sequences_max = 2};
  const auto e =
      make_engine(must(engine::ModelExecutor::create(checkpoint, ops::make_cpu_ops(available_cores()), sizes)), 64);
  std::vector<double> cold, hit;
  for (int i = 0; i < repeats; ++i) {
    engine::Request r;
    r.prompt = random_tokens(tokens, i);
    r.max_tokens = 4;
    r.seed = 1;
    for (std::vector<double>* times : {&cold, static_cast<std::vector<double>*>(nullptr), &hit}) {
      r.cache = times != &cold;
      const auto stream = must(e->submit(r));
      engine::Event event;
      while (stream->next(&event)) {
      }
      if (times != nullptr) times->push_back(event.usage.first_token_s * 1e3);
    }
  }
  bench::report({.bench = "engine",
                 .name = "first_token_of_a_cached_prompt_4k",
                 .value = bench::median(hit),
                 .unit = "ms",
                 .ceiling = bench::median(cold),
                 .ceiling_is = "the same prompt cold",
                 .goal = 0.1,
                 .goal_is_ratio = true,
                 .higher_is_better = false});
}

// Heap of the engine, without the device: what a running sequence takes, and what is left of requests that have ended.
void memory(int requests) {
  constexpr int kBatch = 32;
  const auto e = make_engine(std::make_unique<SleepingDevice>(kBatch, std::chrono::microseconds(0)), 64);
  const auto run = [&](int count) {
    for (int done = 0; done < count; done += kBatch) {
      auto streams = start(*e, kBatch, 3, false);
      read_all(streams);
    }
    must(e->check_accounting());
  };
  run(requests / 10);
  const int64_t before = g_heap_bytes;
  run(requests);
  bench::report({.bench = "engine",
                 .name = "heap_growth_over_100000_requests",
                 .value = static_cast<double>(g_heap_bytes - before) / 1024,
                 .unit = "KiB",
                 .goal = 64,
                 .higher_is_better = false});
  const int64_t idle = g_heap_bytes;
  auto streams = start(*e, kBatch, 4000, true);
  engine::Event event;
  for (auto& s : streams) s->next(&event);
  bench::report({.bench = "engine",
                 .name = "heap_of_a_running_sequence",
                 .value = static_cast<double>(g_heap_bytes - idle) / 1024 / kBatch,
                 .unit = "KiB",
                 .higher_is_better = false});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const int repeats = options.quick ? 1 : 7, tokens = options.quick ? 30 : 400;
  const int batches[] = {1, 8, 32};
  const double greedy_goals[] = {20, 40, 100}, full_goals[] = {40, 120, 400};
  for (int i = 0; i < 3; ++i) {
    outside_forward(batches[i], false, tokens, repeats, greedy_goals[i]);
    outside_forward(batches[i], true, tokens, repeats, full_goals[i]);
  }
  for (int batch : batches) sleeping_steps(batch, options.quick ? 20 : 200, options.quick ? 1 : 5);
  prefix_hit(options.quick ? 512 : 4096, options.quick ? 1 : 5);
  memory(options.quick ? 3200 : 100000);
  for (int batch : batches) bundled(batch, options.quick ? 8 : 400, options.quick ? 1 : 5);
}
