// Projections of attention, indexer and compressor (spec/model.md 6.1, 7, 8.2): what reads the same input runs in one
// loop.
#include <algorithm>
#include <array>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::attention_project(At where, uint32_t parts) {
  if (by_rows(where.rows)) return later({.run = &FastBackend::project_rows, .at = where, .parts = parts});
  run_waiting();
  mix_beside_attention_ = small_;
  if (alone(where.rows)) return project_beside(where, parts);
  const LayerWeights& w = w_.layers[where.layer];
  const int64_t n = row_count(where.rows), D = c_.hidden_size, d = c_.head_dim;
  const int64_t low = c_.q_lora_rank, heads = c_.num_attention_heads, index_heads = c_.index_n_heads,
                index_d = c_.index_head_dim;
  const float* x = at<float>(Role::kSublayerIn);
  float *qr = at<float>(Role::kQueryLow), *q = at<float>(Role::kQuery), *kv = stage_rows_.data(),
        *iq = at<float>(Role::kIndexQuery), *compressed = at<float>(Role::kCompressorRows);
  std::array<LinearCall, 5> calls;
  size_t count = 0;
  const auto run_calls = [&] {
    run(std::span<const LinearCall>(calls.data(), count));
    count = 0;
  };

  if (parts & (kProjectQueries | kProjectWindow)) {
    const PackedRows p = pack_for(kFirst, w.attention.wq_a, x, D, n);
    if (parts & kProjectQueries) calls[count++] = call(w.attention.wq_a, p, qr, low, true);
    if (parts & kProjectWindow) calls[count++] = call(w.attention.wkv, p, kv, d, true);
  }
  if (parts & (kProjectIndexQueries | kProjectCompressor)) {
    const PackedRows p = pack(kSecond, x, D, n, D, Order::kNatural, false);
    if (parts & kProjectIndexQueries)
      calls[count++] = call(w.indexer.weights_proj, p, at<float>(Role::kIndexWeights), index_heads, true);
    if (parts & kProjectCompressor) {
      const bool gated = ratio_of(where.layer) != 1;
      if (gated) calls[count++] = call(w.compressor.wgate, p, compressed, 2 * d, false);
      calls[count++] = call(w.compressor.wkv, p, compressed + (gated ? d : 0), 2 * d, !gated);
    }
  }
  run_calls();

  auto low_rows = [&](int64_t begin, int64_t end) { finish_low(where, parts, kv + begin * d, begin, end); };
  if (parts & (kProjectQueries | kProjectWindow)) parallel(n, low_rows, 8);
  if ((parts & (kProjectQueries | kProjectIndexQueries)) == 0) return;

  const PackedRows p = pack_for(kFirst, w.attention.wq_b, qr, low, n);
  if (parts & kProjectQueries) calls[count++] = call(w.attention.wq_b, p, q, heads * d, true);
  if (parts & kProjectIndexQueries) calls[count++] = call(w.indexer.wq_b, p, iq, index_heads * index_d, true);
  run_calls();
  auto high_rows = [&](int64_t begin, int64_t end) { finish_high(where, parts, begin, end); };
  parallel(n, high_rows, 8);
}

// kv: window rows before their norm, row `begin` first.
void FastBackend::finish_low(At where, uint32_t parts, float* kv, int64_t begin, int64_t end) {
  const RowSet& set = set_of(where.rows);
  const LayerVectors& v = vectors_[where.layer];
  const int64_t half = c_.qk_rope_head_dim / 2, low = c_.q_lora_rank, d = c_.head_dim;
  const int table = ratio_of(where.layer) > 0;
  const auto eps = static_cast<float>(c_.rms_norm_eps);
  for (int64_t i = begin; i < end; ++i) {
    float* qr = at<float>(Role::kQueryLow, i);
    if (parts & kProjectQueries) k_.norm(qr, v.q_norm.data(), low, eps, qr);
    if (parts & kProjectWindow) {
      float* row = kv + (i - begin) * d;
      k_.norm(row, v.kv_norm.data(), d, eps, row);
      turn(row, 1, d, set.cos[table].data() + i * half, set.sin[table].data() + i * half, false);
      encode_window(row, reinterpret_cast<std::byte*>(at<uint8_t>(Role::kWindowRecords, i)));
    }
  }
}

void FastBackend::finish_high(At where, uint32_t parts, int64_t begin, int64_t end) {
  const RowSet& set = set_of(where.rows);
  const int64_t half = c_.qk_rope_head_dim / 2, d = c_.head_dim, heads = c_.num_attention_heads,
                index_heads = c_.index_n_heads, index_d = c_.index_head_dim;
  const int table = ratio_of(where.layer) > 0;
  for (int64_t i = begin; i < end; ++i) {
    const float *cos = set.cos[table].data() + i * half, *sin = set.sin[table].data() + i * half;
    if (parts & kProjectQueries) turn(at<float>(Role::kQuery, i), heads, d, cos, sin, false);
    if (parts & kProjectIndexQueries) {
      float* iq = at<float>(Role::kIndexQuery, i);
      turn(iq, index_heads, index_d, cos, sin, false);
      k_.fq4i(iq, index_heads * index_d / kIndexGroup);
    }
  }
}

// turned: row `begin` first.
void FastBackend::rotate_back(At where, float* turned, int64_t begin, int64_t end) {
  const RowSet& set = set_of(where.rows);
  const int64_t heads = c_.num_attention_heads, d = c_.head_dim, half = c_.qk_rope_head_dim / 2;
  const int table = ratio_of(where.layer) > 0;
  for (int64_t i = begin; i < end; ++i, turned += heads * d) {
    std::copy_n(at<float>(Role::kHeads, i), heads * d, turned);
    turn(turned, heads, d, set.cos[table].data() + i * half, set.sin[table].data() + i * half, true);
  }
}

void FastBackend::attention_output(At where) {
  if (by_rows(where.rows)) return later({.run = &FastBackend::output_rows, .at = where});
  run_waiting();
  if (alone(where.rows)) return output_beside(where);
  const RowSet& set = set_of(where.rows);
  const AttentionWeights& w = w_.layers[where.layer].attention;
  const int64_t n = set.rows, heads = c_.num_attention_heads, d = c_.head_dim;
  const int64_t groups = c_.o_groups, rank = c_.o_lora_rank, width = c_.group_input();
  float *turned = wide_rows_.data(), *z = stage_rows_.data();
  auto turn_rows = [&](int64_t begin, int64_t end) { rotate_back(where, turned + begin * heads * d, begin, end); };
  parallel(n, turn_rows, 8);
  // Groups differ in their input: each is packed behind the other.
  output_calls_.clear();
  const int64_t ld = packed_columns(width);
  PackedRows p{packed_[kFirst].as<uint16_t>(), ld, n};
  for (int64_t g = 0; g < groups; ++g, p.words += n * ld) {
    pack_rows(p, turned + g * width, heads * d, width, order_of(w.wo_a.format), false);
    output_calls_.push_back({&w.wo_a, g * rank, rank, p, z + g * rank, groups * rank, true});
  }
  run(output_calls_);
  linear(w.wo_b, z, groups * rank, n, at<float>(Role::kSublayerOut), c_.hidden_size);
}

}  // namespace deepinfer::ops::cpu::fast
