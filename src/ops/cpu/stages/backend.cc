// Memory, row sets and the small arithmetic that all stages share.
#include "ops/cpu/stages/backend.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>
#include <type_traits>

#include "base/affinity.h"
#include "checkpoint/store/weight_store.h"

namespace deepinfer::ops::cpu {
namespace {

size_t element_bytes(Element e) {
  switch (e) {
    case Element::kFloat: return sizeof(float);
    case Element::kDouble: return sizeof(double);
    case Element::kBf16: return sizeof(uint16_t);
    case Element::kInt32: return sizeof(int32_t);
    case Element::kByte: return 1;
  }
  return 1;
}

std::vector<float> numbers(const Matrix& m) {
  std::vector<float> out(m.rows * m.cols);
  for (int64_t r = 0; m && r < m.rows; ++r) expand_row(m, r, out.data() + r * m.cols);
  return out;
}

template <class U>
void copy(std::span<const U> from, std::vector<U>& to) {
  to.assign(from.begin(), from.end());
}

}  // namespace

template <class T>
Backend<T>::Backend(Capabilities capabilities, bool rounding, int threads, ThreadPool::Idle idle)
    : capabilities_(std::move(capabilities)), rounding_(rounding), pool_(threads, idle) {}

template <class T>
int Backend<T>::drafts_max() const {
  return limits_.drafts_max > 0 ? limits_.drafts_max : static_cast<int>(c_.dspark_block_size);
}

template <class T>
int Backend<T>::experts_per_row(int layer) const {
  return static_cast<int>(is_draft(layer) ? c_.dspark_num_experts_per_tok : c_.num_experts_per_tok);
}

template <class T>
std::array<Buffer, kRoles> Backend<T>::plan_buffers(const checkpoint::ModelConfig& c, const Limits& limits) const {
  constexpr Element kWide = std::is_same_v<T, double> ? Element::kDouble : Element::kFloat;
  const int64_t drafts = limits.drafts_max > 0 ? limits.drafts_max : c.dspark_block_size;
  const int64_t draft_rows = c.has_drafter() ? limits.sequences_max * drafts : 0;
  const int64_t rows = std::max<int64_t>(limits.rows_max, draft_rows);
  const int64_t outputs = std::max(limits.outputs_max, limits.sequences_max);
  const int64_t d = c.hidden_size, hd = c.head_dim, heads = c.num_attention_heads * hd, streams = c.hc_mult;
  const int64_t k = std::max(c.num_experts_per_tok, c.has_drafter() ? c.dspark_num_experts_per_tok : 0);
  const KvLayout layout = KvLayout::make(c, capabilities_.kv_format);
  std::array<Buffer, kRoles> b{};
  const auto set = [&b](Role role, Element e, int64_t n, int64_t cols) {
    b[static_cast<int>(role)] = {nullptr, e, n, cols};
  };
  set(Role::kResidual, Element::kFloat, rows, streams * d);
  set(Role::kPre, kWide, rows, streams);
  set(Role::kPost, kWide, rows, streams);
  set(Role::kComb, kWide, rows, streams * streams);
  set(Role::kSublayerIn, Element::kFloat, rows, d);
  set(Role::kSublayerOut, Element::kFloat, rows, d);
  set(Role::kQueryLow, Element::kFloat, rows, c.q_lora_rank);
  set(Role::kQuery, Element::kFloat, rows, heads);
  set(Role::kWindowRecords, Element::kByte, rows, static_cast<int64_t>(layout.window_bytes));
  set(Role::kIndexQuery, Element::kFloat, rows, c.index_n_heads * c.index_head_dim);
  set(Role::kIndexWeights, Element::kFloat, rows, c.index_n_heads);
  set(Role::kCompressorRows, kWide, rows, 2 * hd);
  set(Role::kLatent, Element::kFloat, rows, hd);
  set(Role::kIndexScores, kWide, limits.keep_scores ? rows : 0, limits.context_max);
  set(Role::kCandidates, Element::kInt32, rows, c.candidate_topk_blocks);
  set(Role::kSelected, Element::kInt32, rows, c.index_topk);
  set(Role::kHeads, Element::kFloat, rows, heads);
  set(Role::kExpertIds, Element::kInt32, rows, k);
  set(Role::kExpertWeights, kWide, rows, k);
  set(Role::kExpertOut, Element::kFloat, rows, k * d);
  set(Role::kSharedOut, Element::kFloat, rows, d);
  set(Role::kTaps, Element::kFloat, rows, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d);
  set(Role::kEngramRows, Element::kInt32, rows, static_cast<int64_t>(c.engram.size()) * c.engram_columns());
  set(Role::kEngramGate, kWide, rows, streams);
  set(Role::kImageRows, Element::kFloat, limits.image_rows_max, d);
  set(Role::kFinalHidden, Element::kFloat, outputs, d);
  set(Role::kLogits, Element::kFloat, outputs, c.vocab_size);
  set(Role::kDraftHidden, Element::kFloat, draft_rows, d);
  set(Role::kDraftBase, kWide, draft_rows, c.vocab_size);
  set(Role::kDraftTokens, Element::kInt32, limits.sequences_max, drafts + 1);
  set(Role::kConfidence, Element::kFloat, limits.sequences_max, drafts);
  set(Role::kFeedback, Element::kInt32, limits.feedback_max, 1);
  return b;
}

template <class T>
typename Backend<T>::StageRows Backend<T>::plan_stage_rows(const checkpoint::ModelConfig& c,
                                                           const std::array<Buffer, kRoles>& buffers) const {
  const auto of = [&buffers](Role role) { return buffers[static_cast<int>(role)]; };
  const int64_t rows = std::max(of(Role::kResidual).rows, of(Role::kLogits).rows), groups = c.o_groups * c.o_lora_rank;
  const int64_t input = std::max({c.hidden_size, c.q_lora_rank, groups, c.engram_width(), of(Role::kTaps).cols});
  const int64_t widest = std::max({c.hidden_size * (c.hc_mult + 1), c.num_attention_heads * c.head_dim, groups,
                                   c.engram_width(), c.dspark_markov_rank});
  return {rows * input, rows * widest};
}

template <class T>
uint64_t Backend<T>::workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const {
  const std::array<Buffer, kRoles> buffers = plan_buffers(config, limits);
  const StageRows rows = plan_stage_rows(config, buffers);
  uint64_t sum = (rows.quantised + 2 * rows.stage) * sizeof(float);
  for (const Buffer& b : buffers) sum += b.rows * b.cols * element_bytes(b.element);
  return sum;
}

template <class T>
Status Backend<T>::load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) {
  c_ = config;
  w_ = weights;
  limits_ = limits;
  layout_ = KvLayout::make(c_, capabilities_.kv_format);
  if (limits_.blocks_max == 0) limits_.blocks_max = limits_.sequences_max * KvLayout::pages_for(limits_.context_max);
  rope_ = {RopeFrequencies::make(c_, false), RopeFrequencies::make(c_, true)};
  buffers_ = plan_buffers(c_, limits_);
  bool fits = true;
  try {
    for (int i = 0; i < kRoles; ++i) {
      Buffer& b = buffers_[i];
      memory_[i].assign(b.rows * b.cols * element_bytes(b.element), std::byte{0});
      b.data = memory_[i].data();
    }
    const int64_t rows = buffers_[static_cast<int>(Role::kResidual)].rows;
    const StageRows stage = plan_stage_rows(c_, buffers_);
    quantised_.resize(stage.quantised);
    wide_rows_.resize(stage.stage);
    stage_rows_.resize(stage.stage);
    const int64_t pairs = rows * buffers_[static_cast<int>(Role::kExpertIds)].cols;
    const int64_t experts = std::max(c_.n_routed_experts, c_.dspark_n_routed_experts);
    expert_order_.reserve(pairs);
    expert_begin_.reserve(experts + 1);
    expert_tasks_.reserve(pairs / kExpertRows + experts + 1);
    complete_rows_.reserve(rows);
    ready_tasks_.reserve(expert_tasks_.capacity());
    if (w_.store != nullptr) {
      read_experts_.resize(experts);
      needed_experts_.reserve(experts);
      engram_ids_.reserve(rows * c_.engram_columns());
    }
    for (RowSet& s : sets_) {
      s.sequences.reserve(limits_.sequences_max);
      s.blocks.reserve(limits_.blocks_max);
      for (auto* v : {&s.tokens, &s.positions, &s.sequence, &s.image_row, &s.source, &s.outputs}) v->reserve(rows);
      s.history.reserve(limits_.sequences_max * c_.engram_max_ngram_size);
      for (int i = 0; i < 2; ++i) {
        s.cos[i].resize(rows * c_.qk_rope_head_dim / 2);
        s.sin[i].resize(rows * c_.qk_rope_head_dim / 2);
      }
    }
    fits = reserve_scratch();
  } catch (const std::bad_alloc&) {
    fits = false;
  }
  if (!fits) {
    return make_error(Code::kResourceExhausted,
                      "the model's activations need {} MiB of memory, which is not available; lower the rows or the "
                      "context of a step",
                      workspace_bytes(c_, limits_) >> 20);
  }
  vectors_.resize(w_.layers.size());
  for (size_t l = 0; l < w_.layers.size(); ++l) {
    const LayerWeights& in = w_.layers[l];
    LayerVectors& v = vectors_[l];
    v.attn_norm = numbers(in.attn_norm);
    v.ffn_norm = numbers(in.ffn_norm);
    v.q_norm = numbers(in.attention.q_norm);
    v.kv_norm = numbers(in.attention.kv_norm);
    v.sink = numbers(in.attention.sink);
    v.compressor_norm = numbers(in.compressor.norm);
    v.k_norm = numbers(in.indexer.k_norm);
    v.bias = numbers(in.moe.bias);
    v.bias_vl = numbers(in.moe.bias_vl);
    v.hc_base[0] = numbers(in.hc_attn.base);
    v.hc_base[1] = numbers(in.hc_ffn.base);
    v.hc_scale[0] = numbers(in.hc_attn.scale);
    v.hc_scale[1] = numbers(in.hc_ffn.scale);
    const std::vector<float> q = numbers(in.engram.q_weight), k = numbers(in.engram.k_weight);
    v.engram_qk.resize(q.size());
    for (size_t i = 0; i < q.size(); ++i) v.engram_qk[i] = static_cast<double>(q[i]) * static_cast<double>(k[i]);
  }
  norm_ = numbers(w_.norm);
  main_norm_ = numbers(w_.main_norm);
  draft_norm_ = numbers(w_.draft_norm);
  confidence_ = numbers(w_.confidence);
  return {};
}

template <class T>
std::vector<std::pair<Slot, int64_t>> Backend<T>::scratch_plan() const {
  const int64_t keys = keys_max(), experts = std::max(c_.n_routed_experts, c_.dspark_n_routed_experts),
                context = limits_.context_max;
  return {
      {Slot::kPanel, std::max<int64_t>(kPanelColumns, c_.index_head_dim) * kLanes * sizeof(float)},
      {Slot::kAccumulator, std::max<int64_t>(kRowChunk, c_.index_n_heads) * kLanes * sizeof(double)},
      {Slot::kTile, std::max<int64_t>(kRowChunk * kLanes, kMixRows * c_.hc_coefficients()) * sizeof(double)},
      {Slot::kInput, std::max<int64_t>(kExpertRows * c_.hidden_size, c_.qk_rope_head_dim) * sizeof(float)},
      {Slot::kGate, kExpertRows * c_.moe_intermediate_size * sizeof(float)},
      {Slot::kUp, kExpertRows * kLanes * sizeof(T)},
      {Slot::kKeys, std::max({keys * c_.head_dim, kExpertRows * c_.hidden_size, c_.index_head_dim}) * sizeof(float)},
      {Slot::kScores, std::max({keys * kLanes, context, kMixRows * experts}) * sizeof(T)},
      {Slot::kProbabilities, std::max({keys * kLanes, context, experts}) * sizeof(T)},
      {Slot::kOrder, std::max(context, experts) * sizeof(int32_t)},
      {Slot::kQueries, c_.head_dim * kLanes * sizeof(float)},
  };
}

template <class T>
bool Backend<T>::reserve_thread() {
  try {
    for (const auto& [slot, n] : scratch_plan()) scratch_bytes(slot, n);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

template <class T>
bool Backend<T>::reserve_scratch() {
  // A thread that has grown its memory waits for the others, so that each of them gets an item; not for ever, since a
  // busy machine may start a thread late, which then grows its memory in a step.
  constexpr auto kPatience = std::chrono::milliseconds(200);
  std::atomic<int> arrived{0};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::atomic<bool> failed{false};
  const std::thread::id caller = std::this_thread::get_id();  // others inherit what is done to it
  auto body = [&](int64_t, int64_t) {
    if (!reserve_thread()) failed = true;
    const int place = ++arrived;
    if (pin_ && std::this_thread::get_id() != caller) pin_to_core(place);
    while (arrived < pool_.threads() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  };
  parallel(pool_.threads(), body);
  return !failed;
}

template <class T>
Result<KvMemory> Backend<T>::allocate_kv(const KvLayout& layout, int pages, int slots) {
  if (layout.format != capabilities_.kv_format)
    return make_error(Code::kInvalidArgument, "this KV layout is of another record format than backend {} uses",
                      capabilities_.backend);
  const size_t page_bytes = layout.page_stride * pages, bytes = page_bytes + layout.slot_stride * slots;
  try {
    kv_bytes_.assign(bytes, std::byte{0});
  } catch (const std::bad_alloc&) {
    return make_error(Code::kResourceExhausted,
                      "the KV cache needs {} MiB of memory, which is not available; use fewer pages or slots",
                      bytes >> 20);
  }
  layout_ = layout;
  kv_ = {kv_bytes_.data(), pages, kv_bytes_.data() + page_bytes, slots};
  return kv_;
}

template <class T>
Status Backend<T>::synchronize() {
  return w_.store != nullptr ? w_.store->take_error() : Status();
}

template <class T>
void Backend<T>::kv_copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memmove(to, from, bytes);
}

template <class T>
Status Backend<T>::kv_read(const std::byte* from, std::span<std::byte> to) {
  std::memcpy(to.data(), from, to.size());
  return {};
}

template <class T>
Status Backend<T>::kv_write(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
  return {};
}

template <class T>
Status Backend<T>::read(Role role, int64_t first_row, int64_t rows, std::span<double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values",
                      first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  const int64_t begin = first_row * b.cols;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    switch (b.element) {
      case Element::kFloat: values[i] = static_cast<const float*>(b.data)[at]; break;
      case Element::kDouble: values[i] = static_cast<const double*>(b.data)[at]; break;
      case Element::kBf16: values[i] = numeric::bf16_to_float(static_cast<const uint16_t*>(b.data)[at]); break;
      case Element::kInt32: values[i] = static_cast<const int32_t*>(b.data)[at]; break;
      case Element::kByte: values[i] = static_cast<const uint8_t*>(b.data)[at]; break;
    }
  }
  return {};
}

template <class T>
Status Backend<T>::write(Role role, int64_t first_row, int64_t rows, std::span<const double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values",
                      first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  const int64_t begin = first_row * b.cols;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    switch (b.element) {
      case Element::kFloat: static_cast<float*>(b.data)[at] = static_cast<float>(values[i]); break;
      case Element::kDouble: static_cast<double*>(b.data)[at] = values[i]; break;
      case Element::kBf16: static_cast<uint16_t*>(b.data)[at] = numeric::double_to_bf16(values[i]); break;
      case Element::kInt32: static_cast<int32_t*>(b.data)[at] = static_cast<int32_t>(values[i]); break;
      case Element::kByte: static_cast<uint8_t*>(b.data)[at] = static_cast<uint8_t>(values[i]); break;
    }
  }
  return {};
}

template <class T>
Status Backend<T>::begin(Rows which, const RowBatch& batch) {
  if (batch.rows > buffers_[static_cast<int>(Role::kResidual)].rows ||
      static_cast<int>(batch.sequences.size()) > limits_.sequences_max ||
      static_cast<int>(batch.blocks.size()) > limits_.blocks_max ||
      static_cast<int64_t>(batch.outputs.size()) > buffers_[static_cast<int>(Role::kLogits)].rows) {
    return make_error(
        Code::kInvalidArgument,
        "a step of {} rows, {} sequences, {} pages and {} outputs is over the limits of {}, {}, {} and {}", batch.rows,
        batch.sequences.size(), batch.blocks.size(), batch.outputs.size(), limits_.rows_max, limits_.sequences_max,
        limits_.blocks_max, limits_.outputs_max);
  }
  RowSet& s = sets_[static_cast<int>(which)];
  s.rows = batch.rows;
  copy(batch.sequences, s.sequences);
  copy(batch.blocks, s.blocks);
  copy(batch.tokens, s.tokens);
  copy(batch.positions, s.positions);
  copy(batch.sequence, s.sequence);
  copy(batch.image_row, s.image_row);
  copy(batch.history, s.history);
  copy(batch.source, s.source);
  copy(batch.outputs, s.outputs);
  const auto* feedback = at<int32_t>(Role::kFeedback);
  for (std::vector<int32_t>* list : {&s.tokens, &s.history}) {
    for (int32_t& t : *list) {
      if (t >= 0 || t == kNoToken) continue;
      if (-1 - t >= limits_.feedback_max)
        return make_error(Code::kInvalidArgument, "a token refers to feedback {} of {}", -1 - t, limits_.feedback_max);
      t = feedback[-1 - t];
    }
  }
  for (int32_t t : s.tokens) {
    if (t < 0 || t >= c_.vocab_size)
      return make_error(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t, c_.vocab_size);
  }
  for (int32_t t : s.history) {
    if (t != kNoToken && (t < 0 || t >= c_.vocab_size))
      return make_error(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t, c_.vocab_size);
  }
  if (w_.store != nullptr && w_.store->embedding_table() >= 0 && which != Rows::kDecoder)
    w_.store->rows().request(w_.store->embedding_table(), s.tokens);
  const int64_t half = c_.qk_rope_head_dim / 2;
  for (int row = 0; row < s.rows; ++row) {
    for (int i = 0; i < 2; ++i)
      rope_[i].table(s.positions[row], s.cos[i].data() + row * half, s.sin[i].data() + row * half);
  }
  return {};
}

template <class T>
void Backend<T>::norm(const float* x, const float* w, int64_t n, float* out) const {
  const T scale = T{1} / std::sqrt(sum_squares<T>(x, n) / static_cast<T>(n) + static_cast<T>(c_.rms_norm_eps));
  for (int64_t i = 0; i < n; ++i) out[i] = round(static_cast<T>(w[i]) * (static_cast<T>(x[i]) * scale));
}

template <class T>
void Backend<T>::rotate(float* x, int64_t n, int64_t d, const float* cos, const float* sin, bool inverse) const {
  const int64_t half = c_.qk_rope_head_dim / 2;
  for (int64_t h = 0; h < n; ++h) {
    float* turn = x + h * d + d - 2 * half;
    for (int64_t j = 0; j < half; ++j) {
      const T a = turn[2 * j], b = turn[2 * j + 1], c = cos[j], s = inverse ? -sin[j] : sin[j];
      turn[2 * j] = round(a * c - b * s);
      turn[2 * j + 1] = round(a * s + b * c);
    }
  }
}

template <class T>
const float* Backend<T>::quantised_input(const Matrix& w, const float* x, int64_t ldx, int64_t n) {
  const bool low = w.format == WeightFormat::kFp8 || w.format == WeightFormat::kFp4;
  if (!rounding_ && ldx == w.cols) return x;
  if (!low && ldx == w.cols) return x;
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = quantised_.data() + i * w.cols;
      std::copy(x + i * ldx, x + i * ldx + w.cols, out);
      if (low && rounding_) numeric::fq8(std::span<float>(out, w.cols));
    }
  };
  parallel(n, body, 8);
  return quantised_.data();
}

template <class T>
void Backend<T>::linear(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo) {
  const float* in = quantised_input(w, x, ldx, n);
  multiply(w, 0, w.rows, in, w.cols, n, [&](int64_t i, int64_t j, const T* v, int64_t count) {
    for (int64_t l = 0; l < count; ++l) out[i * ldo + j + l] = round(v[l]);
  });
}

template <class T>
void Backend<T>::linear_part(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n,
                             float* out, int64_t ldo) {
  multiply(w, row0, rows, x, ldx, n, [&](int64_t i, int64_t j, const T* v, int64_t count) {
    for (int64_t l = 0; l < count; ++l) out[i * ldo + j + l] = round(v[l]);
  });
}

template <class T>
void Backend<T>::products(const Matrix& w, const float* x, int64_t ldx, int64_t n, T* out, int64_t ldo) {
  multiply(w, 0, w.rows, x, ldx, n, [&](int64_t i, int64_t j, const T* v, int64_t count) {
    std::copy_n(v, count, out + i * ldo + j);
  });
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
