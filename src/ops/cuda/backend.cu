// Memory, weights, row sets and graphs of the CUDA backend.
#include "ops/cuda/backend.h"

#include <algorithm>
#include <cstring>

#include "numeric/formats.h"
#include "ops/cuda/attend.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kMixSlice = 256;  // channels of one partial sum of the mHC projection

size_t element_bytes(Element e) {
  switch (e) {
    case Element::kFloat: return 4;
    case Element::kDouble: return 8;
    case Element::kBf16: return 2;
    case Element::kInt32: return 4;
    case Element::kByte: return 1;
  }
  return 1;
}

int64_t padded(int64_t k) { return (k + kChunk - 1) / kChunk * kChunk; }

Status cuda_error(std::string_view what, cudaError_t e) {
  return make_error(e == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kUnavailable, "the GPU could not {}: {}", what, cudaGetErrorString(e));
}

}  // namespace

Arena::~Arena() {
  for (void* p : blocks_) cudaFree(p);
}

Status Arena::take(size_t bytes, void** p) {
  bytes = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  if (const cudaError_t e = cudaMalloc(p, bytes); e != cudaSuccess) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    if (e != cudaErrorMemoryAllocation) return cuda_error("allocate memory", e);
    return make_error(Code::kResourceExhausted, "the GPU has {} MiB free of {} MiB, and {} MiB more are needed; use fewer pages, rows or layers on it", free >> 20, total >> 20,
                      bytes >> 20);
  }
  blocks_.push_back(*p);
  bytes_ += bytes;
  const cudaError_t e = cudaMemset(*p, 0, bytes);
  return e == cudaSuccess ? Status() : cuda_error("clear memory", e);
}

Result<std::unique_ptr<Backend>> Backend::create(int device) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0) {
    return make_error(Code::kUnavailable, "no usable NVIDIA GPU ({}); use the CPU (--backend plain)", e == cudaSuccess ? "none found" : cudaGetErrorString(e));
  }
  if (device < 0 || device >= count) return make_error(Code::kInvalidArgument, "there is no GPU {}; this machine has {}, numbered from 0", device, count);
  cudaDeviceProp properties{};
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, device); e != cudaSuccess) return cuda_error("be asked for its properties", e);
  if (properties.major != 9 || properties.minor != 0) {
    return make_error(Code::kUnsupported, "GPU {} ({}) has compute capability {}.{}; this build has kernels for Hopper (9.0). Use the CPU (--backend plain)", device, properties.name,
                      properties.major, properties.minor);
  }
  std::unique_ptr<Backend> b(new Backend());
  b->device_ = device;
  b->multiprocessors_ = properties.multiProcessorCount;
  b->capabilities_ = {.backend = "cuda", .numeric_class = "cuda-sm90-2", .kv_format = {}, .row_invariant = true, .graphs = true};
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess) return cuda_error("be selected", e);
  if (const cudaError_t e = cudaStreamCreateWithFlags(&b->stream_, cudaStreamNonBlocking); e != cudaSuccess) return cuda_error("create a stream", e);
  return Result<std::unique_ptr<Backend>>(std::move(b));
}

Backend::~Backend() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  for (RowSet& s : sets_) {
    if (s.copied != nullptr) cudaEventDestroy(s.copied);
    if (s.staging != nullptr) cudaFreeHost(s.staging);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void Backend::note(cudaError_t e) {
  if (e != cudaSuccess && error_ == cudaSuccess) error_ = e;
}

int Backend::experts_per_row(int layer) const { return static_cast<int>(is_draft(layer) ? c_.dspark_num_experts_per_tok : c_.num_experts_per_tok); }

std::array<Buffer, kRoles> Backend::plan_buffers(const checkpoint::ModelConfig& c, const Limits& limits) const {
  const int64_t drafts = limits.drafts_max > 0 ? limits.drafts_max : c.dspark_block_size;
  const int64_t draft_rows = c.has_drafter() ? limits.sequences_max * drafts : 0;
  const int64_t rows = std::max<int64_t>(limits.rows_max, draft_rows);
  const int64_t outputs = std::max(limits.outputs_max, limits.sequences_max);
  const int64_t d = c.hidden_size, hd = c.head_dim, heads = c.num_attention_heads * hd, streams = c.hc_mult;
  const int64_t k = std::max(c.num_experts_per_tok, c.has_drafter() ? c.dspark_num_experts_per_tok : 0);
  const KvLayout layout = KvLayout::make(c, KvFormat{});
  std::array<Buffer, kRoles> b{};
  const auto set = [&b](Role role, Element e, int64_t n, int64_t cols) { b[static_cast<int>(role)] = {nullptr, e, n, cols}; };
  set(Role::kResidual, Element::kBf16, rows, streams * d);
  set(Role::kPre, Element::kFloat, rows, streams);
  set(Role::kPost, Element::kFloat, rows, streams);
  set(Role::kComb, Element::kFloat, rows, streams * streams);
  set(Role::kSublayerIn, Element::kBf16, rows, d);
  set(Role::kSublayerOut, Element::kBf16, rows, d);
  set(Role::kQueryLow, Element::kBf16, rows, c.q_lora_rank);
  set(Role::kQuery, Element::kBf16, rows, heads);
  set(Role::kWindowRecords, Element::kByte, rows, static_cast<int64_t>(layout.window_bytes));
  set(Role::kIndexQuery, Element::kBf16, rows, c.index_n_heads * c.index_head_dim);
  set(Role::kIndexWeights, Element::kBf16, rows, c.index_n_heads);
  set(Role::kCompressorRows, Element::kFloat, rows, 2 * hd);
  set(Role::kLatent, Element::kBf16, rows, hd);
  set(Role::kIndexScores, Element::kFloat, limits.keep_scores ? rows : 0, limits.context_max);
  set(Role::kCandidates, Element::kInt32, rows, c.candidate_topk_blocks);
  set(Role::kSelected, Element::kInt32, rows, c.index_topk);
  set(Role::kHeads, Element::kBf16, rows, heads);
  set(Role::kExpertIds, Element::kInt32, rows, k);
  set(Role::kExpertWeights, Element::kFloat, rows, k);
  set(Role::kExpertOut, Element::kBf16, rows, k * d);
  set(Role::kSharedOut, Element::kBf16, rows, d);
  set(Role::kTaps, Element::kBf16, rows, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d);
  set(Role::kEngramRows, Element::kInt32, rows, static_cast<int64_t>(c.engram.size()) * c.engram_columns());
  set(Role::kEngramGate, Element::kFloat, rows, streams);
  set(Role::kImageRows, Element::kBf16, limits.image_rows_max, d);
  set(Role::kFinalHidden, Element::kBf16, outputs, d);
  set(Role::kLogits, Element::kFloat, outputs, c.vocab_size);
  set(Role::kDraftHidden, Element::kBf16, draft_rows, d);
  set(Role::kDraftBase, Element::kFloat, draft_rows, c.vocab_size);
  set(Role::kDraftTokens, Element::kInt32, limits.sequences_max, drafts + 1);
  set(Role::kConfidence, Element::kFloat, limits.sequences_max, drafts);
  set(Role::kFeedback, Element::kInt32, limits.feedback_max, 1);
  return b;
}

uint64_t Backend::workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const {
  uint64_t sum = 0;
  for (const Buffer& b : plan_buffers(config, limits)) sum += b.rows * b.cols * element_bytes(b.element);
  return sum;
}

Status Backend::upload(const void* from, size_t bytes, const void** to) {
  void* p = nullptr;
  DI_RETURN_IF_ERROR(arena_.take(bytes, &p));
  const cudaError_t e = cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice);
  *to = p;
  return e == cudaSuccess ? Status() : cuda_error("take the weights", e);
}

// A stack of equal matrices, K padded with zero columns to a multiple of 128.
static Status stack_layout(const Matrix& m, int64_t* row_bytes, int64_t* padded_row_bytes, int64_t* scale_rows, int64_t* scale_cols, int64_t* padded_scale_cols) {
  const int64_t kp = padded(m.cols);
  *scale_rows = *scale_cols = *padded_scale_cols = 0;
  switch (m.format) {
    case WeightFormat::kBf16: *row_bytes = 2 * m.cols, *padded_row_bytes = 2 * kp; break;
    case WeightFormat::kFp8: *row_bytes = m.cols, *padded_row_bytes = kp, *scale_rows = (m.rows + 31) / 32; break;
    case WeightFormat::kFp4: *row_bytes = m.cols / 2, *padded_row_bytes = kp / 2, *scale_rows = m.rows; break;
    default: return make_error(Code::kInternal, "a linear layer has a format that the CUDA backend does not multiply");
  }
  if (*scale_rows > 0) *scale_cols = m.cols / 32, *padded_scale_cols = kp / 32;
  const int limit = m.format == WeightFormat::kFp8 ? 127 + 7 : 127 + 1;
  for (int64_t i = 0; i < *scale_rows * *scale_cols; ++i) {
    if (std::to_integer<int>(m.scale[i]) > limit) {
      return make_error(Code::kUnsupported, "a weight scale of 2^{} is above what the CUDA backend expands exactly (2^{})", std::to_integer<int>(m.scale[i]) - 127, limit - 127);
    }
  }
  return {};
}

Status Backend::upload_matrix(const Matrix& m, LinearWeights* out) {
  *out = {};
  return m ? upload_stack({{&m}}, out) : Status();
}

Status Backend::upload_stack(const std::vector<std::vector<const Matrix*>>& experts, LinearWeights* out) {
  *out = {};
  if (experts.empty() || !*experts[0][0]) return {};
  const Matrix& first = *experts[0][0];
  int64_t row_bytes, padded_row, scale_rows, scale_cols, padded_scale, rows = 0, all_scale_rows = 0;
  for (const Matrix* m : experts[0]) {
    DI_RETURN_IF_ERROR(stack_layout(*m, &row_bytes, &padded_row, &scale_rows, &scale_cols, &padded_scale));
    rows += m->rows, all_scale_rows += scale_rows;
  }
  const int64_t code_stride = (rows * padded_row + 255) / 256 * 256, scale_stride = (all_scale_rows * padded_scale + 255) / 256 * 256;
  void *codes = nullptr, *scales = nullptr;
  DI_RETURN_IF_ERROR(arena_.take(code_stride * experts.size(), &codes));
  DI_RETURN_IF_ERROR(arena_.take(scale_stride * experts.size(), &scales));
  for (size_t e = 0; e < experts.size(); ++e) {
    auto *code = static_cast<uint8_t*>(codes) + e * code_stride, *scale = static_cast<uint8_t*>(scales) + e * scale_stride;
    for (const Matrix* m : experts[e]) {
      DI_RETURN_IF_ERROR(stack_layout(*m, &row_bytes, &padded_row, &scale_rows, &scale_cols, &padded_scale));
      cudaError_t error = cudaMemcpy2D(code, padded_row, m->data, row_bytes, row_bytes, m->rows, cudaMemcpyHostToDevice);
      if (error == cudaSuccess && scale_rows > 0) error = cudaMemcpy2D(scale, padded_scale, m->scale, scale_cols, scale_cols, scale_rows, cudaMemcpyHostToDevice);
      if (error != cudaSuccess) return cuda_error("take the weights", error);
      code += m->rows * padded_row, scale += scale_rows * padded_scale;
    }
  }
  *out = {codes, static_cast<const uint8_t*>(scales), static_cast<int>(rows), static_cast<int>(padded(first.cols)), first.format, code_stride, scale_stride};
  return {};
}

Status Backend::upload_vector(const Matrix& m, const float** out) {
  *out = nullptr;
  if (!m) return {};
  std::vector<float> v(m.rows * m.cols);
  for (size_t i = 0; i < v.size(); ++i) {
    if (m.format == WeightFormat::kF32) {
      std::memcpy(&v[i], m.data + 4 * i, 4);
    } else if (m.format == WeightFormat::kBf16) {
      uint16_t b;
      std::memcpy(&b, m.data + 2 * i, 2);
      v[i] = numeric::bf16_to_float(b);
    } else {
      return make_error(Code::kInternal, "a vector of weights is neither F32 nor BF16");
    }
  }
  return upload(v.data(), v.size() * sizeof(float), reinterpret_cast<const void**>(out));
}

Status Backend::load_layer(const LayerWeights& in, Layer* l) {
  DI_RETURN_IF_ERROR(upload_stack({{&in.attention.wq_a, &in.attention.wkv}}, &l->wq_a_wkv));
  l->wkv = l->wq_a_wkv;
  const int64_t low = in.attention.wq_a.rows, k = l->wkv.k;
  l->wkv.codes = static_cast<const uint8_t*>(l->wkv.codes) + low * k, l->wkv.scales += low / 32 * (k / 32), l->wkv.n -= static_cast<int>(low);
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wq_b, &l->wq_b));
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wo_a, &l->wo_a));
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wo_b, &l->wo_b));
  DI_RETURN_IF_ERROR(upload_matrix(in.compressor.wkv, &l->compressor_wkv));
  DI_RETURN_IF_ERROR(upload_matrix(in.compressor.wgate, &l->compressor_wgate));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.wk, &l->index_wk));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.wq_b, &l->index_wq_b));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.weights_proj, &l->weights_proj));
  DI_RETURN_IF_ERROR(upload_matrix(in.moe.gate, &l->gate));
  std::vector<std::vector<const Matrix*>> gate_up, down;
  for (const ExpertWeights& e : in.moe.experts) gate_up.push_back({&e.gate, &e.up}), down.push_back({&e.down});
  DI_RETURN_IF_ERROR(upload_stack(gate_up, &l->w1_w3));
  DI_RETURN_IF_ERROR(upload_stack(down, &l->w2));
  DI_RETURN_IF_ERROR(upload_stack({{&in.moe.shared.gate, &in.moe.shared.up}}, &l->shared_w1_w3));
  DI_RETURN_IF_ERROR(upload_matrix(in.moe.shared.down, &l->shared_w2));
  DI_RETURN_IF_ERROR(upload_matrix(in.engram.wkv, &l->engram_wkv));
  l->experts = static_cast<int>(in.moe.experts.size());
  const std::pair<const Matrix*, const float**> vectors[] = {
      {&in.attn_norm, &l->attn_norm},       {&in.ffn_norm, &l->ffn_norm},       {&in.attention.q_norm, &l->q_norm},
      {&in.attention.kv_norm, &l->kv_norm}, {&in.attention.sink, &l->sink},     {&in.compressor.norm, &l->compressor_norm},
      {&in.indexer.k_norm, &l->k_norm},     {&in.moe.bias, &l->bias},           {&in.moe.bias_vl, &l->bias_vl},
      {&in.hc_attn.fn, &l->hc_fn[0]},       {&in.hc_attn.base, &l->hc_base[0]}, {&in.hc_attn.scale, &l->hc_scale[0]},
      {&in.hc_ffn.fn, &l->hc_fn[1]},        {&in.hc_ffn.base, &l->hc_base[1]},  {&in.hc_ffn.scale, &l->hc_scale[1]},
  };
  for (const auto& [from, to] : vectors) DI_RETURN_IF_ERROR(upload_vector(*from, to));
  if (const EngramWeights& e = in.engram; e.table) {
    DI_RETURN_IF_ERROR(upload(e.table.data, e.table.rows * e.table.cols, reinterpret_cast<const void**>(&l->engram_codes)));
    DI_RETURN_IF_ERROR(upload(e.table.scale, e.table.rows * e.table.cols / 32, reinterpret_cast<const void**>(&l->engram_scales)));
    const float *q = nullptr, *k = nullptr;
    DI_RETURN_IF_ERROR(upload_vector(e.q_weight, &q));
    DI_RETURN_IF_ERROR(upload_vector(e.k_weight, &k));
    const size_t n = e.q_weight.rows * e.q_weight.cols;
    std::vector<float> a(n), b(n);
    if (cudaMemcpy(a.data(), q, n * 4, cudaMemcpyDeviceToHost) != cudaSuccess || cudaMemcpy(b.data(), k, n * 4, cudaMemcpyDeviceToHost) != cudaSuccess) {
      return cuda_error("return weights", cudaGetLastError());
    }
    for (size_t i = 0; i < n; ++i) a[i] *= b[i];
    DI_RETURN_IF_ERROR(upload(a.data(), n * 4, reinterpret_cast<const void**>(&l->engram_qk)));
  }
  return {};
}

Status Backend::load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) {
  c_ = config;
  limits_ = limits;
  layout_ = KvLayout::make(c_, KvFormat{});
  if (c_.hc_mult != 4) return make_error(Code::kUnsupported, "the CUDA backend has kernels for hc_mult 4; this model has {}", c_.hc_mult);
  if ((c_.head_dim != 64 && c_.head_dim != 512) || (c_.index_head_dim != 64 && c_.index_head_dim != 128) || c_.index_n_heads > 32 || c_.num_experts_per_tok > 8) {
    return make_error(Code::kUnsupported, "the CUDA backend has kernels for head_dim 64 or 512, index_head_dim 64 or 128, at most 32 index heads and 8 experts a token; this model has {}, {}, {} and {}",
                      c_.head_dim, c_.index_head_dim, c_.index_n_heads, c_.num_experts_per_tok);
  }
  if (limits_.blocks_max == 0) limits_.blocks_max = limits_.sequences_max * KvLayout::pages_for(limits_.context_max);
  rope_ = {RopeFrequencies::make(c_, false), RopeFrequencies::make(c_, true)};
  if (c_.head_dim == kWideDim && std::max(padded(c_.sliding_window) + padded(c_.index_topk), padded(c_.sliding_window + c_.dspark_block_size)) > kWideKeys) {
    return make_error(Code::kUnsupported, "the CUDA backend attends to at most {} keys a row; this model has a window of {} and selects {}", kWideKeys, c_.sliding_window, c_.index_topk);
  }
  buffers_ = plan_buffers(c_, limits_);
  for (Buffer& b : buffers_) DI_RETURN_IF_ERROR(arena_.take(b.rows * b.cols * element_bytes(b.element), &b.data));
  layers_.resize(weights.layers.size());
  for (size_t i = 0; i < layers_.size(); ++i) DI_RETURN_IF_ERROR(load_layer(weights.layers[i], &layers_[i]));
  DI_RETURN_IF_ERROR(upload(weights.embed.data, weights.embed.rows * weights.embed.cols * 2, reinterpret_cast<const void**>(&embed_)));
  DI_RETURN_IF_ERROR(upload_matrix(weights.head, &head_));
  DI_RETURN_IF_ERROR(upload_vector(weights.norm, &norm_));
  if (c_.has_drafter()) {
    DI_RETURN_IF_ERROR(upload_matrix(weights.main_proj, &main_proj_));
    DI_RETURN_IF_ERROR(upload_matrix(weights.markov_head, &markov_head_));
    DI_RETURN_IF_ERROR(upload(weights.markov_embed.data, weights.markov_embed.rows * weights.markov_embed.cols * 2, reinterpret_cast<const void**>(&markov_embed_)));
    DI_RETURN_IF_ERROR(upload_vector(weights.main_norm, &main_norm_));
    DI_RETURN_IF_ERROR(upload_vector(weights.draft_norm, &draft_norm_));
    DI_RETURN_IF_ERROR(upload_vector(weights.confidence, &confidence_));
  }
  DI_RETURN_IF_ERROR(upload(weights.token_classes.data(), weights.token_classes.size() * 4, reinterpret_cast<const void**>(&classes_)));
  std::vector<int64_t> constants;
  for (const checkpoint::EngramInfo& e : c_.engram) {
    for (int64_t i = 0; i < c_.engram_max_ngram_size; ++i) constants.push_back(static_cast<int64_t>(e.multipliers[i]));
    for (int64_t i = 0; i < c_.engram_columns(); ++i) constants.push_back(e.primes[i]);
    for (int64_t i = 0; i < c_.engram_columns(); ++i) constants.push_back(e.offsets[i]);
  }
  if (!constants.empty()) DI_RETURN_IF_ERROR(upload(constants.data(), constants.size() * 8, reinterpret_cast<const void**>(&engram_constants_)));

  const int64_t rows = buffers_[static_cast<int>(Role::kResidual)].rows, outputs = buffers_[static_cast<int>(Role::kLogits)].rows;
  const int64_t most = std::max(rows, outputs), D = c_.hidden_size, heads = c_.num_attention_heads * c_.head_dim, groups = c_.o_groups * c_.o_lora_rank;
  const int64_t taps = static_cast<int64_t>(c_.dspark_target_layer_ids.size()) * D;
  const int64_t widest_input = std::max({D, c_.q_lora_rank, heads, groups, c_.engram_width(), taps});
  const int64_t widest = std::max({(c_.hc_mult + 1) * D, heads, groups, c_.engram_width(), 2 * c_.head_dim, 2 * c_.moe_intermediate_size, c_.q_lora_rank + c_.head_dim});
  const int64_t most_experts = std::max<int64_t>(c_.n_routed_experts, c_.has_drafter() ? c_.dspark_n_routed_experts : 0);
  const int64_t pairs = rows * buffers_[static_cast<int>(Role::kExpertIds)].cols;
  // Every expert's rows are padded to 8; no more experts than pairs have rows.
  expert_rows_max_ = static_cast<int>(pairs + 7 * std::min(most_experts, pairs));
  const int64_t packed_rows = std::max<int64_t>(most, 0), inter = c_.moe_intermediate_size;
  const size_t packed = std::max({packed_bytes(packed_rows, static_cast<int>(widest_input)), packed_bytes(expert_rows_max_, static_cast<int>(D)), packed_bytes(expert_rows_max_, static_cast<int>(inter)),
                                  static_cast<size_t>(c_.o_groups) * packed_bytes(packed_rows, static_cast<int>(c_.group_input()))});
  const auto take = [this](size_t bytes, auto** p) { return arena_.take(bytes, reinterpret_cast<void**>(p)); };
  DI_RETURN_IF_ERROR(take(packed, &packed_));
  DI_RETURN_IF_ERROR(take(packed_bytes(packed_rows, static_cast<int>(D)), &in_fp8_));
  DI_RETURN_IF_ERROR(take(packed_bytes(packed_rows, static_cast<int>(D)), &in_bf16_));
  DI_RETURN_IF_ERROR(take(most * widest * 2, &wide_));
  DI_RETURN_IF_ERROR(take(most * widest * 2, &narrow_));
  DI_RETURN_IF_ERROR(take(most * ((c_.hidden_size + kMixSlice - 1) / kMixSlice) * (c_.hc_coefficients() + 1) * 4, &mix_));
  DI_RETURN_IF_ERROR(take(most * most_experts * 4, &gate_scores_));
  DI_RETURN_IF_ERROR(take(static_cast<size_t>(limits_.sequences_max) * c_.vocab_size * 4, &base_logits_));
  score_columns_ = (limits_.context_max + 7) / 8 * 8;
  score_rows_ = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (2 * score_columns_), 1, rows));
  DI_RETURN_IF_ERROR(take(score_rows_ * score_columns_ * 2, &scores_));
  DI_RETURN_IF_ERROR(take(score_rows_ * ((score_columns_ / c_.candidate_block_size + 8) / 8 * 8) * 2, &block_scores_));
  DI_RETURN_IF_ERROR(take(expert_rows_max_ * 4, &expert_source_));
  DI_RETURN_IF_ERROR(take(expert_rows_max_ * 4, &expert_pair_));
  DI_RETURN_IF_ERROR(take((pairs + most_experts) * sizeof(GroupTile), &expert_tiles_));
  DI_RETURN_IF_ERROR(take(4 * (most_experts + 2), &expert_tile_count_));
  DI_RETURN_IF_ERROR(take(static_cast<size_t>(expert_rows_max_) * inter * 4, &expert_gate_up_));

  for (RowSet& s : sets_) {
    const size_t ints = static_cast<size_t>(limits_.blocks_max) + rows * 5 + outputs + limits_.sequences_max * c_.engram_max_ngram_size + 64;
    const size_t bytes = limits_.sequences_max * sizeof(SequenceRows) + ints * 4 + static_cast<size_t>(rows) * half() * 6 * 4 + 16 * 256;
    DI_RETURN_IF_ERROR(arena_.take(bytes, reinterpret_cast<void**>(&s.device)));
    if (cudaMallocHost(&s.staging, bytes) != cudaSuccess || cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming) != cudaSuccess) return cuda_error("pin memory of the host", cudaGetLastError());
    std::memset(s.staging, 0, bytes);
  }
  return {};
}

Result<KvMemory> Backend::allocate_kv(const KvLayout& layout, int pages, int slots) {
  layout_ = layout;
  std::byte* p = nullptr;
  DI_RETURN_IF_ERROR(arena_.take(layout.page_stride * pages + layout.slot_stride * slots, reinterpret_cast<void**>(&p)));
  kv_ = {p, pages, p + layout.page_stride * pages, slots};
  return kv_;
}

void Backend::kv_copy(std::byte* to, const std::byte* from, size_t bytes) { note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_)); }

Status Backend::kv_read(const std::byte* from, std::span<std::byte> to) {
  note(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDefault, stream_));
  return synchronize();
}

Status Backend::kv_write(std::byte* to, std::span<const std::byte> from) {
  note(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, stream_));
  return synchronize();
}

Status Backend::read(Role role, int64_t first_row, int64_t rows, std::span<double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values", first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  const size_t size = element_bytes(b.element);
  std::vector<uint8_t> raw(values.size() * size);
  note(cudaMemcpyAsync(raw.data(), static_cast<const uint8_t*>(b.data) + first_row * b.cols * size, raw.size(), cudaMemcpyDeviceToHost, stream_));
  DI_RETURN_IF_ERROR(synchronize());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* p = raw.data() + i * size;
    switch (b.element) {
      case Element::kFloat: values[i] = *reinterpret_cast<const float*>(p); break;
      case Element::kDouble: values[i] = *reinterpret_cast<const double*>(p); break;
      case Element::kBf16: values[i] = numeric::bf16_to_float(*reinterpret_cast<const uint16_t*>(p)); break;
      case Element::kInt32: values[i] = *reinterpret_cast<const int32_t*>(p); break;
      case Element::kByte: values[i] = *p; break;
    }
  }
  return {};
}

Status Backend::write(Role role, int64_t first_row, int64_t rows, std::span<const double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values", first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  if (role == Role::kSublayerIn) packed_in_ = {};
  const size_t size = element_bytes(b.element);
  std::vector<uint8_t> raw(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* p = raw.data() + i * size;
    switch (b.element) {
      case Element::kFloat: *reinterpret_cast<float*>(p) = static_cast<float>(values[i]); break;
      case Element::kDouble: *reinterpret_cast<double*>(p) = values[i]; break;
      case Element::kBf16: *reinterpret_cast<uint16_t*>(p) = numeric::double_to_bf16(values[i]); break;
      case Element::kInt32: *reinterpret_cast<int32_t*>(p) = static_cast<int32_t>(values[i]); break;
      case Element::kByte: *p = static_cast<uint8_t>(values[i]); break;
    }
  }
  note(cudaMemcpyAsync(static_cast<uint8_t*>(b.data) + first_row * b.cols * size, raw.data(), raw.size(), cudaMemcpyHostToDevice, stream_));
  return synchronize();
}

Status Backend::begin(Rows which, const RowBatch& batch) {
  const int64_t rows_max = buffers_[static_cast<int>(Role::kResidual)].rows;
  if (batch.rows > rows_max || static_cast<int>(batch.sequences.size()) > limits_.sequences_max || static_cast<int>(batch.blocks.size()) > limits_.blocks_max ||
      static_cast<int64_t>(batch.outputs.size()) > buffers_[static_cast<int>(Role::kLogits)].rows) {
    return make_error(Code::kInvalidArgument, "a step of {} rows, {} sequences, {} pages and {} outputs is over the limits of {}, {}, {} and {}", batch.rows, batch.sequences.size(),
                      batch.blocks.size(), batch.outputs.size(), limits_.rows_max, limits_.sequences_max, limits_.blocks_max, limits_.outputs_max);
  }
  for (const std::span<const int32_t> list : {batch.tokens, batch.history}) {
    for (int32_t t : list) {
      if (t == kNoToken || (t >= 0 && t < c_.vocab_size) || (t < 0 && -1 - t < limits_.feedback_max)) continue;
      return make_error(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t, c_.vocab_size);
    }
  }
  RowSet& s = sets_[static_cast<int>(which)];
  note(cudaEventSynchronize(s.copied));  // the copy before has left the staging buffer
  s.rows = batch.rows;
  s.sequences = static_cast<int>(batch.sequences.size());
  s.outputs = static_cast<int>(batch.outputs.size());
  // Places depend on the limits alone, so that recorded graphs stay valid.
  size_t at = 0;
  const auto place = [&](size_t capacity, size_t count, const void* from) {
    uint8_t* device = s.device + at;
    if (count > 0 && from != nullptr) std::memcpy(s.staging + at, from, count);
    at += (capacity + 255) / 256 * 256;
    return device;
  };
  const auto ints = [&](size_t capacity, std::span<const int32_t> v) { return reinterpret_cast<const int32_t*>(place(capacity * 4, v.size() * 4, v.data())); };
  const auto rows = static_cast<size_t>(rows_max);
  const int32_t counts[2] = {s.sequences, s.outputs};
  s.view.counts = ints(2, counts);
  s.view.sequences = reinterpret_cast<const SequenceRows*>(place(limits_.sequences_max * sizeof(SequenceRows), batch.sequences.size_bytes(), batch.sequences.data()));
  s.view.blocks = ints(limits_.blocks_max, batch.blocks);
  s.view.tokens = ints(rows, batch.tokens);
  s.view.positions = ints(rows, batch.positions);
  s.view.sequence = ints(rows, batch.sequence);
  if (batch.image_row.empty()) std::memset(s.staging + at, 0xff, static_cast<size_t>(batch.rows) * 4);
  s.view.image_row = ints(rows, batch.image_row);
  s.view.source = ints(rows, batch.source);
  s.view.outputs = ints(buffers_[static_cast<int>(Role::kLogits)].rows, batch.outputs);
  s.view.history = ints(limits_.sequences_max * c_.engram_max_ngram_size, batch.history);
  s.view.feedback = this->at<int32_t>(Role::kFeedback);
  const size_t table = rows * half() * 4;
  std::array<float*, 6> host{};
  std::array<const float*, 6> device{};
  for (int i = 0; i < 6; ++i) {
    host[i] = reinterpret_cast<float*>(s.staging + at);
    device[i] = reinterpret_cast<const float*>(place(table, 0, nullptr));
  }
  for (int i = 0; i < batch.rows; ++i) {
    const int64_t p = batch.positions[i];
    rope_[0].table(p, host[0] + i * half(), host[1] + i * half());
    rope_[1].table(p, host[2] + i * half(), host[3] + i * half());
    rope_[1].table(std::max<int64_t>(p - 1, 0), host[4] + i * half(), host[5] + i * half());
  }
  s.view.cos[0] = device[0], s.view.sin[0] = device[1], s.view.cos[1] = device[2], s.view.sin[1] = device[3], s.view.entry_cos = device[4], s.view.entry_sin = device[5];
  note(cudaMemcpyAsync(s.device, s.staging, at, cudaMemcpyHostToDevice, stream_));
  note(cudaEventRecord(s.copied, stream_));
  return {};
}

void Backend::run(const GraphKey& key, const std::function<void()>& stages) {
  if (key.rows == 0) return stages();
  auto [entry, fresh] = graphs_.try_emplace({key.kind, key.rows}, nullptr);
  if (fresh) {
    cudaGraph_t graph = nullptr;
    note(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    recording_ = true;
    stages();
    recording_ = false;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (ended != cudaSuccess || cudaGraphInstantiate(&entry->second, graph, 0) != cudaSuccess) {
      note(ended != cudaSuccess ? ended : cudaGetLastError());
      graphs_.erase(entry);
      return;
    }
    cudaGraphDestroy(graph);
  }
  note(cudaGraphLaunch(entry->second, stream_));
}

Status Backend::synchronize() {
  cudaError_t e = cudaStreamSynchronize(stream_);
  if (e == cudaSuccess) e = cudaGetLastError();
  if (error_ != cudaSuccess) e = error_;
  error_ = cudaSuccess;
  if (e == cudaSuccess) return {};
  return make_error(Code::kUnavailable, "the GPU failed in the middle of a step: {}", cudaGetErrorString(e));
}

void Backend::project(const LinearWeights& w, const bf16* x, int64_t x_stride, int rows, const LinearOutput& y) {
  if (rows == 0) return;
  // Columns beyond the model's K are zero in the weights; the input has x_stride of them at least as far as K goes.
  pack_activations(x, rows, static_cast<int>(std::min<int64_t>(w.k, x_stride)), packing_of(w.format, rows), nullptr, packed_, stream_, x_stride);
  linear(w, packed_, rows, y, stream_);
}

void Backend::project_in(const LinearWeights& w, int rows, const LinearOutput& y) {
  const bool fp8 = w.format == WeightFormat::kFp8;
  if (packed_in_.rows == rows && (fp8 ? packed_in_.fp8 : packed_in_.bf16)) return linear(w, fp8 ? in_fp8_ : in_bf16_, rows, y, stream_);
  project(w, at<bf16>(Role::kSublayerIn), c_.hidden_size, rows, y);
}

}  // namespace deepinfer::ops::cuda
