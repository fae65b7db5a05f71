// Hyper-connections (spec/model.md 5.2 - 5.4).
#include <cmath>

#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

// m: the projection times the statistic; order of m: C pre, C post, comb row-major. pre, post and comb are written.
// All of mix is in double for every T: an error here is an error of all values of the row (ORDER.md).
template <class T>
void Backend<T>::mix_finish(double* m, const HyperWeights& w, T* pre, T* post, T* comb) const {
  const int C = static_cast<int>(c_.hc_mult);
  const double eps = c_.hc_eps;
  const auto scale = [&](int i) { return double{reinterpret_cast<const float*>(w.scale.data)[i]}; };
  const auto base = [&](int i) { return double{reinterpret_cast<const float*>(w.base.data)[i]}; };
  for (int j = 0; j < C; ++j) pre[j] = static_cast<T>(sigmoid(m[j] * scale(0) + base(j)) + eps);
  for (int j = 0; j < C; ++j) post[j] = static_cast<T>(2 * sigmoid(m[C + j] * scale(1) + base(C + j)));
  double* M = m + 2 * C;
  for (int i = 0; i < C * C; ++i) M[i] = M[i] * scale(2) + base(2 * C + i);
  for (int j = 0; j < C; ++j) {
    double* row = M + j * C;
    const double top = *std::max_element(row, row + C);
    double sum = 0;
    for (int k = 0; k < C; ++k) sum += row[k] = std::exp(row[k] - top);
    for (int k = 0; k < C; ++k) row[k] = row[k] / sum + eps;
  }
  const auto columns = [&] {
    for (int k = 0; k < C; ++k) {
      double sum = 0;
      for (int j = 0; j < C; ++j) sum += M[j * C + k];
      for (int j = 0; j < C; ++j) M[j * C + k] /= sum + eps;
    }
  };
  columns();
  for (int it = 1; it < c_.hc_sinkhorn_iters; ++it) {
    for (int j = 0; j < C; ++j) {
      double sum = 0;
      for (int k = 0; k < C; ++k) sum += M[j * C + k];
      for (int k = 0; k < C; ++k) M[j * C + k] /= sum + eps;
    }
    columns();
  }
  for (int i = 0; i < C * C; ++i) comb[i] = static_cast<T>(M[i]);
}

template <class T>
void Backend<T>::collapse_and_norm(int row, const T* pre, const float* norm_weight, float* collapsed,
                                   float* out) const {
  const int64_t d = c_.hidden_size;
  const float* x = at<float>(Role::kResidual, row);
  for (int64_t i = 0; i < d; ++i) {
    T sum = 0;
    for (int64_t s = 0; s < c_.hc_mult; ++s) sum += pre[s] * static_cast<T>(x[s * d + i]);
    collapsed[i] = round(sum);
  }
  if (norm_weight != nullptr) norm(collapsed, norm_weight, d, out);
}

template <class T>
void Backend<T>::hc_enter(At where, Sublayer which) {
  const LayerWeights& lw = w_.layers[where.layer];
  const HyperWeights& hw = which == Sublayer::kAttention ? lw.hc_attn : lw.hc_ffn;
  const LayerVectors& v = vectors_[where.layer];
  const float* norm_weight = (which == Sublayer::kAttention ? v.attn_norm : v.ffn_norm).data();
  const int64_t width = c_.hc_width(), coefficients = c_.hc_coefficients(), C = c_.hc_mult;
  auto body = [&](int64_t begin, int64_t end) {
    double* m = scratch<double>(Slot::kTile, kMixRows * coefficients);
    T* next = scratch<T>(Slot::kScores, C);
    for (int64_t i0 = begin; i0 < end; i0 += kMixRows) {
      const int64_t n = std::min<int64_t>(kMixRows, end - i0);
      const float* x = at<float>(Role::kResidual, i0);
      multiply_rows<double>(hw.fn, 0, coefficients, x, width, n, m, coefficients);
      for (int64_t i = 0; i < n; ++i) {
        const double statistic =
            1 / std::sqrt(sum_squares<double>(x + i * width, width) / static_cast<double>(width) + c_.rms_norm_eps);
        for (int64_t j = 0; j < coefficients; ++j) m[i * coefficients + j] *= statistic;
        mix_finish(m + i * coefficients, hw, next, at<T>(Role::kPost, i0 + i), at<T>(Role::kComb, i0 + i));
        float* out = at<float>(Role::kSublayerIn, i0 + i);
        T* pre = at<T>(Role::kPre, i0 + i);
        collapse_and_norm(static_cast<int>(i0 + i), pre, norm_weight, out, out);
        std::copy(next, next + C, pre);
      }
    }
  };
  parallel(row_count(where.rows), body, kMixRows);
}

template <class T>
void Backend<T>::hc_collapse(At where) {
  const float* norm_weight = vectors_[where.layer].attn_norm.data();
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = at<float>(Role::kSublayerIn, i);
      collapse_and_norm(static_cast<int>(i), at<T>(Role::kPre, i), norm_weight, out, out);
    }
  };
  parallel(row_count(where.rows), body, 8);
}

template <class T>
void Backend<T>::hc_leave(At where, Sublayer) {
  const int64_t d = c_.hidden_size, C = c_.hc_mult;
  auto body = [&](int64_t begin, int64_t end) {
    T* column = scratch<T>(Slot::kScores, C);
    for (int64_t i = begin; i < end; ++i) {
      float* x = at<float>(Role::kResidual, i);
      const float* y = at<float>(Role::kSublayerOut, i);
      const T *post = at<T>(Role::kPost, i), *comb = at<T>(Role::kComb, i);
      for (int64_t e = 0; e < d; ++e) {
        for (int64_t s = 0; s < C; ++s) column[s] = x[s * d + e];
        for (int64_t k = 0; k < C; ++k) {
          T sum = post[k] * static_cast<T>(y[e]);
          for (int64_t j = 0; j < C; ++j) sum += comb[j * C + k] * column[j];
          x[k * d + e] = round(sum);
        }
      }
    }
  };
  parallel(row_count(where.rows), body, 8);
}

// Sources ascend, so a row is never overwritten before it was moved.
template <class T>
void Backend<T>::keep_decoder_rows() {
  const RowSet& to = set_of(Rows::kDecoder);
  for (int i = 0; i < to.rows; ++i) {
    if (to.source[i] == i) continue;
    move_row<float>(Role::kResidual, to.source[i], i);
    move_row<T>(Role::kPre, to.source[i], i);
  }
}

template <class T>
void Backend<T>::drop_rows(std::span<const SequenceRows> sequences, std::span<const int32_t> source) {
  RowSet& s = sets_[static_cast<int>(Rows::kEncoder)];
  s.rows = static_cast<int>(source.size());
  s.sequences.assign(sequences.begin(), sequences.end());
  const int64_t half = c_.qk_rope_head_dim / 2;
  for (int i = 0; i < s.rows; ++i) {
    const int from = source[i];
    if (from == i) continue;
    for (auto* list : {&s.tokens, &s.positions, &s.sequence}) (*list)[i] = (*list)[from];
    if (!s.image_row.empty()) s.image_row[i] = s.image_row[from];
    for (auto* table : {&s.cos, &s.sin}) {
      for (std::vector<float>& t : *table) std::copy_n(t.data() + from * half, half, t.data() + i * half);
    }
    move_row<float>(Role::kResidual, from, i);
    move_row<T>(Role::kPre, from, i);
    for (const Role role : {Role::kEngramRows, Role::kCandidates, Role::kSelected}) move_row<int32_t>(role, from, i);
    move_row<float>(Role::kTaps, from, i);
  }
  for (auto* list : {&s.tokens, &s.positions, &s.sequence}) list->resize(s.rows);
  if (!s.image_row.empty()) s.image_row.resize(s.rows);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
