// Logits and the drafter's own parts (spec/model.md 5.1, 11).
#include <cmath>
#include <cstring>

#include "ops/cpu/sampler.h"
#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {

template <class T>
void Backend<T>::tap(At where, int index) {
  const int64_t D = c_.hidden_size, C = c_.hc_mult;
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* x = at<float>(Role::kResidual, i);
      float* out = at<float>(Role::kTaps, i) + index * D;
      for (int64_t e = 0; e < D; ++e) {
        T sum = 0;
        for (int64_t s = 0; s < C; ++s) sum += static_cast<T>(x[s * D + e]);
        out[e] = round(sum / static_cast<T>(C));
      }
    }
  };
  parallel(row_count(where.rows), body, 16);
}

template <class T>
void Backend<T>::head() {
  const RowSet& set = set_of(Rows::kDecoder);
  const int64_t D = c_.hidden_size, n = static_cast<int64_t>(set.outputs.size());
  auto hidden = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = at<float>(Role::kFinalHidden, i);
      collapse_and_norm(set.outputs[i], at<T>(Role::kPre, set.outputs[i]), norm_.data(), out, out);
    }
  };
  parallel(n, hidden, 8);
  multiply(w_.head, 0, c_.vocab_size, at<float>(Role::kFinalHidden), D, n,
           [&](int64_t i, int64_t j, const T* v, int64_t count) {
             float* logits = at<float>(Role::kLogits, i) + j;
             for (int64_t l = 0; l < count; ++l) logits[l] = static_cast<float>(v[l]);
           });
}

template <class T>
void Backend<T>::fill_draft_rings(Rows which) {
  const RowSet& set = set_of(which);
  const int64_t D = c_.hidden_size, n = set.rows;
  float* main = at<float>(Role::kSublayerIn);
  linear(w_.main_proj, at<float>(Role::kTaps), buffer(Role::kTaps).cols, n, main, D);
  auto normalise = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) norm(main + i * D, main_norm_.data(), D, main + i * D);
  };
  parallel(n, normalise, 8);
  for (int64_t j = 0; j < c_.num_nextn_predict_layers; ++j) {
    const int layer = static_cast<int>(c_.num_hidden_layers + j);
    window_rows(layer, set, main, D);
    store_window({layer, which});
  }
}

template <class T>
void Backend<T>::draft_base() {
  const RowSet& set = set_of(Rows::kDraft);
  const int64_t D = c_.hidden_size, n = set.rows;
  float* normed = at<float>(Role::kSublayerIn);
  auto hidden = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* x = at<float>(Role::kDraftHidden, i);
      collapse_and_norm(static_cast<int>(i), at<T>(Role::kPre, i), draft_norm_.data(), x, normed + i * D);
    }
  };
  parallel(n, hidden, 8);
  products(w_.head, normed, D, n, at<T>(Role::kDraftBase), c_.vocab_size);
  for (size_t s = 0; s < set.sequences.size(); ++s)
    at<int32_t>(Role::kDraftTokens, s)[0] = set.tokens[set.sequences[s].first_row];
}

template <class T>
void Backend<T>::draft_logits(int index) {
  const RowSet& set = set_of(Rows::kDraft);
  const int64_t D = c_.hidden_size, rank = c_.dspark_markov_rank, n = static_cast<int64_t>(set.sequences.size());
  float* e = stage_rows_.data();
  for (int64_t s = 0; s < n; ++s) {
    expand_row(w_.markov_embed, at<int32_t>(Role::kDraftTokens, s)[index], e + s * rank);
    const float* x = at<float>(Role::kDraftHidden, set.sequences[s].first_row + index);
    T sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += static_cast<T>(confidence_[i]) * static_cast<T>(x[i]);
    for (int64_t i = 0; i < rank; ++i) sum += static_cast<T>(confidence_[D + i]) * static_cast<T>(e[s * rank + i]);
    at<float>(Role::kConfidence, s)[index] = static_cast<float>(sum);
  }
  multiply(w_.markov_head, 0, c_.vocab_size, e, rank, n, [&](int64_t s, int64_t j, const T* v, int64_t count) {
    const T* base = at<T>(Role::kDraftBase, set.sequences[s].first_row + index) + j;
    float* logits = at<float>(Role::kLogits, s) + j;
    for (int64_t l = 0; l < count; ++l) logits[l] = static_cast<float>(base[l] + v[l]);
  });
}

template <class T>
void Backend<T>::draft_argmax(int index) {
  const RowSet& set = set_of(Rows::kDraft);
  for (size_t s = 0; s < set.sequences.size(); ++s) {
    const std::span<const float> logits(at<float>(Role::kLogits, s), static_cast<size_t>(c_.vocab_size));
    at<int32_t>(Role::kDraftTokens, s)[index + 1] = std::max(0, Sampler::likeliest(logits));
  }
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
