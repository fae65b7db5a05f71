// What it is worth that the host computes some experts (docs/cuda.md): layers of the full width with random weights, of
// whose experts a share fits into the GPU, decoded and prefilled with several numbers of experts that are the host's.
//
//   cuda_host_experts_rates FOLDER [--layers 3] [--experts 128] [--resident 0.4] [--quick] [N|auto ...]
//
// Of each number: steps of the model, whose router with random weights prefers few experts; and, in brackets, the
// experts of a layer alone with uniform choices. FOLDER: where the checkpoint is, or is written (7.3 GB with these
// sizes; as much pinned memory). Times are means of steps behind as many that fill the slots.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/cuda/full_width.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random_checkpoint.h"
#include "model/kv_memory.h"
#include "model/model.h"
#include "model/sequence.h"
#include "model/weights.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/make.h"
#include "ops/host_experts.h"

namespace bench {
namespace {

using namespace deepinfer;

constexpr int kContext = 4096, kRowsMax = 256;

struct Arguments {
  std::string folder;
  int layers = 3, experts = 128;
  double resident = 0.4;
  bool quick = false;
  std::vector<int> counts;
};

// Mean seconds of a step of `rows` rows.
double step_s(model::Sequence& s, int rows, int steps, std::mt19937& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  std::vector<float> logits;
  double begin = 0;
  for (int i = 0; i < 2 * steps; ++i) {
    if (i == steps) begin = wall_seconds();
    for (int32_t& t : tokens) t = static_cast<int32_t>(10 + random() % 16000);
    must(s.append(tokens, 1, &logits));
  }
  return (wall_seconds() - begin) / steps;
}

// Mean seconds of the experts of a layer for the rows of the last step, which choose anew each time, all alike.
double uniform_s(model::Model& m, int rows, int steps, std::mt19937& random) {
  ops::Ops& ops = m.ops();
  const int layers = static_cast<int>(m.config().num_hidden_layers), per_row = ops.experts_per_row(0);
  const auto columns = static_cast<size_t>(ops.buffer(ops::Role::kExpertIds).cols);
  std::vector<double> ids(static_cast<size_t>(rows) * columns, -1);
  std::vector<int> all(static_cast<size_t>(m.config().n_routed_experts));
  for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int>(e);
  double seconds = 0;
  for (int i = 0; i < 2 * steps * layers; ++i) {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (size_t k = 0; k < static_cast<size_t>(per_row); ++k) {
        std::swap(all[k], all[k + random() % (all.size() - k)]);
        ids[r * columns + k] = all[k];
      }
    }
    must(ops.write(ops::Role::kExpertIds, 0, rows, ids));
    const ops::At at{i % layers, ops::Rows::kEncoder};
    const double begin = wall_seconds();
    ops.experts(at, ops.local_expert_rows(at));
    ops.shared_expert(at);
    ops.combine(at);
    must(ops.synchronize());
    if (i >= steps * layers) seconds += wall_seconds() - begin;
  }
  return seconds / (steps * layers);
}

// What this processor needs for an expert, by instruction set and threads.
void cpu_rates(const checkpoint::Checkpoint& c) {
  for (const char* isa : {"amx", "avx512", "avx2"}) {
    for (const int threads : {available_cores() / 2, std::max(1, available_cores() - 2), available_cores()}) {
      std::shared_ptr<ops::Ops> cpu = ops::make_fast_ops(threads, isa);
      if (cpu == nullptr) continue;
      auto host = ops::HostExperts::create(std::move(cpu), c.config(), model::collect_weights(c, nullptr), kRowsMax);
      must(host.status());
      std::printf("CPU, %s, %d threads, ms an expert:", isa, threads);
      for (const auto& [experts, rows] : {std::pair(1, 1), std::pair(2, 1), std::pair(6, 1), std::pair(6, 4),
                                          std::pair(6, 12), std::pair(6, 64)}) {
        std::printf("  %d of %d rows %.3f", experts, rows, 1e3 * host.value()->measure(experts, rows));
      }
      std::printf("\n");
    }
  }
}

void measure(std::shared_ptr<const checkpoint::Checkpoint> c, const Arguments& a, int count) {
  const double start = wall_seconds();
  const int slots = std::max(a.experts, static_cast<int>(a.resident * a.experts * a.layers));
  ops::cuda::Options options{.expert_slots_max = slots, .host_experts = count};
  if (count != 0) options.host = ops::make_cpu_ops(std::max(1, available_cores() - 2));
  Result<std::unique_ptr<ops::Ops>> gpu = ops::cuda::make(0, options);
  must(gpu.status());
  model::Options o;
  o.limits.rows_max = kRowsMax;
  o.limits.context_max = kContext;
  o.pages = ops::KvLayout::pages_for(kContext);
  Result<std::unique_ptr<model::Model>> m = model::Model::create(std::move(c), std::move(gpu).value(), o);
  must(m.status());
  const double loaded = wall_seconds() - start;
  ops::Ops& ops = m.value()->ops();
  std::printf("%s: %s (%s)\n", count == ops::kAutoHostExperts ? "auto" : std::to_string(count).c_str(),
              ops::cuda::placement(ops).c_str(), ops.capabilities().numeric_class.c_str());
  std::mt19937 random(7);
  model::KvAllocator kv(o.pages, 1);
  Result<model::Sequence> s = model::Sequence::create(*m.value(), kv);
  must(s.status());
  std::printf("  %d of the host's, loaded in %.1f s", ops::cuda::expert_traffic(ops).host_experts, loaded);
  for (const auto& [rows, steps] : {std::pair(1, 200), std::pair(8, 24), std::pair(64, 8), std::pair(256, 3)}) {
    const ops::cuda::ExpertTraffic before = ops::cuda::expert_traffic(ops);
    const int n = a.quick ? std::max(1, steps / 8) : steps;
    const double seconds = step_s(s.value(), rows, n, random);
    const ops::cuda::ExpertTraffic after = ops::cuda::expert_traffic(ops);
    std::printf("\n  %3d rows: %.3f ms a layer, %.1f tokens/s, %.2f of the GPU's %.2f experts copied", rows,
                1e3 * seconds / a.layers, rows / seconds,
                static_cast<double>(after.missing - before.missing) / (2.0 * n * a.layers),
                static_cast<double>(after.asked - before.asked) / (2.0 * n * a.layers));
    const double uniform = uniform_s(*m.value(), rows, std::max(2, n / 2), random);
    const ops::cuda::ExpertTraffic last = ops::cuda::expert_traffic(ops);
    std::printf("  [%.3f ms, %.2f of %.2f]", 1e3 * uniform,
                static_cast<double>(last.missing - after.missing) / (2.0 * std::max(2, n / 2) * a.layers),
                static_cast<double>(last.asked - after.asked) / (2.0 * std::max(2, n / 2) * a.layers));
  }
  std::printf("\n");
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--quick") {
      a.quick = true;
    } else if (word == "--layers" && has_value) {
      a.layers = std::max(2, std::atoi(argv[++i]));
    } else if (word == "--experts" && has_value) {
      a.experts = std::max(8, std::atoi(argv[++i]));
    } else if (word == "--resident" && has_value) {
      a.resident = std::atof(argv[++i]);
    } else if (a.folder.empty()) {
      a.folder = word;
    } else {
      a.counts.push_back(word == "auto" ? ops::kAutoHostExperts : std::atoi(word.c_str()));
    }
  }
  if (a.folder.empty()) {
    std::printf("usage: cuda_host_experts_rates FOLDER [--layers N] [--experts N] [--resident SHARE] [--quick] "
                "[N|auto ...]\n");
    return 2;
  }
  if (a.counts.empty()) a.counts = {0, a.experts / 8, a.experts / 4, a.experts / 2, ops::kAutoHostExperts};
  const double start = wall_seconds();
  if (!std::filesystem::exists(a.folder + "/config.json")) {
    must(checkpoint::write_random_checkpoint(full_width(a.layers, a.experts), a.folder, {.seed = 5}));
    std::printf("checkpoint written in %.1f s\n", wall_seconds() - start);
  }
  Result<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::open(a.folder);
  must(opened.status());
  const auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened).value());
  std::printf("%s; %d layers of %d experts, slots for %.2f of them\n", machine().c_str(), a.layers, a.experts,
              a.resident);
  if (!a.quick) cpu_rates(*checkpoint);
  for (const int count : a.counts) measure(checkpoint, a, count);
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run(argc, argv); }
