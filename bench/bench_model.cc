// The bundled model on the CPU backends: prefill and decode tokens per second, and the time from nothing to the first
// token.
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/core_conditions.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"

namespace {

using namespace deepinfer;
using bench::must;

constexpr int kContext = 1024;

std::unique_ptr<ops::Ops> make_ops(const std::string& backend, int threads) {
  if (backend == "fast") return ops::make_cpu_ops(threads);
  return backend == "plain" ? ops::make_plain_ops(threads)
                            : ops::make_reference_ops(ops::ReferenceMode::kExact, threads);
}

std::unique_ptr<model::Model> make_model(const std::string& backend, int threads,
                                         std::shared_ptr<const checkpoint::Checkpoint> checkpoint) {
  model::Options o;
  o.limits.context_max = kContext;
  o.pages = ops::KvLayout::pages_for(kContext);
  Result<std::unique_ptr<model::Model>> m = model::Model::create(std::move(checkpoint), make_ops(backend, threads), o);
  if (!m.ok()) std::exit((std::fprintf(stderr, "%s\n", m.status().to_string().c_str()), 1));
  return std::move(m).value();
}

std::shared_ptr<const checkpoint::Checkpoint> open() {
  Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open("models/tiny");
  if (!c.ok()) std::exit((std::fprintf(stderr, "%s\n", c.status().to_string().c_str()), 1));
  return std::make_shared<const checkpoint::Checkpoint>(std::move(c).value());
}

std::vector<int32_t> random_tokens(int n) {
  std::mt19937 random(1);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

// What other work on the machine, or the host, took from the two threads: their figures hold where all of it is small.
class Conditions {
 public:
  void begin() {
    not_run_ -= bench::seconds_not_run();
    stolen_ -= bench::seconds_stolen();
    wall_ -= bench::wall_seconds();
  }
  void end() {
    not_run_ += bench::seconds_not_run();
    stolen_ += bench::seconds_stolen();
    wall_ += bench::wall_seconds();
  }
  void report() const {
    const auto line = [](const char* name, double value, const char* unit, bool higher) {
      bench::report({.bench = "model", .name = name, .value = value, .unit = unit, .higher_is_better = higher});
    };
    const bench::CoreConditions c = bench::core_conditions();
    line("cores_round_trip_of_a_line", c.round_trip_ns, "ns", false);
    line("cores_two_threads_over_one", c.two_over_one, "ratio", true);
    line("fast_2_threads_ready_but_not_run", not_run_ / wall_, "seconds a second", false);
    line("stolen_by_the_host", stolen_ / wall_, "seconds a second", false);
  }

 private:
  double not_run_ = 0, stolen_ = 0, wall_ = 0;
};

// Tokens per second of one prefill of `rows` and of `steps` decode steps behind it and behind some that are not
// counted: they bring the weights into the caches, which the other backends have used meanwhile.
std::pair<double, double> measure(model::Model& m, int rows, int steps) {
  model::KvAllocator kv(m.kv_memory().page_count, 1);
  model::Sequence s = model::Sequence::create(m, kv).value();
  std::vector<float> logits;
  const int warm = steps / 2;
  const std::vector<int32_t> tokens = random_tokens(rows + warm + steps);
  const double start = bench::wall_seconds();
  must(s.append(std::span(tokens).first(rows), 1, &logits));
  const double prefilled = bench::wall_seconds();
  double begin = 0;
  for (int i = 0; i < warm + steps; ++i) {
    if (i == warm) begin = bench::wall_seconds();
    must(s.append(std::span(tokens).subspan(rows + i, 1), 1, &logits));
  }
  return {rows / (prefilled - start), steps / (bench::wall_seconds() - begin)};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const int repeats = options.quick ? 1 : 5, rows = options.quick ? 64 : 512, steps = options.quick ? 8 : 128;
  std::vector<double> load;
  for (int i = 0; i < repeats; ++i) {
    const double start = bench::wall_seconds();
    const auto m = make_model("plain", available_cores(), open());
    model::KvAllocator kv(m->kv_memory().page_count, 1);
    model::Sequence s = model::Sequence::create(*m, kv).value();
    std::vector<float> logits;
    must(s.append(random_tokens(16), 1, &logits));
    load.push_back(bench::wall_seconds() - start);
  }
  bench::report({.bench = "model",
                 .name = "load_to_first_token",
                 .value = bench::median(load),
                 .unit = "s",
                 .goal = 0.3,
                 .higher_is_better = false});
  const auto checkpoint = open();
  // Decode steps of the backends in turns, so that other work on the machine meets all of them.
  constexpr const char* kBackends[] = {"fast", "plain", "reference"};
  for (const int threads : {1, 2}) {
    std::vector<std::unique_ptr<model::Model>> models;
    for (const char* backend : kBackends) models.push_back(make_model(backend, threads, checkpoint));
    std::vector<double> prefill[3], decode[3];
    Conditions conditions;
    for (int i = 0; i < repeats; ++i) {
      for (int b = 0; b < 3; ++b) {
        if (b == 0) conditions.begin();
        const auto [p, d] = measure(*models[b], rows, steps);
        if (b == 0) conditions.end();
        prefill[b].push_back(p);
        decode[b].push_back(d);
      }
    }
    for (int b = 0; b < 3; ++b) {
      bench::report({.bench = "model",
                     .name = fmt::format("{}_{}_threads_prefill", kBackends[b], threads),
                     .value = bench::median(prefill[b]),
                     .unit = "tokens/s"});
      bench::report({.bench = "model",
                     .name = fmt::format("{}_{}_threads_decode", kBackends[b], threads),
                     .value = bench::median(decode[b]),
                     .unit = "tokens/s"});
    }
    if (threads == 1) continue;
    conditions.report();
    for (const auto& [peer, goal] : {std::pair{1, 3.0}, std::pair{2, 20.0}}) {
      bench::report({.bench = "model",
                     .name = fmt::format("fast_2_threads_decode_over_{}", kBackends[peer]),
                     .value = bench::median(decode[0]),
                     .unit = "tokens/s",
                     .ceiling = bench::median(decode[peer]),
                     .ceiling_is = fmt::format("{}, 2 threads", kBackends[peer]),
                     .goal = goal,
                     .goal_is_ratio = true});
    }
  }
}
