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

void FastBackend::mix_rows(const float* x, int64_t n, const HyperWeights& w, const MixOut* out) {
  const int64_t coefficients = c_.hc_coefficients(), width = c_.hc_width();
  double* products = scratch<double>(Slot::kTile, n * (coefficients + 1));
  const bool copied = w.fn.lanes != nullptr;
  k_.mix_products({reinterpret_cast<const float*>(copied ? w.fn.lanes : w.fn.data), coefficients, width,
                   copied ? 8 : width, copied ? 8 * coefficients : 8},
                  x, n, products);
  MixCall calls[kMixTogether];
  for (int64_t i = 0; i < n; ++i) {
    double* m = products + i * (coefficients + 1);
    const double statistic = 1 / std::sqrt(m[coefficients] / static_cast<double>(width) + c_.rms_norm_eps);
    for (int64_t j = 0; j < coefficients; ++j) m[j] *= statistic;
    calls[i] = {m, reinterpret_cast<const float*>(w.scale.data), reinterpret_cast<const float*>(w.base.data),
                static_cast<int>(c_.hc_sinkhorn_iters), c_.hc_eps, out[i].pre, out[i].post, out[i].comb};
    if (c_.hc_mult != 4) mix_finish(m, w, out[i].pre, out[i].post, out[i].comb);
  }
  if (c_.hc_mult == 4) k_.mix_finish(calls, n);
}

void FastBackend::enter_rows(int64_t first, int64_t n, const HyperWeights& w, const float* norm_weight) {
  const int64_t streams = c_.hc_mult;
  float* next = scratch<float>(Slot::kScores, n * streams);
  MixOut out[kMixTogether];
  for (int64_t i = 0; i < n; ++i)
    out[i] = {next + i * streams, at<float>(Role::kPost, first + i), at<float>(Role::kComb, first + i)};
  mix_rows(at<float>(Role::kResidual, first), n, w, out);
  for (int64_t i = first; i < first + n; ++i) {
    float *pre = at<float>(Role::kPre, i), *in = at<float>(Role::kSublayerIn, i);
    k_.collapse_norm(at<float>(Role::kResidual, i), pre, streams, c_.hidden_size, norm_weight,
                     static_cast<float>(c_.rms_norm_eps), in, in);
    std::copy_n(next + (i - first) * streams, streams, pre);
  }
}

// A row's mix is wanted when the sublayer is left. Where cores are idle otherwise, it runs beside the sublayer's first
// large stage.
void FastBackend::enter_now_mix_later(const HyperWeights& w, const float* norm_weight) {
  float* out = at<float>(Role::kSublayerIn);
  k_.collapse_norm(at<float>(Role::kResidual), at<float>(Role::kPre), c_.hc_mult, c_.hidden_size, norm_weight,
                   static_cast<float>(c_.rms_norm_eps), out, out);
  late_mix_ = &w;
}

void FastBackend::do_late_mix() {
  finish_beside(kMix);
  if (late_mix_ == nullptr) return;
  const MixOut out{at<float>(Role::kPre), at<float>(Role::kPost), at<float>(Role::kComb)};
  mix_rows(at<float>(Role::kResidual), 1, *late_mix_, &out);
  late_mix_ = nullptr;
}

Status FastBackend::read(Role role, int64_t first_row, int64_t rows, std::span<double> values) {
  run_waiting();
  do_late_mix();
  return Backend<float>::read(role, first_row, rows, values);
}

void FastBackend::pass_some(const RowStage& stage, int64_t begin, int64_t end) {
  const LayerWeights& lw = w_.layers[stage.entered.layer];
  const LayerVectors& v = vectors_[stage.entered.layer];
  const bool attention = stage.sublayer == Sublayer::kAttention;
  for (int64_t i = begin; i < end; i += kMixTogether) {
    const int64_t here = std::min(kMixTogether, end - i);
    for (int64_t row = i; stage.leaves && row < i + here; ++row) leave_row(row);
    if (stage.enters)
      enter_rows(i, here, attention ? lw.hc_attn : lw.hc_ffn, (attention ? v.attn_norm : v.ffn_norm).data());
  }
}

void FastBackend::pass_rows(Rows rows, bool leave, const At* enter, Sublayer entered) {
  if (by_rows(rows)) {
    return later({.run = &FastBackend::pass_some, .at = {0, rows}, .leaves = leave, .enters = enter != nullptr,
                  .entered = enter != nullptr ? *enter : At{}, .sublayer = entered});
  }
  run_waiting();
  const LayerWeights* lw = enter == nullptr ? nullptr : &w_.layers[enter->layer];
  const HyperWeights* w = enter == nullptr ? nullptr : entered == Sublayer::kAttention ? &lw->hc_attn : &lw->hc_ffn;
  const float* norm_weight = nullptr;
  if (enter != nullptr) {
    const LayerVectors& v = vectors_[enter->layer];
    norm_weight = (entered == Sublayer::kAttention ? v.attn_norm : v.ffn_norm).data();
  }
  do_late_mix();
  const int64_t n = row_count(rows), threads = pool_.threads();
  if (n == 1 && threads > 1) {
    if (leave) leave_row(0);
    if (enter != nullptr) enter_now_mix_later(*w, norm_weight);
    return;
  }
  const int64_t together = std::clamp<int64_t>((n + threads - 1) / threads, 1, kMixTogether);
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
  run_waiting();
  do_late_mix();
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
