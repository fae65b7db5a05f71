// Hyper-connections (spec/model.md 5.2 - 5.4): leaving a sublayer and entering the next is one pass over a row's
// streams.
#include <algorithm>
#include <cmath>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::leave_row(int64_t i) {
  k_.expand(at<float>(Role::kResidual, i), at<float>(Role::kSublayerOut, i), at<float>(Role::kPost, i),
            at<float>(Role::kComb, i), c_.hc_mult, c_.hidden_size);
}

void FastBackend::mix_row(const float* x, const HyperWeights& w, float* pre, float* post, float* comb) {
  const int64_t width = c_.hc_width(), coefficients = c_.hc_coefficients(), streams = c_.hc_mult;
  double* m = scratch<double>(Slot::kTile, coefficients + 1);
  const auto* fn = reinterpret_cast<const float*>(w.fn.data);
  k_.mix_products(fn, coefficients, width, x, m);
  const double statistic = 1 / std::sqrt(m[coefficients] / static_cast<double>(width) + c_.rms_norm_eps);
  for (int64_t j = 0; j < coefficients; ++j) m[j] *= statistic;
  if (streams == 4) {
    k_.mix_finish({m, reinterpret_cast<const float*>(w.scale.data), reinterpret_cast<const float*>(w.base.data),
                   static_cast<int>(c_.hc_sinkhorn_iters), c_.hc_eps, pre, post, comb});
  } else {
    mix_finish(m, w, pre, post, comb);
  }
}

void FastBackend::enter_row(int64_t i, const HyperWeights& w, const float* norm_weight) {
  const int64_t streams = c_.hc_mult;
  const float* x = at<float>(Role::kResidual, i);
  float *pre = at<float>(Role::kPre, i), *out = at<float>(Role::kSublayerIn, i);
  float* next = scratch<float>(Slot::kScores, streams);
  mix_row(x, w, next, at<float>(Role::kPost, i), at<float>(Role::kComb, i));
  k_.collapse_norm(x, pre, streams, c_.hidden_size, norm_weight, static_cast<float>(c_.rms_norm_eps), out, out);
  std::copy(next, next + streams, pre);
}

void FastBackend::pass_rows(Rows rows, bool leave, const At* enter, Sublayer entered) {
  const LayerWeights* lw = enter == nullptr ? nullptr : &w_.layers[enter->layer];
  const HyperWeights* w = enter == nullptr ? nullptr : entered == Sublayer::kAttention ? &lw->hc_attn : &lw->hc_ffn;
  const float* norm_weight = nullptr;
  if (enter != nullptr) {
    const LayerVectors& v = vectors_[enter->layer];
    norm_weight = (entered == Sublayer::kAttention ? v.attn_norm : v.ffn_norm).data();
  }
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (leave) leave_row(i);
      if (enter != nullptr) enter_row(i, *w, norm_weight);
    }
  };
  parallel(row_count(rows), body);
}

void FastBackend::hc_enter(At where, Sublayer which) { pass_rows(where.rows, false, &where, which); }
void FastBackend::hc_leave(At where, Sublayer) { pass_rows(where.rows, true, nullptr, Sublayer::kAttention); }
void FastBackend::hc_leave_enter(At leave, Sublayer, At enter, Sublayer entered) {
  pass_rows(leave.rows, true, &enter, entered);
}

// The first part of entering, with its arithmetic: a row of the decoder's first layer gets its input here in a step
// with prompt rows, and from hc_enter in a step without.
void FastBackend::hc_collapse(At where) {
  const float* norm_weight = vectors_[where.layer].attn_norm.data();
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = at<float>(Role::kSublayerIn, i);
      k_.collapse_norm(at<float>(Role::kResidual, i), at<float>(Role::kPre, i), c_.hc_mult, c_.hidden_size, norm_weight,
                       static_cast<float>(c_.rms_norm_eps), out, out);
    }
  };
  parallel(row_count(where.rows), body, 8);
}

}  // namespace deepinfer::ops::cpu::fast
