// Logits of the backbone and of the drafter (spec/model.md 5.1, 11.3).
#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::head() {
  const RowSet& set = set_of(Rows::kDecoder);
  const int64_t D = c_.hidden_size, n = static_cast<int64_t>(set.outputs.size());
  auto hidden = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = at<float>(Role::kFinalHidden, i);
      k_.collapse_norm(at<float>(Role::kResidual, set.outputs[i]), at<float>(Role::kPre, set.outputs[i]), c_.hc_mult, D,
                       norm_.data(), static_cast<float>(c_.rms_norm_eps), out, out);
    }
  };
  parallel(n, hidden, 8);
  products(w_.head, at<float>(Role::kFinalHidden), D, n, at<float>(Role::kLogits), c_.vocab_size);
}

void FastBackend::draft_logits(int index) {
  const RowSet& set = set_of(Rows::kDraft);
  const int64_t D = c_.hidden_size, rank = c_.dspark_markov_rank, vocab = c_.vocab_size,
                n = static_cast<int64_t>(set.sequences.size());
  float* e = stage_rows_.data();
  for (int64_t s = 0; s < n; ++s) {
    expand_row(w_.markov_embed, at<int32_t>(Role::kDraftTokens, s)[index], e + s * rank);
    const float* x = at<float>(Role::kDraftHidden, set.sequences[s].first_row + index);
    float sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += confidence_[i] * x[i];
    for (int64_t i = 0; i < rank; ++i) sum += confidence_[D + i] * e[s * rank + i];
    at<float>(Role::kConfidence, s)[index] = sum;
  }
  products(w_.markov_head, e, rank, n, at<float>(Role::kLogits), vocab);
  auto add_base = [&](int64_t begin, int64_t end) {
    for (int64_t s = 0; s < n; ++s) {
      const float* base = at<float>(Role::kDraftBase, set.sequences[s].first_row + index);
      float* logits = at<float>(Role::kLogits, s);
      for (int64_t v = begin; v < end; ++v) logits[v] = base[v] + logits[v];
    }
  };
  constexpr int64_t kGrain = 16 << 10;
  parallel(vocab, add_base, kGrain);
}

}  // namespace deepinfer::ops::cpu::fast
