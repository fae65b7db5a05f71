// A second copy of a small model's matrices (lanes.h).
#include "ops/cpu/fast/lanes.h"

#include <algorithm>
#include <span>
#include <vector>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {
namespace {

size_t word_bytes(const Matrix& m) { return (static_cast<size_t>(m.rows * m.cols) * 2 + 63) / 64 * 64; }

// mHC's fn in eights of columns: one stream instead of one a row. Returns the end.
std::byte* copy_mixes(std::span<Matrix* const> mixes, std::byte* begin) {
  auto* to = reinterpret_cast<float*>(begin);
  for (Matrix* m : mixes) {
    const auto* from = reinterpret_cast<const float*>(m->data);
    m->lanes = reinterpret_cast<const std::byte*>(to);
    for (int64_t k = 0; k < m->cols; k += 8) {
      for (int64_t r = 0; r < m->rows; ++r, to += 8) std::copy_n(from + r * m->cols + k, 8, to);
    }
  }
  return reinterpret_cast<std::byte*>(to);
}

void move_words(std::span<Matrix* const> words, std::byte* to) {
  for (Matrix* m : words) {
    std::copy_n(m->data, static_cast<size_t>(m->rows * m->cols) * 2, to);
    m->data = to;
    to += word_bytes(*m);
  }
}

}  // namespace

Status FastBackend::keep_lanes() {
  constexpr size_t kBytesMax = 64 << 20;  // about what last-level caches hold
  if (w_.store != nullptr) return {};
  std::vector<Matrix*> all = {&w_.main_proj};
  for (LayerWeights& l : w_.layers) {
    AttentionWeights& a = l.attention;
    for (Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &l.compressor.wkv, &l.compressor.wgate,
                      &l.indexer.wk, &l.indexer.wq_b, &l.engram.wkv})
      all.push_back(m);
    for (Matrix* m : {&l.moe.shared.gate, &l.moe.shared.up, &l.moe.shared.down}) all.push_back(m);
    for (ExpertWeights& e : l.moe.experts) {
      for (Matrix* m : {&e.gate, &e.up, &e.down}) all.push_back(m);
    }
  }
  std::vector<Matrix*> mixes;
  for (LayerWeights& l : w_.layers) {
    for (Matrix* m : {&l.hc_attn.fn, &l.hc_ffn.fn}) {
      if (m->data != nullptr && m->cols % 8 == 0) mixes.push_back(m);
    }
  }
  // BF16 stays as it is, but on huge pages.
  std::vector<Matrix*> words = {&w_.head, &w_.markov_head};
  for (LayerWeights& l : w_.layers) {
    for (Matrix* m : {&l.compressor.wkv, &l.compressor.wgate, &l.indexer.weights_proj, &l.moe.gate}) words.push_back(m);
  }
  std::erase_if(words, [](const Matrix* m) { return m->data == nullptr || m->format != WeightFormat::kBf16; });
  size_t total = 0, weights = 0;
  std::vector<size_t> begin;
  for (const Matrix* m : all) {
    begin.push_back(total);
    total += lanes_bytes(*m);
    // One without such a copy counts as well: BF16, or FP4 of an odd width.
    weights += m->data == nullptr || has_lanes(*m) ? lanes_bytes(*m) : static_cast<size_t>(m->rows * m->cols) * 2;
  }
  if (k_.fill_lanes == nullptr) total = 0;
  const size_t matrices = total;
  for (const Matrix* m : mixes) total += static_cast<size_t>(m->rows * m->cols) * sizeof(float);
  small_ = weights + (total - matrices) <= kBytesMax;
  for (const Matrix* m : words) total += word_bytes(*m);
  if (!small_ || total == 0) return {};
  DI_ASSIGN_OR_RETURN(lanes_, HugeMemory::allocate(total));
  move_words(words, copy_mixes(mixes, lanes_.as<std::byte>() + matrices));
  if (k_.fill_lanes == nullptr) return {};
  auto fill = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Matrix& m = *all[static_cast<size_t>(i)];
      if (!has_lanes(m)) continue;
      std::byte* to = lanes_.as<std::byte>() + begin[static_cast<size_t>(i)];
      k_.fill_lanes(m, to);
      m.lanes = to;
    }
  };
  parallel(static_cast<int64_t>(all.size()), fill);
  return {};
}

}  // namespace deepinfer::ops::cpu::fast
