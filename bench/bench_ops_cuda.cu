// The CUDA backend on one GPU: matrices, experts, attention, indexer, mHC and whole layers of the full-width model,
// against the read bandwidth and matrix rates measured in the same run. Every repetition of a matrix reads other
// weights, over 512 MB. --quick: stages and layers at 1 and 64 rows and 4k of context alone. --only TEXT: one group of
// linear, prefill, stages, decode (of the stages), offload. --rows N: decode of N rows alone (1, 8, 64 or 256).
// --experts N: of a layer, for a shorter start (384).
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include <cuda_profiler_api.h>

#include "bench/cuda/cublaslt.h"
#include "bench/cuda/measure.h"
#include "bench/cuda/native_fp8.cuh"
#include "bench/cuda/synthetic.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/linear.h"

using namespace deepinfer::ops;
using namespace deepinfer::ops::cuda;

namespace bench {
namespace {

constexpr size_t kPoolBytes = size_t{1536} << 20;

struct Pools {
  check::Device<uint8_t> codes{kPoolBytes}, scales{size_t{128} << 20}, packed{packed_bytes(8192, 15360)},
      y{size_t{8192} * 33000 * 2};
};

// FP8 codes below 2, as linear() takes them.
void fill_codes(check::Device<uint8_t>& codes) {
  fill(codes, 1, Fill::kCodes);
  arrange_fp8(codes.p, codes.n, nullptr);
}

Ceilings measure_ceilings(Pools& pools, const CublasLt& lt) {
  Ceilings c;
  check::Device<uint32_t> out(1);
  double us = 1e30;
  for (int blocks : {132 * 4, 132 * 8, 132 * 16}) {
    us = std::min(
        us,
        median_us(
            [&] { read_kernel<<<blocks, 512>>>(reinterpret_cast<uint4*>(pools.codes.p), kPoolBytes / 16, out.p); }, 9));
  }
  c.read_gbps = kPoolBytes / us * 1e-3;
  report({.bench = kName, .name = "read_bandwidth", .value = c.read_gbps, .unit = "GB/s"});
  fill(pools.codes, 3, Fill::kBf16);
  constexpr int kN = 8192;
  const double flops = 2.0 * kN * kN * kN;
  const auto time = [](const std::function<void(cudaStream_t)>& f) {
    return graph_us([&](int, cudaStream_t s) { f(s); }, 4, 5);
  };
  if (lt.present()) {
    c.bf16_tflops = flops /
                    lt.multiply_us(CublasLt::kBf16, kN, kN, kN, pools.codes.p, pools.codes.p + (size_t{512} << 20),
                                   pools.y.p, time) *
                    1e-6;
    c.bf16_is = "cublasLt bf16 8192^3";
  } else {
    c.bf16_tflops = flops / time([&](cudaStream_t s) {
                      linear({pools.codes.p, nullptr, kN, kN, WeightFormat::kBf16}, pools.codes.p + (size_t{512} << 20),
                             kN, {pools.y.p, Output::kBf16}, s);
                    }) *
                    1e-6;
    c.bf16_is = "own bf16 8192^3 (no cublasLt here)";
  }
  fill_codes(pools.codes);
  report({.bench = kName, .name = "bf16_peak", .value = c.bf16_tflops, .unit = "TFLOP/s"});
  return c;
}

size_t code_bytes(WeightFormat f, size_t elements) {
  return f == WeightFormat::kFp8 ? elements : f == WeightFormat::kFp4 ? elements / 2 : 2 * elements;
}
size_t scale_bytes(WeightFormat f, size_t elements) {
  return f == WeightFormat::kFp8 ? elements / 1024 : f == WeightFormat::kFp4 ? elements / 32 : 0;
}

struct Shape {
  const char* name;
  int n, k;
  WeightFormat format;
};

// Copy `i` of a matrix somewhere in the pools.
LinearWeights copy_of(const Pools& pools, const Shape& s, int i) {
  const size_t elements = static_cast<size_t>(s.n) * s.k, bytes = code_bytes(s.format, elements),
               scales = scale_bytes(s.format, elements);
  const size_t copies = std::max<size_t>(1, std::min<size_t>(96, kPoolBytes / bytes)),
               c = static_cast<size_t>(i) % copies;
  return {pools.codes.p + c * bytes, pools.scales.p + c * scales % (pools.scales.n - scales) / 16 * 16, s.n, s.k,
          s.format};
}
int copies_of(const Shape& s) {
  const size_t bytes = code_bytes(s.format, static_cast<size_t>(s.n) * s.k);
  return static_cast<int>(std::max<size_t>(4, std::min<size_t>(96, kPoolBytes / bytes)));
}

double linear_us(Pools& pools, const Shape& s, int rows) {
  return graph_us(
      [&](int i, cudaStream_t stream) {
        linear(copy_of(pools, s, i), pools.packed.p, rows, {pools.y.p, Output::kBf16}, stream);
      },
      copies_of(s));
}

constexpr Shape kHead{"head", 129280, 5120, WeightFormat::kBf16};

void decode_matrices(Pools& pools, const Ceilings& c) {
  const Shape shapes[] = {
      {"wq_b", 32768, 1280, WeightFormat::kFp8},     {"wo_b", 5120, 8192, WeightFormat::kFp8},
      {"wq_a_wkv", 1792, 5120, WeightFormat::kFp8},  {"shared_w1_w3", 4608, 5120, WeightFormat::kFp8},
      {"shared_w2", 5120, 2304, WeightFormat::kFp8}, {"engram_wkv", 25600, 6144, WeightFormat::kFp8},
      {"gate", 384, 5120, WeightFormat::kBf16},      kHead};
  for (const Shape& s : shapes) {
    const size_t elements = static_cast<size_t>(s.n) * s.k,
                 bytes = code_bytes(s.format, elements) + scale_bytes(s.format, elements);
    for (int rows : {1, 8, 64, 256}) {
      const double us = linear_us(pools, s, rows);
      const std::optional<double> goal = std::strcmp(s.name, "head") == 0 ? std::optional(0.8)
                                         : bytes >= (size_t{32} << 20)    ? std::optional(0.75)
                                                                          : std::nullopt;
      report_bytes(c, fmt::format("{}_{}", s.name, rows), us, static_cast<double>(bytes) + 2.0 * rows * (s.n + s.k),
                   rows <= 64 ? goal : std::nullopt);
    }
  }
  // wo_a: eight matrices with inputs of their own.
  const Shape whole{"wo_a", 8192, 4096, WeightFormat::kFp8};
  for (int rows : {1, 8, 64, 256}) {
    const double us = graph_us(
        [&](int i, cudaStream_t stream) {
          LinearWeights w = copy_of(pools, whole, i);
          w.n = 1024;
          w.codes_stride = 1024 * 4096, w.scales_stride = 32 * 128;
          linear_batched(w, 8, pools.packed.p, rows, group_rows(rows), {pools.y.p, Output::kBf16, 8192}, 1024, stream);
        },
        copies_of(whole));
    report_bytes(c, fmt::format("wo_a_{}", rows), us, 8192.0 * 4096 * (1 + 1.0 / 1024) + 2.0 * rows * (8192 + 32768),
                 rows <= 64 ? std::optional(0.75) : std::nullopt);
  }
}

void prefill_matrices(Pools& pools, const Ceilings& c, const CublasLt& lt) {
  const Shape shapes[] = {{"wq_b", 32768, 1280, WeightFormat::kFp8},
                          {"wo_b", 5120, 8192, WeightFormat::kFp8},
                          {"shared_w1_w3", 4608, 5120, WeightFormat::kFp8}};
  constexpr int kRows = 4096;
  check::Device<uint16_t> x(size_t{kRows} * 8192);
  fill(x, 4, Fill::kNormal);
  for (const Shape& s : shapes) {
    const auto ours = [&] {
      fill_codes(pools.codes);
      pack_activations(x.p, kRows, s.k, packing_of(s.format, kRows), nullptr, pools.packed.p, nullptr);
      return linear_us(pools, s, kRows);
    };
    const double flops = 2.0 * s.n * s.k * kRows;
    double us = ours(), peer = 0;
    if (lt.present()) {
      // Finite codes for both its operands: how much power data takes shows in the rate.
      fill(pools.codes, 1, Fill::kCodes);
      fill(pools.packed, 3, Fill::kCodes);
      const int copies = copies_of(s);
      peer = lt.multiply_us(
          CublasLt::kFp8, s.n, s.k, kRows, pools.codes.p, pools.packed.p, pools.y.p,
          [&](const std::function<void(cudaStream_t)>& f) {
            return graph_us([&](int, cudaStream_t stream) { f(stream); }, copies);
          },
          static_cast<size_t>(copies));
      us = (us + ours()) / 2;  // before and after: power limits the clock of all of them
    }
    const std::optional<double> rate = peer > 0 ? std::optional(flops / peer * 1e-6) : std::nullopt;
    report({.bench = kName,
            .name = fmt::format("prefill_fp8_{}", s.name),
            .value = flops / us * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = rate,
            .ceiling_is = "cublasLt FP8, one scale a tensor",
            .goal = 0.5,
            .goal_is_ratio = true});
    report({.bench = kName,
            .name = fmt::format("prefill_fp8_{}_of_bf16", s.name),
            .value = flops / us * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = c.bf16_tflops,
            .ceiling_is = c.bf16_is});
    constexpr size_t kWeightPool = kPoolBytes - (size_t{64} << 20);  // tokens lie behind
    const size_t bytes = static_cast<size_t>(s.n) * s.k / kNativeCodeBytes * kNativeTileBytes,
                 copies = kWeightPool / bytes;
    native_scales_kernel<<<1024, kNativeTileBytes - kNativeCodeBytes>>>(pools.codes.p, kPoolBytes / kNativeTileBytes);
    const double native = graph_us(
        [&](int i, cudaStream_t stream) {
          native_fp8(pools.codes.p + kWeightPool / kNativeTileBytes * kNativeTileBytes,
                     pools.codes.p + static_cast<size_t>(i) % copies * bytes, pools.y.p, kRows, s.n, s.k, stream);
        },
        4, 5);
    report({.bench = kName,
            .name = fmt::format("prefill_fp8_{}_native", s.name),
            .value = flops / native * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = rate,
            .ceiling_is = "cublasLt FP8, one scale a tensor"});
    fill_codes(pools.codes);
  }
  report({.bench = kName,
          .name = "native_fp8_not_correctly_rounded",
          .value = native_fp8_wrong_share(),
          .unit = "of results"});
}

// ---- stages and layers
// ---------------------------------------------------------------------------------------------------------
constexpr int kRowsMax = 4096, kContext = 33 * 1024, kSequences = 256, kPages = 64 * 258;

class Stages {
 public:
  explicit Stages(int experts, const cuda::Options& options = {}) : model_(experts) {
    auto made = Backend::create(0, options);
    if (!made.ok()) fail(made.status());
    b_ = std::move(made).value();
    limits_ = {.rows_max = kRowsMax,
               .sequences_max = kSequences,
               .outputs_max = kSequences,
               .context_max = kContext,
               .blocks_max = kSequences * 258};
    must(b_->load(model_.config(), model_.weights(), limits_));
    layout_ = KvLayout::make(model_.config(), b_->capabilities().kv_format);
    auto kv = b_->allocate_kv(layout_, kPages, kSequences);
    if (!kv.ok()) fail(kv.status());
    fill_kv(kv.value());
  }
  Backend& ops() { return *b_; }
  const deepinfer::checkpoint::ModelConfig& config() const { return model_.config(); }
  const KvLayout& layout() const { return layout_; }

  // `sequences` sequences, each with `rows_each` rows ending at position `context` - 1.
  void begin(int sequences, int rows_each, int context) {
    const int rows = sequences * rows_each, pages = KvLayout::pages_for(context);
    std::mt19937 random(5);
    std::vector<SequenceRows> s(static_cast<size_t>(sequences));
    std::vector<int32_t> blocks, tokens, positions, sequence, outputs;
    for (int i = 0; i < sequences; ++i) {
      s[static_cast<size_t>(i)] = {.slot = i,
                                   .first_row = i * rows_each,
                                   .rows = rows_each,
                                   .first_position = context - rows_each,
                                   .window_begin = 0,
                                   .cached = 0,
                                   .first_block = i * pages,
                                   .block_count = pages};
      for (int p = 0; p < pages; ++p) blocks.push_back((i * 258 + p) % kPages);
      for (int r = 0; r < rows_each; ++r) {
        tokens.push_back(static_cast<int32_t>(random() % 16000));
        positions.push_back(context - rows_each + r);
        sequence.push_back(i);
      }
    }
    RowBatch batch{.rows = rows,
                   .sequences = s,
                   .blocks = blocks,
                   .tokens = tokens,
                   .positions = positions,
                   .sequence = sequence,
                   .source = positions};
    must(b_->begin(Rows::kDecoder, batch));
    b_->embed(Rows::kDecoder);
    b_->hc_enter({0, Rows::kDecoder}, Sublayer::kAttention);
    must(b_->synchronize());
    // The embedding's rows are alike in all streams; two layers spread them.
    for (int l = 0; l < 2; ++l)
      layer(l), b_->hc_leave({l, Rows::kDecoder}, Sublayer::kFfn),
          b_->hc_enter({l + 1, Rows::kDecoder}, Sublayer::kAttention);
    must(b_->synchronize());
  }

  // A layer between its two mixes; enters the next one.
  void layer(int l) {
    const At at{l, Rows::kDecoder};
    const auto& info = model_.config().layers[static_cast<size_t>(l)];
    b_->attention_project(at, kProjectQueries | kProjectWindow | (info.owns_index() ? kProjectIndexQueries : 0) |
                                  (info.owns_kv() ? kProjectCompressor : 0));
    if (info.owns_kv()) b_->write_global(at);
    if (info.owns_index()) b_->select(at);
    b_->attend(at);
    b_->store_window(at);
    b_->attention_output(at);
    b_->hc_leave_enter(at, Sublayer::kAttention, at, Sublayer::kFfn);
    b_->route(at);
    b_->experts(at, b_->local_expert_rows(at));
    b_->shared_expert(at);
    b_->combine(at);
  }
  void enter_next(int l, int next) {
    b_->hc_leave_enter({l, Rows::kDecoder}, Sublayer::kFfn, {next, Rows::kDecoder}, Sublayer::kAttention);
  }

  // Microseconds of one call, `calls` in one graph; i alternates between the layers with their own weights.
  double us(const std::function<void(int)>& call, int calls, bool graph = true) {
    ++key_;
    std::vector<double> t;
    for (int i = 0; i < 6; ++i) {
      const double start = wall_seconds();
      b_->run({static_cast<uint8_t>(100 + key_ / 30000), graph ? key_ : 0}, [&] {
        for (int c = 0; c < calls; ++c) call(c);
      });
      must(b_->synchronize());
      if (i > 0) t.push_back(wall_seconds() - start);
    }
    return median(t) * 1e6 / calls;
  }
  // Bytes of routed experts that the last routing reads, and pairs.
  double expert_bytes(int rows) {
    std::vector<double> ids(static_cast<size_t>(rows) * model_.config().num_experts_per_tok);
    must(b_->read(Role::kExpertIds, 0, rows, ids));
    std::sort(ids.begin(), ids.end());
    const auto distinct = static_cast<double>(std::unique(ids.begin(), ids.end()) - ids.begin());
    return distinct * 3 * 2304 * 5120 * (0.5 + 1.0 / 32);
  }
  double kv_bytes(int rows, int context) const {
    return static_cast<double>(rows) *
           (128.0 * layout_.window_bytes + std::min(context, 512) * static_cast<double>(layout_.entry_bytes));
  }

  static void must(const deepinfer::Status& s) {
    if (!s.ok()) fail(s);
  }

 private:
  static void fail(const deepinfer::Status& s) {
    std::printf("benchmark failed: %s\n", s.message().c_str());
    std::exit(1);
  }
  void fill_kv(const KvMemory& kv) {
    const KvSource& source = layout_.sources[0];
    std::mt19937 random(3);
    constexpr int kDistinct = 64;
    std::vector<std::byte> pages(layout_.page_stride * kDistinct);
    for (std::byte& x : pages) x = static_cast<std::byte>(random() >> 11);
    for (int p = 0; p < kDistinct; ++p) {
      std::byte* page = pages.data() + p * layout_.page_stride;
      for (int e = 0; e < source.page_entries; ++e) {
        for (size_t i = 0; i < layout_.key_scale_bytes; ++i)
          page[source.key_scale_offset + e * layout_.key_scale_bytes + i] = static_cast<std::byte>(126 + random() % 2);
        std::byte* record = page + source.entry_offset + e * layout_.entry_bytes;
        for (size_t i = layout_.entry_bytes * 8 / 9; i < layout_.entry_bytes; ++i)
          record[i] = static_cast<std::byte>(0x28 + random() % 16);
      }
    }
    for (int p = 0; p + kDistinct <= kv.page_count; p += kDistinct)
      must(b_->kv_write(kv.pages + p * layout_.page_stride, pages));
    std::vector<std::byte> slot(layout_.slot_stride);
    for (std::byte& x : slot) x = static_cast<std::byte>((random() >> 9) & 0xbf);
    for (size_t l = 0; l < Synthetic::kLayers; ++l) {
      for (int w = 0; w < layout_.window_slots; ++w) {
        for (size_t i = 512; i < layout_.window_bytes; ++i)
          slot[layout_.window_offsets[l] + w * layout_.window_bytes + i] = static_cast<std::byte>(125 + random() % 3);
      }
    }
    for (int i = 0; i < kv.slot_count; ++i) must(b_->kv_write(kv.slots + i * layout_.slot_stride, slot));
  }

  Synthetic model_;
  std::unique_ptr<Backend> b_;
  Limits limits_;
  KvLayout layout_;
  int key_ = 0;
};

// Weights of a layer that every row uses, in bytes.
double dense_bytes() {
  const double fp8 = 1792.0 * 5120 + 32768.0 * 1280 + 8192.0 * 4096 + 5120.0 * 8192 + 3 * 2304.0 * 5120;
  return fp8 * (1 + 1.0 / 1024) + 384.0 * 5120 * 2 + 2 * 24 * 20480.0 * 4;
}

// What the whole model would take, by the layer that was measured: `layers` of them one after the other and the head; G
// GPUs hold the layers in sequence and work on as many batches. Experts beyond the GPUs' memory come from host memory
// at the measured rate, not overlapped. Engram tables lie on the host.
struct Projection {
  double head_us, host_gbps;

  void print(int rows, double layer_us, double expert_bytes) const {
    const int layers = static_cast<int>(deepinfer::checkpoint::ModelConfig{}.num_hidden_layers);
    constexpr double kWeightBytes = 120e9;  // of a GPU of 141 GB
    const double all_experts = layers * 384.0 * 3 * 2304 * 5120 * (0.5 + 1.0 / 32),
                 dense = layers * dense_bytes() + 2 * 129280.0 * 5120 * 2;
    for (int gpus : {1, 2, 4, 8}) {
      const double missing = std::clamp(1 - (gpus * kWeightBytes - dense) / all_experts, 0.0, 1.0);
      const double step_us = layers * layer_us + head_us + layers * expert_bytes * missing / host_gbps * 1e-3;
      report({.bench = kName,
              .name = fmt::format("projected_{}_gpus_batch_{}", gpus, rows),
              .value = 1e6 * gpus * rows / step_us,
              .unit = "tokens/s"});
    }
  }
};

void decode_layers(Stages& s, const Ceilings& c, const std::vector<int>& row_counts,
                   const std::map<int, double>& head_us) {
  const double host_gbps = host_copy_gbps();
  report({.bench = kName, .name = "host_copy", .value = host_gbps, .unit = "GB/s"});
  for (int rows : row_counts) {
    s.begin(rows, 1, 32 * 1024);
    Backend& b = s.ops();
    const auto at = [](int i) { return At{Synthetic::kFirstReuse + i % 2, Rows::kDecoder}; };
    // One layer and the indexer for a profiler: ncu --profile-from-start off.
    cudaProfilerStart();
    s.layer(at(0).layer);
    s.enter_next(at(0).layer, at(1).layer);
    b.select({1, Rows::kDecoder});
    Stages::must(b.synchronize());
    cudaProfilerStop();
    const int calls = rows <= 8 ? 40 : 16;
    const auto part = [&](const char* name, const std::function<void(int)>& f) {
      report_us(fmt::format("stage_{}_{}", name, rows), s.us(f, calls));
    };
    part("project", [&](int i) { b.attention_project(at(i), kProjectQueries | kProjectWindow); });
    const double attend = s.us([&](int i) { b.attend(at(i)); }, calls);
    const double attend_flops = 4.0 * rows * 64 * 640 * 512;
    report({.bench = kName,
            .name = fmt::format("attend_{}", rows),
            .value = attend_flops / attend * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = c.bf16_tflops,
            .ceiling_is = c.bf16_is,
            .goal = rows >= 64 ? std::optional(0.4) : std::nullopt,
            .goal_is_ratio = true});
    report_us(fmt::format("stage_attend_{}", rows), attend);
    part("store_window", [&](int i) { b.store_window(at(i)); });
    part("output", [&](int i) { b.attention_output(at(i)); });
    part("leave_enter", [&](int i) { b.hc_leave_enter(at(i), Sublayer::kAttention, at(i), Sublayer::kFfn); });
    part("route", [&](int i) { b.route(at(i)); });
    s.begin(rows, 1, 32 * 1024);
    b.route(at(0));
    const double experts = s.us([&](int i) { b.experts(at(i), b.local_expert_rows(at(i))); }, calls),
                 bytes = s.expert_bytes(rows);
    report_bytes(c, fmt::format("experts_fp4_{}", rows), experts, bytes,
                 rows <= 64 ? std::optional(0.8) : std::nullopt);
    report_us(fmt::format("stage_experts_{}", rows), experts);
    part("shared", [&](int i) { b.shared_expert(at(i)); });
    part("combine", [&](int i) { b.combine(at(i)); });

    // More calls a graph: starting it and waiting for it is no part of what a layer pays.
    const double select = s.us([&](int) { b.select({1, Rows::kDecoder}); }, 4 * calls);
    report_bytes(c, fmt::format("indexer_{}_32k", rows), select, rows * 32768.0 * 68,
                 rows >= 64 ? std::optional(0.7) : std::nullopt);

    const double layer = s.us(
        [&](int i) {
          s.layer(at(i).layer);
          s.enter_next(at(i).layer, at(i + 1).layer);
        },
        rows <= 8 ? 20 : 8);
    const double layer_bytes =
        dense_bytes() + s.expert_bytes(rows) + s.kv_bytes(rows, 32 * 1024) + rows * 6.0 * 2 * 20480;
    report_bytes(c, fmt::format("decode_layer_{}", rows), layer, layer_bytes,
                 rows == 1    ? std::optional(0.6)
                 : rows == 64 ? std::optional(0.7)
                              : std::nullopt);
    report_us(fmt::format("decode_layer_us_{}", rows), layer);
    Projection{head_us.at(rows), host_gbps}.print(rows, layer, s.expert_bytes(rows));
  }
}

void prefill_layers(Stages& s, const Ceilings& c, bool quick) {
  for (int context : quick ? std::vector{4096} : std::vector{4096, 32 * 1024}) {
    s.begin(1, kRowsMax, context);
    Backend& b = s.ops();
    const auto at = [](int i) { return At{Synthetic::kFirstReuse + i % 2, Rows::kDecoder}; };
    cudaProfilerStart();
    b.select({1, Rows::kDecoder});
    Stages::must(b.synchronize());
    cudaProfilerStop();
    const double attend = s.us([&](int i) { b.attend(at(i)); }, 2, false);
    report({.bench = kName,
            .name = fmt::format("attend_prefill_{}k", context / 1024),
            .value = 4.0 * kRowsMax * 64 * 640 * 512 / attend * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = c.bf16_tflops,
            .ceiling_is = c.bf16_is,
            .goal = 0.45,
            .goal_is_ratio = true});
    const auto part = [&](const char* name, const std::function<void(int)>& f) {
      report_us(fmt::format("prefill_stage_{}_{}k", name, context / 1024), s.us(f, 2, false));
    };
    part("attend", [&](int i) { b.attend(at(i)); });
    part("project", [&](int i) { b.attention_project(at(i), kProjectQueries | kProjectWindow); });
    part("output", [&](int i) { b.attention_output(at(i)); });
    part("select", [&](int) { b.select({1, Rows::kDecoder}); });
    part("leave_enter", [&](int i) { b.hc_leave_enter(at(i), Sublayer::kAttention, at(i), Sublayer::kFfn); });
    s.begin(1, kRowsMax, context);
    part("route", [&](int i) { b.route(at(i)); });
    part("experts", [&](int i) { b.experts(at(i), b.local_expert_rows(at(i))); });
    part("shared", [&](int i) { b.shared_expert(at(i)); });
    const double layer = s.us(
        [&](int i) {
          s.layer(at(i).layer);
          s.enter_next(at(i).layer, at(i + 1).layer);
        },
        2, false);
    const double flops = 2.0 * kRowsMax * (dense_bytes() + 6 * 3 * 2304.0 * 5120) + 4.0 * kRowsMax * 64 * 640 * 512;
    report({.bench = kName,
            .name = fmt::format("prefill_layer_{}k", context / 1024),
            .value = flops / layer * 1e-6,
            .unit = "TFLOP/s",
            .ceiling = c.bf16_tflops,
            .ceiling_is = c.bf16_is});
    report_us(fmt::format("prefill_layer_us_{}k", context / 1024), layer);
  }
}

// Experts in pinned host memory, a layer's worth of slots on the GPU: a layer whose experts are all there, and one
// whose experts all have to come.
void offloaded_experts(double host_gbps) {
  Stages s(384, {.expert_slots_max = 384});
  Backend& b = s.ops();
  const At at{Synthetic::kFirstReuse, Rows::kDecoder};
  for (int rows : {1, 8, 64}) {
    s.begin(rows, 1, 32 * 1024);
    b.route(at);
    const auto once = [&] { b.experts(at, b.local_expert_rows(at)); };
    once();
    report_us(fmt::format("offload_experts_here_{}", rows), s.us([&](int) { once(); }, 16));
    std::vector<double> t;
    double bytes = 0;
    for (int i = 0; i < 5; ++i) {
      Stages::must(b.forget_slots());
      const uint64_t before = b.expert_traffic().missing;
      const double start = wall_seconds();
      once();
      Stages::must(b.synchronize());
      t.push_back(wall_seconds() - start);
      const ExpertTraffic after = b.expert_traffic();
      bytes = static_cast<double>((after.missing - before) * after.expert_bytes);
    }
    report({.bench = kName,
            .name = fmt::format("offload_experts_missing_{}", rows),
            .value = bytes / median(t) * 1e-9,
            .unit = "GB/s",
            .ceiling = host_gbps,
            .ceiling_is = "cudaMemcpy from pinned host memory",
            .goal = 0.8,
            .goal_is_ratio = true});
  }
}

int run(const std::string& only, bool quick, int rows, int experts) {
  const auto wanted = [&](const char* group) {
    return only.empty() || std::strstr(group, only.c_str()) != nullptr || only.find(group) != std::string::npos;
  };
  const CublasLt lt = CublasLt::open();
  Ceilings c;
  std::map<int, double> head_us;
  {
    Pools pools;
    fill_codes(pools.codes);
    fill(pools.scales, 2, Fill::kScales);
    fill(pools.packed, 3, Fill::kBf16);
    c = measure_ceilings(pools, lt);
    for (int rows : {1, 8, 64, 256}) head_us[rows] = linear_us(pools, kHead, rows);
    if (wanted("linear")) decode_matrices(pools, c);
    if (wanted("prefill")) prefill_matrices(pools, c, lt);
  }
  if (wanted("stages") || wanted("decode")) {
    Stages s(experts);
    decode_layers(s, c,
                  rows > 0 ? std::vector{rows}
                  : quick  ? std::vector{1, 64}
                           : std::vector{1, 8, 64, 256},
                  head_us);
    if (wanted("stages")) prefill_layers(s, c, quick);
  }
  if (wanted("offload")) offloaded_experts(host_copy_gbps());
  CUDA_OK(cudaDeviceSynchronize());
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (!check::device_or_skip()) return 0;
  std::string only;
  bool quick = false;
  int rows = 0, experts = 384;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    if (std::strcmp(argv[i], "--rows") == 0 && i + 1 < argc) rows = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--experts") == 0 && i + 1 < argc) experts = std::atoi(argv[++i]);
  }
  if ((rows != 0 && rows != 1 && rows != 8 && rows != 64 && rows != 256) || experts < 6) {
    std::fprintf(stderr, "bench_ops_cuda: --rows takes 1, 8, 64 or 256 and --experts a number from 6 on\n");
    return 2;
  }
  return bench::run(only, quick, rows, experts);
}
