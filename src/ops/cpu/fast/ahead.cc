// What a step with experts on the SSD does early, for few rows (a longer one reads most experts anyway): it guesses
// which experts come next, so that they are read meanwhile, and forms the product of an Engram layer while it waits.
//
// The guess: what attention adds is little beside the residual, so a layer's router is applied to the residual as if
// attention gave nothing; everything else of the way there (spec/model.md 5.2 - 5.4) is known or cheap.
#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/store/weight_store.h"
#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// The margin of a sure guess goes up with each wrong guess near it and down with each right one, so that nine of ten
// there are right. The others come from a disk that has nothing better to do, so that any chance will do.
constexpr float kMarginUp = 1.6f, kMarginDown = 0.95f;
constexpr float kMarginLeast = 1e-4f, kMarginMost = 10;

}  // namespace

bool FastBackend::works_ahead(At where) const {
  return w_.store != nullptr && row_count(where.rows) <= kAheadRows;
}

// Into foreseen_: the layer's router input of row i, from the residual `x` that enters its attention and
// attention's coefficients.
void FastBackend::foresee_row(int layer, float* x, const float* pre, const float* post, const float* comb, int64_t i) {
  const int64_t D = c_.hidden_size;
  float* in = foreseen_.data() + i * D;
  std::fill_n(in, D, 0.0f);
  k_.expand(x, in, post, comb, c_.hc_mult, D);
  k_.collapse_norm(x, pre, c_.hc_mult, D, vectors_[layer].ffn_norm.data(), static_cast<float>(c_.rms_norm_eps), in, in);
}

void FastBackend::expect_foreseen(Moment moment, int layer, int64_t rows) {
  const Matrix& gate = w_.layers[layer].moe.gate;
  const std::vector<float>& bias = vectors_[layer].bias;
  const int64_t experts = gate.rows, k = experts_per_row(layer), best = std::min(k + 1, experts);
  float* scores = wide_rows_.data();
  run(call(gate, pack_for(kSecond, gate, foreseen_.data(), c_.hidden_size, rows), scores, experts, false));
  int32_t* order = scratch<int32_t>(Slot::kOrder, experts);
  Guesses& g = guesses_[static_cast<int>(moment)];
  const float sure = sure_margins_[layer][static_cast<int>(moment)];
  g.layer = layer;
  g.experts.clear();
  for (int64_t i = 0; i < rows; ++i) {
    float* s = scores + i * experts;
    for (int64_t e = 0; e < experts; ++e) {
      s[e] = std::sqrt(s[e] > 20 ? s[e] : std::log1p(std::exp(s[e]))) + bias[e];
      if (std::isnan(s[e])) s[e] = -std::numeric_limits<float>::infinity();
      order[e] = static_cast<int32_t>(e);
    }
    std::partial_sort(order, order + best, order + experts,
                      [s](int32_t a, int32_t b) { return s[a] != s[b] ? s[a] > s[b] : a < b; });
    for (int64_t e = 0; e < k; ++e) {
      const float margin = s[order[e]] - s[order[best - 1]];
      if (!(margin >= 0)) continue;  // NaN: of damaged weights
      const auto known =
          std::find_if(g.experts.begin(), g.experts.end(), [&](const Guess& x) { return x.expert == order[e]; });
      if (known == g.experts.end()) {
        g.experts.push_back({order[e], margin});
      } else {
        known->margin = std::max(known->margin, margin);
      }
    }
  }
  std::sort(g.experts.begin(), g.experts.end(), [](const Guess& a, const Guess& b) {
    return a.margin != b.margin ? a.margin > b.margin : a.expert < b.expert;
  });
  guess_.clear();
  size_t sure_ones = 0;
  for (const Guess& x : g.experts) {
    guess_.push_back(x.expert);
    sure_ones += x.margin >= sure;
  }
  w_.store->experts().expect(layer, guess_, sure_ones);
}

// What the layer's router has chosen tells how far from the choice a guess has to be.
void FastBackend::judge_guesses(int layer) {
  for (int m = 0; m < kMoments; ++m) {
    Guesses& g = guesses_[m];
    if (g.layer != layer) continue;
    g.layer = -1;
    float& sure = sure_margins_[layer][m];
    const float now = sure;
    for (const Guess& x : g.experts) {
      if (!(x.margin >= now / 2 && x.margin <= now * 2)) continue;
      const bool right = std::binary_search(needed_experts_.begin(), needed_experts_.end(), x.expert);
      sure = std::clamp(sure * (right ? kMarginDown : kMarginUp), kMarginLeast, kMarginMost);
    }
  }
}

void FastBackend::expect_experts(At where) {
  if (!works_ahead(where)) return;
  do_late_mix();
  const int64_t rows = row_count(where.rows), width = c_.hc_width();
  float* x = foreseen_.data() + kAheadRows * c_.hidden_size;
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(at<float>(Role::kResidual, i), width, x);
    foresee_row(where.layer, x, at<float>(Role::kPre, i), at<float>(Role::kPost, i), at<float>(Role::kComb, i), i);
  }
  expect_foreseen(Moment::kAttention, where.layer, rows);
  ask_engram();
}

// From what the layer's experts have given so far: the others' rows are zero.
void FastBackend::expect_next_experts(At where, Moment moment) {
  const int layer = where.layer + 1;
  if (layer >= c_.num_hidden_layers) return;
  do_late_mix();
  const int64_t rows = row_count(where.rows), width = c_.hc_width(), D = c_.hidden_size;
  float* x = foreseen_.data() + kAheadRows * D;
  float pre[8], post[8], comb[64];
  for (int64_t i = 0; i < rows; ++i) {
    float* y = foreseen_.data() + i * D;
    k_.combine(at<float>(Role::kSharedOut, i), at<float>(Role::kExpertOut, i), experts_per_row(where.layer), D, y);
    std::copy_n(at<float>(Role::kResidual, i), width, x);
    k_.expand(x, y, at<float>(Role::kPost, i), at<float>(Role::kComb, i), c_.hc_mult, D);
    if (engram_layer_ == layer)
      add_engram(layer, false, engram_kv_.data() + i * (c_.hc_mult + 1) * D, x,
                 scratch<float>(Slot::kScores, c_.hc_mult));
    const MixOut out = {pre, post, comb};
    mix_rows(x, 1, w_.layers[layer].hc_attn, &out);
    foresee_row(layer, x, pre, post, comb, i);
  }
  expect_foreseen(moment, layer, rows);
}

// The product of the next Engram layer needs nothing but token ids.
void FastBackend::engram_ahead(At where) {
  if (!works_ahead(where) || engram_layer_ > where.layer || engram_kv_.empty()) return;
  const int end = where.rows == Rows::kEncoder ? c_.decoder_start : static_cast<int>(c_.num_hidden_layers);
  int layer = where.layer + 1;
  while (layer < end && c_.layers[layer].engram < 0) ++layer;
  if (layer >= end) return;
  float* e = stage_rows_.data();
  const int64_t rows = row_count(where.rows), width = c_.engram_width();
  const Matrix& w = w_.layers[layer].engram.wkv;
  gather_engram(where.rows, layer, e);
  // The experts' input lies in the first buffer.
  run(call(w, pack_for(kSecond, w, e, width, rows), engram_kv_.data(), w.rows, true));
  engram_layer_ = layer;
}

// Table rows lie anywhere; those of few tokens are on their way before their layer comes.
void FastBackend::fetch_engram(Rows set) const {
  const int64_t columns = c_.engram_columns();
  for (size_t e = 0; e < c_.engram.size(); ++e) {
    const Matrix& codes = w_.layers[c_.engram[e].layer].engram.table;
    if (codes.format != WeightFormat::kFp8Rows) continue;
    for (int64_t i = 0; i < row_count(set); ++i) {
      const int32_t* rows = at<int32_t>(Role::kEngramRows, i) + static_cast<int64_t>(e) * columns;
      for (int64_t j = 0; j < columns; ++j) {
        __builtin_prefetch(codes.data + rows[j] * codes.cols);
        __builtin_prefetch(codes.scale + rows[j] * (codes.cols / 32));
      }
    }
  }
}

void FastBackend::engram_lookup(Rows set) {
  finish_beside(kEngram);
  engram_layer_ = -1;
  // The first layer's experts will be guessed in a moment, and their reads go first: asking for table rows takes this
  // thread and the reader's a while, and the disk does little meanwhile.
  if (works_ahead({0, set}) && !c_.engram.empty()) {
    hash_engram(set);
    engram_unasked_ = set;
    return;
  }
  Backend<float>::engram_lookup(set);
  if (row_count(set) <= kStreamRows && w_.store == nullptr) fetch_engram(set);
  if (alone(set)) start_engram(set, 0);
}

void FastBackend::engram_apply(At where) {
  if (by_rows(where.rows)) return later({.run = &FastBackend::engram_rows, .at = where});
  run_waiting();
  finish_beside(kEngram);
  if (engram_layer_ != where.layer) return Backend<float>::engram_apply(where);
  if (alone(where.rows)) return add_engram_beside(where);
  add_engram_rows(where, engram_kv_.data());
}

}  // namespace deepinfer::ops::cpu::fast
