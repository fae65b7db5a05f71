// The fast CPU backend beside llama.cpp's: shares of the memory stream at decode and of the bf16 peak at prefill, each
// on weights of about 98 MB (a random checkpoint of ours; SmolLM2-135M for llama.cpp, see peers/llama_cpp.sh), one
// thread, by CPU time. Bytes are the weights that a token reads; operations two for each of these weights.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include "bench/bench.h"
#include "bench/memory_stream.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random_checkpoint.h"
#include "model/sequence.h"
#include "model/weights.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/fast/kernels.h"

namespace {

using namespace deepinfer;
using bench::must;

constexpr int kPrompt = 512, kSteps = 48, kContext = 1024;
// SmolLM2-135M-Instruct.Q4_1: bytes of its tensors, and the parameters of its layers (the head is the embedding).
constexpr double kPeerBytes = 96.6e6, kPeerParameters = 134.5e6 - 49152.0 * 576;

checkpoint::ModelConfig config() {
  checkpoint::ModelConfig c = must(checkpoint::ModelConfig::load("models/tiny"));
  c.hidden_size = 1024;
  c.moe_intermediate_size = 512;
  c.num_attention_heads = 16;
  c.head_dim = 128;
  c.q_lora_rank = c.o_lora_rank = 256;
  c.o_groups = 4;
  c.n_routed_experts = 8;
  return must(checkpoint::ModelConfig::parse(c.to_json()));
}

struct Work {
  double bytes = 0, weights = 0;
  void add(const ops::Matrix& m, double share = 1) {
    const double n = static_cast<double>(m.rows * m.cols) * share;
    weights += n;
    switch (m.format) {
      case ops::WeightFormat::kF32: bytes += 4 * n; break;
      case ops::WeightFormat::kBf16: bytes += 2 * n; break;
      case ops::WeightFormat::kFp8: bytes += n * (1 + 1.0 / 1024); break;
      case ops::WeightFormat::kFp8Rows: bytes += n * (1 + 1.0 / 32); break;
      case ops::WeightFormat::kFp4: bytes += n * (0.5 + 1.0 / 32); break;
    }
  }
  void add(const ops::ExpertWeights& e, double share) {
    for (const ops::Matrix* m : {&e.gate, &e.up, &e.down}) add(*m, share);
  }
};

// What a decode step reads and multiplies: every matrix but tables, and of the experts those of one token.
Work work_of(const checkpoint::ModelConfig& c, const ops::ModelWeights& w) {
  Work sum;
  sum.add(w.head);
  sum.add(w.main_proj);
  for (size_t l = 0; l < w.layers.size(); ++l) {
    const ops::LayerWeights& layer = w.layers[l];
    sum.add(layer.attention.wkv);
    if (l >= static_cast<size_t>(c.num_hidden_layers)) continue;  // a drafter stage: its window entry only
    const ops::AttentionWeights& a = layer.attention;
    for (const ops::Matrix* m : {&a.wq_a, &a.wq_b, &a.wo_a, &a.wo_b, &layer.hc_attn.fn, &layer.hc_ffn.fn,
                                 &layer.compressor.wkv, &layer.compressor.wgate, &layer.indexer.wk, &layer.indexer.wq_b,
                                 &layer.indexer.weights_proj, &layer.engram.wkv, &layer.moe.gate})
      if (*m) sum.add(*m);
    sum.add(layer.moe.shared, 1);
    for (const ops::ExpertWeights& e : layer.moe.experts)
      sum.add(e, static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.n_routed_experts));
  }
  return sum;
}

// Bytes a second that one thread reads from memory.
double memory_stream(int turn) {
  static const std::vector<std::byte> data(256 << 20, std::byte{1});
  const double start = bench::thread_cpu_seconds();
  bench::stream_read(data.data(), data.size(), turn);
  return static_cast<double>(data.size()) / (bench::thread_cpu_seconds() - start);
}

double bf16_peak(const ops::cpu::fast::Kernels& k) {
  constexpr int64_t kRows = 6, kPairs = 128, kLanes = 64;
  constexpr int kTimes = 2000;
  const std::vector<uint32_t> a(kRows * kPairs, 0x3f803f80), b(kPairs * kLanes, 0x3f803f80);
  std::vector<float> c(kRows * kLanes);
  const double start = bench::thread_cpu_seconds();
  for (int i = 0; i < kTimes; ++i)
    k.outer({a.data(), kPairs, 1, b.data(), kLanes, kRows, kPairs, kLanes, c.data(), kLanes});
  return 4.0 * kRows * kPairs * kLanes * kTimes / (bench::thread_cpu_seconds() - start);
}

// Tokens per CPU second of llama.cpp; nothing without it.
std::optional<std::pair<double, double>> peer() {
  std::FILE* out = popen("bench/peers/llama_cpp.sh", "r");
  if (out == nullptr) return std::nullopt;
  double prefill = 0, decode = 0;
  const int read = std::fscanf(out, "{\"prefill\":%lf,\"decode\":%lf}", &prefill, &decode);
  if (pclose(out) != 0 || read != 2) {
    fmt::print(stderr, "NO PEER: llama.cpp is not there, so nothing is measured beside it\n");
    return std::nullopt;
  }
  return std::pair{prefill, decode};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const ops::cpu::fast::Kernels* kernels = ops::cpu::fast::choose_kernels("");
  if (kernels == nullptr)
    return std::fprintf(stderr, "this processor has no AVX2: there is no fast backend to measure\n"), 1;
  const std::string directory = "build/test-data/bench-llama";
  if (!std::filesystem::exists(directory + "/config.json")) {
    std::filesystem::remove_all(directory);
    const Status s = checkpoint::write_random_checkpoint(config(), directory, {});
    if (!s.ok()) return std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1;
  }
  auto opened = std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open(directory)));
  const Work work = work_of(opened->config(), model::collect_weights(*opened, nullptr));
  model::Options o;
  o.limits.context_max = kContext;
  o.pages = ops::KvLayout::pages_for(kContext);
  const auto m = must(model::Model::create(opened, ops::make_fast_ops(1), o));

  std::mt19937 random(1);
  std::vector<int32_t> tokens(kPrompt + kSteps);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random() % 6000);
  std::vector<double> prefill, decode, stream, peak;
  std::vector<float> logits;
  for (int i = 0; i < (options.quick ? 1 : 5); ++i) {
    stream.push_back(std::max(memory_stream(0), memory_stream(1)));
    peak.push_back(bf16_peak(*kernels));
    model::KvAllocator kv(o.pages, 1);
    model::Sequence s = must(model::Sequence::create(*m, kv));
    double start = bench::thread_cpu_seconds();
    if (!s.append(std::span(tokens).first(kPrompt), 1, &logits).ok()) return 1;
    prefill.push_back(kPrompt / (bench::thread_cpu_seconds() - start));
    start = bench::thread_cpu_seconds();
    for (int t = 0; t < kSteps; ++t) {
      if (!s.append(std::span(tokens).subspan(kPrompt + t, 1), 1, &logits).ok()) return 1;
    }
    decode.push_back(kSteps / (bench::thread_cpu_seconds() - start));
  }
  const auto other = peer();
  const double bytes = bench::median(stream), flops = bench::median(peak);
  const double head = static_cast<double>(opened->config().vocab_size * opened->config().hidden_size);
  const auto report = [](const char* name, double ours, std::optional<double> theirs, const char* what) {
    bench::report({.bench = "llama",
                   .name = name,
                   .value = ours,
                   .unit = "share",
                   .ceiling = theirs,
                   .ceiling_is = fmt::format("llama.cpp's share of the {}", what),
                   .goal = 1,
                   .goal_is_ratio = true});
  };
  fmt::print(
      stderr,
      "a token reads {:.1f} MB; stream {:.1f} GB/s, peak {:.0f} GFLOP/s; decode {:.0f}, prefill {:.0f} tokens/s\n",
      work.bytes / 1e6, bytes / 1e9, flops / 1e9, bench::median(decode), bench::median(prefill));
  report("decode_share_of_stream", bench::median(decode) * work.bytes / bytes,
         other ? std::optional(other->second * kPeerBytes / bytes) : std::nullopt, "memory stream");
  // The head runs for the last row of a prompt only.
  report("prefill_share_of_peak", bench::median(prefill) * 2 * (work.weights - head) / flops,
         other ? std::optional(other->first * 2 * kPeerParameters / flops) : std::nullopt, "bf16 peak");
}
