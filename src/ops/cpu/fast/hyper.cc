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

void FastBackend::finish_mix(double* products, const HyperWeights& w, float* pre, float* post, float* comb) {
  const int64_t coefficients = c_.hc_coefficients();
  const double statistic =
      1 / std::sqrt(products[coefficients] / static_cast<double>(c_.hc_width()) + c_.rms_norm_eps);
  for (int64_t j = 0; j < coefficients; ++j) products[j] *= statistic;
  if (c_.hc_mult == 4) {
    k_.mix_finish({products, reinterpret_cast<const float*>(w.scale.data), reinterpret_cast<const float*>(w.base.data),
                   static_cast<int>(c_.hc_sinkhorn_iters), c_.hc_eps, pre, post, comb});
  } else {
    mix_finish(products, w, pre, post, comb);
  }
}

void FastBackend::mix_row(const float* x, const HyperWeights& w, float* pre, float* post, float* comb) {
  const int64_t coefficients = c_.hc_coefficients();
  double* m = scratch<double>(Slot::kTile, coefficients + 1);
  k_.mix_products(reinterpret_cast<const float*>(w.fn.data), coefficients, c_.hc_width(), x, 1, m);
  finish_mix(m, w, pre, post, comb);
}

void FastBackend::enter_rows(int64_t first, int64_t n, const HyperWeights& w, const float* norm_weight) {
  const int64_t coefficients = c_.hc_coefficients(), streams = c_.hc_mult;
  double* products = scratch<double>(Slot::kTile, n * (coefficients + 1));
  float* next = scratch<float>(Slot::kScores, streams);
  k_.mix_products(reinterpret_cast<const float*>(w.fn.data), coefficients, c_.hc_width(),
                  at<float>(Role::kResidual, first), n, products);
  for (int64_t i = first; i < first + n; ++i) {
    float *pre = at<float>(Role::kPre, i), *out = at<float>(Role::kSublayerIn, i);
    finish_mix(products + (i - first) * (coefficients + 1), w, next, at<float>(Role::kPost, i),
               at<float>(Role::kComb, i));
    k_.collapse_norm(at<float>(Role::kResidual, i), pre, streams, c_.hidden_size, norm_weight,
                     static_cast<float>(c_.rms_norm_eps), out, out);
    std::copy(next, next + streams, pre);
  }
}

void FastBackend::pass_rows(Rows rows, bool leave, const At* enter, Sublayer entered) {
  const LayerWeights* lw = enter == nullptr ? nullptr : &w_.layers[enter->layer];
  const HyperWeights* w = enter == nullptr ? nullptr : entered == Sublayer::kAttention ? &lw->hc_attn : &lw->hc_ffn;
  const float* norm_weight = nullptr;
  if (enter != nullptr) {
    const LayerVectors& v = vectors_[enter->layer];
    norm_weight = (entered == Sublayer::kAttention ? v.attn_norm : v.ffn_norm).data();
  }
  const int64_t n = row_count(rows), threads = pool_.threads(),
                together = std::clamp<int64_t>((n + threads - 1) / threads, 1, kMixTogether);
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += together) {
      const int64_t here = std::min(together, end - i);
      for (int64_t row = i; leave && row < i + here; ++row) leave_row(row);
      if (enter != nullptr) enter_rows(i, here, *w, norm_weight);
    }
  };
  parallel(n, body, together);
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
