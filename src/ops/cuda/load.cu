// How the CUDA backend takes a model: device copies of the weights, buffers and scratch.
#include <algorithm>
#include <cstring>

#include "numeric/formats.h"
#include "ops/cuda/attend.cuh"
#include "ops/cuda/backend.h"
#include "ops/cuda/experts_few.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kMixSlice = 256;  // channels of one partial sum of the mHC projection

int64_t padded(int64_t k) { return (k + kChunk - 1) / kChunk * kChunk; }

uint64_t bytes_of(const Matrix& m) {
  if (!m) return 0;
  const auto n = static_cast<uint64_t>(m.rows) * static_cast<uint64_t>(m.cols);
  switch (m.format) {
    case WeightFormat::kF32: return 4 * n;
    case WeightFormat::kBf16: return 2 * n;
    case WeightFormat::kFp8: return n + n / 1024;
    case WeightFormat::kFp8Rows: return n + n / 32;
    case WeightFormat::kFp4: return n / 2 + n / 32;
  }
  return 0;
}

WeightBytes bytes_of(const LayerWeights& l) {
  WeightBytes sum;
  for (const Matrix* m :
       {&l.attention.wq_a, &l.attention.wq_b, &l.attention.wkv, &l.attention.wo_a, &l.attention.wo_b, &l.compressor.wkv,
        &l.compressor.wgate, &l.indexer.wk, &l.indexer.wq_b, &l.indexer.weights_proj, &l.moe.gate, &l.moe.shared.gate,
        &l.moe.shared.up, &l.moe.shared.down, &l.engram.wkv, &l.hc_attn.fn, &l.hc_ffn.fn}) {
    sum.dense += bytes_of(*m);
  }
  sum.tables += bytes_of(l.engram.table);
  for (const ExpertWeights& e : l.moe.experts) sum.experts += bytes_of(e.gate) + bytes_of(e.up) + bytes_of(e.down);
  return sum;
}

WeightBytes bytes_of(const ModelWeights& w) {
  WeightBytes sum;
  for (const Matrix* m : {&w.embed, &w.head, &w.main_proj, &w.markov_embed, &w.markov_head}) sum.dense += bytes_of(*m);
  for (const LayerWeights& l : w.layers) {
    const WeightBytes layer = bytes_of(l);
    sum.dense += layer.dense, sum.tables += layer.tables, sum.experts += layer.experts;
  }
  return sum;
}

}  // namespace

Status Backend::upload(const void* from, size_t bytes, const void** to) {
  void* p = nullptr;
  DI_RETURN_IF_ERROR(arena_.take(bytes, &p));
  const cudaError_t e = cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice);
  *to = p;
  return e == cudaSuccess ? Status() : cuda_error("take the weights", e);
}

// An Engram table: on the GPU, or where it reads host memory.
Status Backend::upload_table(const void* from, size_t bytes, const uint8_t** to) {
  if (!offload_.tables) return upload(from, bytes, reinterpret_cast<const void**>(to));
  void* p = nullptr;
  DI_RETURN_IF_ERROR(offload_.pinned.take(bytes, &p));
  std::memcpy(p, from, bytes);
  *to = static_cast<const uint8_t*>(p);
  return {};
}

// A stack of equal matrices, K padded with zero columns to a multiple of 128.
static Status stack_layout(const Matrix& m, int64_t* row_bytes, int64_t* padded_row_bytes, int64_t* scale_rows,
                           int64_t* scale_cols, int64_t* padded_scale_cols) {
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
      return make_error(Code::kUnsupported,
                        "a weight scale of 2^{} is above what the CUDA backend expands exactly (2^{})",
                        std::to_integer<int>(m.scale[i]) - 127, limit - 127);
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
  const int k = static_cast<int>(padded(first.cols)), n = static_cast<int>(rows);
  const bool fp4 = first.format == WeightFormat::kFp4;
  const auto round_up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t code_bytes = round_up(rows * padded_row), scale_bytes = round_up(all_scale_rows * padded_scale),
                arranged = fp4 ? round_up(arranged_fp4_bytes(n, k)) : 0;
  if (code_bytes >= int64_t{1} << 32) {
    return make_error(Code::kUnsupported,
                      "a matrix of {} MiB is too large for the CUDA backend, which takes less than 4 GiB",
                      code_bytes >> 20);
  }
  // FP4: row-major copies of one expert pass through a buffer of their own.
  Arena passing;
  Arena& arena = fp4 ? passing : arena_;
  const size_t copies = fp4 ? 1 : experts.size();
  void *codes = nullptr, *scales = nullptr, *tiles = nullptr;
  DI_RETURN_IF_ERROR(arena.take(code_bytes * copies, &codes));
  DI_RETURN_IF_ERROR(arena.take(scale_bytes * copies, &scales));
  if (fp4) DI_RETURN_IF_ERROR(arena_.take(arranged * experts.size(), &tiles));
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return cuda_error("clear memory", error);
  for (size_t e = 0; e < experts.size(); ++e) {
    uint8_t* const code = static_cast<uint8_t*>(codes) + (fp4 ? 0 : e * code_bytes);
    uint8_t* const scale = static_cast<uint8_t*>(scales) + (fp4 ? 0 : e * scale_bytes);
    DI_RETURN_IF_ERROR(copy_stack(experts[e], code, scale));
    if (fp4) arrange_fp4(code, scale, n, k, static_cast<uint8_t*>(tiles) + e * arranged, stream_);
    if (first.format == WeightFormat::kFp8) arrange_fp8(code, rows * padded_row, stream_);
  }
  if (const cudaError_t error = cudaStreamSynchronize(stream_); error != cudaSuccess)
    return cuda_error("take the weights", error);
  if (fp4) {
    *out = {tiles, nullptr, n, k, first.format, arranged, 0};
  } else {
    *out = {codes, static_cast<const uint8_t*>(scales), n, k, first.format, code_bytes, scale_bytes};
  }
  return {};
}

Status Backend::copy_stack(const std::vector<const Matrix*>& parts, uint8_t* code, uint8_t* scale) {
  int64_t row_bytes, padded_row, scale_rows, scale_cols, padded_scale;
  for (const Matrix* m : parts) {
    DI_RETURN_IF_ERROR(stack_layout(*m, &row_bytes, &padded_row, &scale_rows, &scale_cols, &padded_scale));
    cudaError_t error =
        cudaMemcpy2DAsync(code, padded_row, m->data, row_bytes, row_bytes, m->rows, cudaMemcpyHostToDevice, stream_);
    if (error == cudaSuccess && scale_rows > 0) {
      error = cudaMemcpy2DAsync(scale, padded_scale, m->scale, scale_cols, scale_cols, scale_rows,
                                cudaMemcpyHostToDevice, stream_);
    }
    if (error != cudaSuccess) return cuda_error("take the weights", error);
    code += m->rows * padded_row, scale += scale_rows * padded_scale;
  }
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
  l->wkv.codes = static_cast<const uint8_t*>(l->wkv.codes) + low * k, l->wkv.scales += low / 32 * (k / 32),
  l->wkv.n -= static_cast<int>(low);
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wq_b, &l->wq_b));
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wo_a, &l->wo_a));
  DI_RETURN_IF_ERROR(upload_matrix(in.attention.wo_b, &l->wo_b));
  l->mapped = make_tensor_map(l->wq_a_wkv, &l->maps.wq_a_wkv) && make_tensor_map(l->wq_b, &l->maps.wq_b) &&
              make_tensor_map(l->wo_a, &l->maps.wo_a) && make_tensor_map(l->wo_b, &l->maps.wo_b);
  DI_RETURN_IF_ERROR(upload_matrix(in.compressor.wkv, &l->compressor_wkv));
  DI_RETURN_IF_ERROR(upload_matrix(in.compressor.wgate, &l->compressor_wgate));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.wk, &l->index_wk));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.wq_b, &l->index_wq_b));
  DI_RETURN_IF_ERROR(upload_matrix(in.indexer.weights_proj, &l->weights_proj));
  DI_RETURN_IF_ERROR(upload_matrix(in.moe.gate, &l->gate));
  if (offload_.experts) {
    DI_RETURN_IF_ERROR(keep_experts(in.moe, static_cast<size_t>(first_of_host(static_cast<int>(l - layers_.data())))));
  } else {
    std::vector<std::vector<const Matrix*>> gate_up, down;
    for (const ExpertWeights& e : in.moe.experts) gate_up.push_back({&e.gate, &e.up}), down.push_back({&e.down});
    DI_RETURN_IF_ERROR(upload_stack(gate_up, &l->w1_w3));
    DI_RETURN_IF_ERROR(upload_stack(down, &l->w2));
  }
  DI_RETURN_IF_ERROR(upload_stack({{&in.moe.shared.gate, &in.moe.shared.up}}, &l->shared_w1_w3));
  DI_RETURN_IF_ERROR(upload_matrix(in.moe.shared.down, &l->shared_w2));
  DI_RETURN_IF_ERROR(upload_matrix(in.engram.wkv, &l->engram_wkv));
  const std::pair<const Matrix*, const float**> vectors[] = {
      {&in.attn_norm, &l->attn_norm},      {&in.ffn_norm, &l->ffn_norm},
      {&in.attention.q_norm, &l->q_norm},  {&in.attention.kv_norm, &l->kv_norm},
      {&in.attention.sink, &l->sink},      {&in.compressor.norm, &l->compressor_norm},
      {&in.indexer.k_norm, &l->k_norm},    {&in.moe.bias, &l->bias},
      {&in.moe.bias_vl, &l->bias_vl},      {&in.hc_attn.fn, &l->hc_fn[0]},
      {&in.hc_attn.base, &l->hc_base[0]},  {&in.hc_attn.scale, &l->hc_scale[0]},
      {&in.hc_ffn.fn, &l->hc_fn[1]},       {&in.hc_ffn.base, &l->hc_base[1]},
      {&in.hc_ffn.scale, &l->hc_scale[1]},
  };
  for (const auto& [from, to] : vectors) DI_RETURN_IF_ERROR(upload_vector(*from, to));
  if (const EngramWeights& e = in.engram; e.q_weight) {
    if (e.table) {
      const size_t codes = e.table.rows * e.table.cols;
      DI_RETURN_IF_ERROR(upload_table(e.table.data, codes, &l->engram_codes));
      DI_RETURN_IF_ERROR(upload_table(e.table.scale, codes / 32, &l->engram_scales));
    }
    const float *q = nullptr, *k = nullptr;
    DI_RETURN_IF_ERROR(upload_vector(e.q_weight, &q));
    DI_RETURN_IF_ERROR(upload_vector(e.k_weight, &k));
    const size_t n = e.q_weight.rows * e.q_weight.cols;
    std::vector<float> a(n), b(n);
    if (cudaMemcpy(a.data(), q, n * 4, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(b.data(), k, n * 4, cudaMemcpyDeviceToHost) != cudaSuccess) {
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
  if (c_.hc_mult != 4)
    return make_error(Code::kUnsupported, "the CUDA backend has kernels for hc_mult 4; this model has {}", c_.hc_mult);
  if ((c_.head_dim != 64 && c_.head_dim != 512) || (c_.index_head_dim != 64 && c_.index_head_dim != 128) ||
      c_.index_n_heads > 32 || c_.num_experts_per_tok > 8 || c_.n_routed_experts > 1024) {
    return make_error(Code::kUnsupported,
                      "the CUDA backend has kernels for head_dim 64 or 512, index_head_dim 64 or 128, at most 32 index "
                      "heads and 8 experts a token of 1024; this model has {}, {}, {} and {} of {}",
                      c_.head_dim, c_.index_head_dim, c_.index_n_heads, c_.num_experts_per_tok, c_.n_routed_experts);
  }
  if (c_.has_drafter() && (c_.dspark_num_experts_per_tok > 8 || c_.dspark_n_routed_experts > 1024)) {
    return make_error(Code::kUnsupported,
                      "the CUDA backend has kernels for 8 experts a token of 1024; this model's drafter has {} of {}",
                      c_.dspark_num_experts_per_tok, c_.dspark_n_routed_experts);
  }
  if (limits_.blocks_max == 0) limits_.blocks_max = limits_.sequences_max * KvLayout::pages_for(limits_.context_max);
  rope_ = {RopeFrequencies::make(c_, false), RopeFrequencies::make(c_, true)};
  if (c_.head_dim == kWideDim && std::max(padded(c_.sliding_window) + padded(c_.index_topk),
                                          padded(c_.sliding_window + c_.dspark_block_size)) > kWideKeys) {
    return make_error(Code::kUnsupported,
                      "the CUDA backend attends to at most {} keys a row; this model has a window of {} and selects {}",
                      kWideKeys, c_.sliding_window, c_.index_topk);
  }
  const WeightBytes bytes = bytes_of(weights);
  // Said before gigabytes are copied.
  if (const uint64_t work = workspace_bytes(c_, limits_), room = free_bytes(); bytes.dense + work > room) {
    return make_error(
        Code::kResourceExhausted,
        "Weights that every token reads take {} MiB and the working memory {} MiB, and the GPU has {} MiB "
        "for them: use a smaller model, fewer rows or sequences, or the CPU (--device cpu).",
        bytes.dense >> 20, work >> 20, room >> 20);
  }
  buffers_ = plan_buffers(c_, limits_);
  for (Buffer& b : buffers_) DI_RETURN_IF_ERROR(arena_.take(b.rows * b.cols * element_bytes(b.element), &b.data));
  DI_RETURN_IF_ERROR(take_scratch());
  layers_.resize(weights.layers.size());
  DI_RETURN_IF_ERROR(plan_offload(weights, bytes));
  DI_RETURN_IF_ERROR(take_row_buffer());
  uint64_t done = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    DI_RETURN_IF_ERROR(load_layer(weights.layers[i], &layers_[i]));
    done += bytes_of(weights.layers[i]).all();
    if (options_.progress) options_.progress(done, bytes.all());
  }
  if (weights.embed) {
    DI_RETURN_IF_ERROR(upload(weights.embed.data, weights.embed.rows * weights.embed.cols * 2,
                              reinterpret_cast<const void**>(&embed_)));
  }
  DI_RETURN_IF_ERROR(upload_matrix(weights.head, &head_));
  DI_RETURN_IF_ERROR(upload_vector(weights.norm, &norm_));
  if (c_.has_drafter()) {
    DI_RETURN_IF_ERROR(upload_matrix(weights.main_proj, &main_proj_));
    DI_RETURN_IF_ERROR(upload_matrix(weights.markov_head, &markov_head_));
    DI_RETURN_IF_ERROR(upload(weights.markov_embed.data, weights.markov_embed.rows * weights.markov_embed.cols * 2,
                              reinterpret_cast<const void**>(&markov_embed_)));
    DI_RETURN_IF_ERROR(upload_vector(weights.main_norm, &main_norm_));
    DI_RETURN_IF_ERROR(upload_vector(weights.draft_norm, &draft_norm_));
    DI_RETURN_IF_ERROR(upload_vector(weights.confidence, &confidence_));
  }
  DI_RETURN_IF_ERROR(upload(weights.token_classes.data(), weights.token_classes.size() * 4,
                            reinterpret_cast<const void**>(&classes_)));
  std::vector<int64_t> constants;
  for (const checkpoint::EngramInfo& e : c_.engram) {
    for (int64_t i = 0; i < c_.engram_max_ngram_size; ++i) constants.push_back(static_cast<int64_t>(e.multipliers[i]));
    for (int64_t i = 0; i < c_.engram_columns(); ++i) constants.push_back(e.primes[i]);
    for (int64_t i = 0; i < c_.engram_columns(); ++i) constants.push_back(e.offsets[i]);
  }
  if (!constants.empty())
    DI_RETURN_IF_ERROR(
        upload(constants.data(), constants.size() * 8, reinterpret_cast<const void**>(&engram_constants_)));
  if (options_.progress) options_.progress(bytes.all(), bytes.all());
  options_.progress = nullptr;
  return {};
}

Status Backend::take_scratch() {
  const int64_t rows = buffers_[static_cast<int>(Role::kResidual)].rows,
                outputs = buffers_[static_cast<int>(Role::kLogits)].rows;
  const int64_t most = std::max(rows, outputs), D = c_.hidden_size, heads = c_.num_attention_heads * c_.head_dim,
                groups = c_.o_groups * c_.o_lora_rank;
  const int64_t taps = static_cast<int64_t>(c_.dspark_target_layer_ids.size()) * D;
  const int64_t widest_input = std::max({D, c_.q_lora_rank, heads, groups, c_.engram_width(), taps});
  const int64_t widest = std::max({(c_.hc_mult + 1) * D, heads, groups, c_.engram_width(), 2 * c_.head_dim,
                                   2 * c_.moe_intermediate_size, c_.q_lora_rank + c_.head_dim});
  const int64_t most_experts =
      std::max<int64_t>(c_.n_routed_experts, c_.has_drafter() ? c_.dspark_n_routed_experts : 0);
  const int64_t pairs = rows * buffers_[static_cast<int>(Role::kExpertIds)].cols;
  // Every expert's rows are padded to 8; no more experts than pairs have rows.
  expert_rows_max_ = static_cast<int>(pairs + 7 * std::min(most_experts, pairs));
  const int64_t packed_rows = std::max<int64_t>(most, 0), inter = c_.moe_intermediate_size;
  const size_t packed = std::max(
      {packed_bytes(packed_rows, static_cast<int>(widest_input)), packed_bytes(expert_rows_max_, static_cast<int>(D)),
       packed_bytes(expert_rows_max_, static_cast<int>(inter)),
       static_cast<size_t>(c_.o_groups) * packed_bytes(packed_rows, static_cast<int>(c_.group_input()))});
  const auto take = [this](size_t bytes, auto** p) { return arena_.take(bytes, reinterpret_cast<void**>(p)); };
  DI_RETURN_IF_ERROR(take(packed, &packed_));
  DI_RETURN_IF_ERROR(take(packed_bytes(packed_rows, static_cast<int>(D)), &in_fp8_));
  DI_RETURN_IF_ERROR(take(packed_bytes(packed_rows, static_cast<int>(D)), &in_bf16_));
  DI_RETURN_IF_ERROR(take(packed_bytes(kGatherRows, static_cast<int>(D)), &in_fp4_));
  DI_RETURN_IF_ERROR(take(packed_bytes(packed_rows, static_cast<int>(std::max(D, inter))), &side_packed_));
  DI_RETURN_IF_ERROR(take(packed_rows * 2 * inter * 2, &side_wide_));
  DI_RETURN_IF_ERROR(take(most * widest * 2, &wide_));
  DI_RETURN_IF_ERROR(take(most * widest * 2, &narrow_));
  DI_RETURN_IF_ERROR(
      take(most * ((c_.hidden_size + kMixSlice - 1) / kMixSlice) * (c_.hc_coefficients() + 1) * 4, &mix_));
  DI_RETURN_IF_ERROR(take(most * most_experts * 4, &gate_scores_));
  DI_RETURN_IF_ERROR(take(static_cast<size_t>(limits_.sequences_max) * c_.vocab_size * 4, &base_logits_));
  score_columns_ = (limits_.context_max + 63) / 64 * 64;
  score_rows_ = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (2 * score_columns_), 1, rows));
  DI_RETURN_IF_ERROR(take(score_rows_ * score_columns_ * 2, &scores_));
  DI_RETURN_IF_ERROR(take(score_rows_ * ((score_columns_ / c_.candidate_block_size + 8) / 8 * 8) * 2, &block_scores_));
  DI_RETURN_IF_ERROR(take(expert_rows_max_ * 4, &expert_source_));
  DI_RETURN_IF_ERROR(take(expert_rows_max_ * 4, &expert_pair_));
  DI_RETURN_IF_ERROR(take((pairs + most_experts) * sizeof(GroupTile), &expert_tiles_));
  DI_RETURN_IF_ERROR(take(4 * (most_experts + 2), &expert_tile_count_));
  DI_RETURN_IF_ERROR(take(4 * (kFewChoices + 1), &expert_progress_));
  DI_RETURN_IF_ERROR(take(4 * kChainProgress, &chain_progress_));
  DI_RETURN_IF_ERROR(take(static_cast<size_t>(expert_rows_max_) * inter * 4, &expert_gate_up_));

  for (RowSet& s : sets_) {
    const size_t ints = static_cast<size_t>(limits_.blocks_max) + rows * 5 + outputs +
                        limits_.sequences_max * c_.engram_max_ngram_size + 64;
    const size_t bytes =
        limits_.sequences_max * sizeof(SequenceRows) + ints * 4 + static_cast<size_t>(rows) * half() * 6 * 4 + 16 * 256;
    DI_RETURN_IF_ERROR(arena_.take(bytes, reinterpret_cast<void**>(&s.device)));
    if (cudaMallocHost(&s.staging, bytes) != cudaSuccess ||
        cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming) != cudaSuccess)
      return cuda_error("pin memory of the host", cudaGetLastError());
    std::memset(s.staging, 0, bytes);
  }
  return {};
}

}  // namespace deepinfer::ops::cuda
