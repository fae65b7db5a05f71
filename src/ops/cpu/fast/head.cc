// Logits of the backbone and of the drafter (spec/model.md 5.1, 11.3).
#include <algorithm>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::head() {
  run_waiting();
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
  run_waiting();
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
  // Each thread adds the base to the logits that it has just formed.
  LinearCall all = call(w_.markov_head, pack_for(kFirst, w_.markov_head, e, rank, n), at<float>(Role::kLogits), vocab,
                        false);
  auto form = [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlockRows, last = std::min(end * kBlockRows, vocab);
    LinearCall part = all;
    part.row0 = first;
    part.rows = last - first;
    part.out += first;
    k_.multiply(part, kernel_scratch(rank));
    for (int64_t s = 0; s < n; ++s) {
      const float* base = at<float>(Role::kDraftBase, set.sequences[s].first_row + index);
      k_.add(at<float>(Role::kLogits, s) + first, base + first, last - first);
    }
  };
  const int64_t blocks = (vocab + kBlockRows - 1) / kBlockRows, threads = pool_.threads();
  parallel(blocks, form, small_ ? (blocks + threads - 1) / threads : 1);
}

}  // namespace deepinfer::ops::cpu::fast
