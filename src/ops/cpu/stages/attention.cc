// Attention: projections, window records, the core and the output projection (spec/model.md 6, 11.2).
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {

template <class T>
void Backend<T>::encode_window(const float* x, std::byte* record) const {
  if (packed()) {
    numeric::encode_window_record(std::span<const float>(x, c_.head_dim), reinterpret_cast<uint8_t*>(record));
  } else {
    std::memcpy(record, x, c_.head_dim * sizeof(float));
  }
}

template <class T>
void Backend<T>::decode_window(const std::byte* record, float* x) const {
  if (packed()) {
    numeric::decode_window_record(reinterpret_cast<const uint8_t*>(record), std::span<float>(x, c_.head_dim));
  } else {
    std::memcpy(x, record, c_.head_dim * sizeof(float));
  }
}

template <class T>
void Backend<T>::decode_entry(const std::byte* record, float* x) const {
  if (packed()) {
    numeric::decode_entry_record(reinterpret_cast<const uint8_t*>(record), std::span<float>(x, c_.head_dim));
  } else {
    std::memcpy(x, record, c_.head_dim * sizeof(float));
  }
}

// kWindowRecords of a layer or drafter stage from its input rows.
template <class T>
void Backend<T>::window_rows(int layer, const RowSet& set, const float* x, int64_t ldx) {
  const AttentionWeights& a = w_.layers[layer].attention;
  const LayerVectors& v = vectors_[layer];
  const int64_t d = c_.head_dim, half = c_.qk_rope_head_dim / 2;
  const int table = ratio_of(layer) > 0;
  float* rows = stage_rows_.data();
  linear(a.wkv, x, ldx, set.rows, rows, d);
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* kv = rows + i * d;
      norm(kv, v.kv_norm.data(), d, kv);
      rotate(kv, 1, d, set.cos[table].data() + i * half, set.sin[table].data() + i * half, false);
      encode_window(kv, reinterpret_cast<std::byte*>(at<uint8_t>(Role::kWindowRecords, i)));
    }
  };
  parallel(set.rows, body, 8);
}

template <class T>
void Backend<T>::attention_project(At where, uint32_t parts) {
  const RowSet& set = set_of(where.rows);
  const LayerWeights& w = w_.layers[where.layer];
  const LayerVectors& v = vectors_[where.layer];
  const int64_t n = set.rows, half = c_.qk_rope_head_dim / 2, D = c_.hidden_size;
  const int table = ratio_of(where.layer) > 0;
  const float* x = at<float>(Role::kSublayerIn);
  const auto cos = [&](int64_t i) { return set.cos[table].data() + i * half; };
  const auto sin = [&](int64_t i) { return set.sin[table].data() + i * half; };
  if (parts & kProjectQueries) {
    const int64_t low = c_.q_lora_rank, heads = c_.num_attention_heads, d = c_.head_dim;
    float *qr = at<float>(Role::kQueryLow), *q = at<float>(Role::kQuery);
    linear(w.attention.wq_a, x, D, n, qr, low);
    auto normalise = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) norm(qr + i * low, v.q_norm.data(), low, qr + i * low);
    };
    parallel(n, normalise, 16);
    linear(w.attention.wq_b, qr, low, n, q, heads * d);
    auto turn = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) rotate(q + i * heads * d, heads, d, cos(i), sin(i), false);
    };
    parallel(n, turn, 8);
  }
  if (parts & kProjectWindow) window_rows(where.layer, set, x, D);
  if (parts & kProjectIndexQueries) {
    const int64_t heads = c_.index_n_heads, d = c_.index_head_dim;
    float* q = at<float>(Role::kIndexQuery);
    linear(w.indexer.wq_b, at<float>(Role::kQueryLow), c_.q_lora_rank, n, q, heads * d);
    auto finish = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        rotate(q + i * heads * d, heads, d, cos(i), sin(i), false);
        if (rounding_) numeric::fq4i(std::span<float>(q + i * heads * d, heads * d));
      }
    };
    parallel(n, finish, 8);
    linear(w.indexer.weights_proj, x, D, n, at<float>(Role::kIndexWeights), heads);
  }
  if (parts & kProjectCompressor) {
    const int64_t d = c_.head_dim;
    T* out = at<T>(Role::kCompressorRows);
    if (ratio_of(where.layer) == 1) {
      products(w.compressor.wkv, x, D, n, out, 2 * d);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t l = 0; l < d; ++l) out[i * 2 * d + l] = round(out[i * 2 * d + l]);
      }
    } else {
      products(w.compressor.wgate, x, D, n, out, 2 * d);
      products(w.compressor.wkv, x, D, n, out + d, 2 * d);
    }
  }
}

// The keys a row attends to, in the order of 6.3: window oldest first, then selected entries ascending.
template <class T>
int64_t Backend<T>::gather_keys(const At& where, const RowSet& set, int row, float* keys) const {
  const SequenceRows& s = set.of(row);
  const int64_t d = c_.head_dim, window = c_.sliding_window;
  const bool draft = where.rows == Rows::kDraft;
  const int64_t newest = draft ? s.first_position - 1 : set.positions[row];
  const int64_t last = draft ? s.first_position + s.rows - 1 : newest;
  int64_t n = 0;
  for (int64_t p = std::max<int64_t>({0, s.window_begin, newest - window + 1}); p <= last; ++p, ++n) {
    const std::byte* record =
        p >= s.first_position
            ? reinterpret_cast<const std::byte*>(at<uint8_t>(Role::kWindowRecords, s.first_row + p - s.first_position))
            : ring_record(s, where.layer, p);
    decode_window(record, keys + n * d);
  }
  if (ratio_of(where.layer) == 0) return n;
  const KvSource& source = layout_.sources[layout_.source_at(c_.layers[where.layer].kv_source)];
  const int32_t* selected = at<int32_t>(Role::kSelected, row);
  for (int64_t i = 0; i < c_.index_topk && selected[i] >= 0; ++i, ++n) {
    const std::byte* p = page(s, set, selected[i], source.page_entries);
    decode_entry(p + source.entry_offset + (selected[i] % source.page_entries) * layout_.entry_bytes, keys + n * d);
  }
  return n;
}

// One row, all heads. Scores by panels of heads, values by panels of channels; softmax statistics in T, keys ascending.
template <class T>
void Backend<T>::attend_row(const float* q, const float* keys, int64_t n, const float* sink, float* out) const {
  const int64_t heads = c_.num_attention_heads, d = c_.head_dim;
  const T scale = T{1} / std::sqrt(static_cast<T>(d));
  float* panel = scratch<float>(Slot::kQueries, d * kLanes);
  T* scores = scratch<T>(Slot::kScores, n * kLanes);
  float* p = scratch<float>(Slot::kProbabilities, kLanes * n);
  T* acc = scratch<T>(Slot::kAccumulator, kLanes * kLanes);
  for (int64_t h0 = 0; h0 < heads; h0 += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, heads - h0);
    std::fill(panel, panel + d * kLanes, 0.0f);
    for (int64_t h = 0; h < lanes; ++h) {
      for (int64_t i = 0; i < d; ++i) panel[i * kLanes + h] = q[(h0 + h) * d + i];
    }
    std::fill(scores, scores + n * kLanes, T{0});
    panel_dot(keys, d, n, panel, kLanes, d, scores);
    T denominator[kLanes];
    for (int64_t h = 0; h < lanes; ++h) {
      T top = static_cast<T>(-1e30);
      for (int64_t t = 0; t < n; ++t) top = std::max(top, scores[t * kLanes + h] *= scale);
      T sum = 0;
      for (int64_t t = 0; t < n; ++t) {
        const T e = std::exp(scores[t * kLanes + h] - top);
        sum += e;
        p[h * n + t] = round(e);
      }
      denominator[h] = sum + std::exp(static_cast<T>(sink[h0 + h]) - top);
    }
    for (int64_t i = 0; i < d; i += kLanes) {
      std::fill(acc, acc + lanes * kLanes, T{0});
      panel_dot(p, n, lanes, keys + i, d, n, acc);
      for (int64_t h = 0; h < lanes; ++h) {
        for (int64_t l = 0; l < kLanes; ++l)
          out[(h0 + h) * d + i + l] = n == 0 ? 0.0f : round(acc[h * kLanes + l] / denominator[h]);
      }
    }
  }
}

template <class T>
void Backend<T>::attend(At where) {
  const RowSet& set = set_of(where.rows);
  auto body = [&](int64_t begin, int64_t end) {
    float* keys = scratch<float>(Slot::kKeys, keys_max() * c_.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = gather_keys(where, set, static_cast<int>(i), keys);
      attend_row(at<float>(Role::kQuery, i), keys, n, vectors_[where.layer].sink.data(), at<float>(Role::kHeads, i));
    }
  };
  parallel(set.rows, body);
}

template <class T>
void Backend<T>::store_window(At where) {
  const RowSet& set = set_of(where.rows);
  for (const SequenceRows& s : set.sequences) {
    for (int r = std::max(0, s.rows - layout_.window_slots); r < s.rows; ++r) {
      std::memcpy(ring_record(s, where.layer, s.first_position + r), at<uint8_t>(Role::kWindowRecords, s.first_row + r),
                  layout_.window_bytes);
    }
  }
}

template <class T>
void Backend<T>::attention_output(At where) {
  const RowSet& set = set_of(where.rows);
  const AttentionWeights& w = w_.layers[where.layer].attention;
  const int64_t n = set.rows, heads = c_.num_attention_heads, d = c_.head_dim, half = c_.qk_rope_head_dim / 2;
  const int64_t groups = c_.o_groups, rank = c_.o_lora_rank, width = c_.group_input();
  const int table = ratio_of(where.layer) > 0;
  float* turned = wide_rows_.data();
  auto turn = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(at<float>(Role::kHeads, i), heads * d, turned + i * heads * d);
      rotate(turned + i * heads * d, heads, d, set.cos[table].data() + i * half, set.sin[table].data() + i * half,
             true);
    }
  };
  parallel(n, turn, 8);
  float* z = stage_rows_.data();
  for (int64_t g = 0; g < groups; ++g) {
    linear_part(w.wo_a, g * rank, rank, turned + g * width, heads * d, n, z + g * rank, groups * rank);
  }
  linear(w.wo_b, z, groups * rank, n, at<float>(Role::kSublayerOut), c_.hidden_size);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
