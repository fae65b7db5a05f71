// The indexer: scores, candidate blocks, top-k (spec/model.md 8). Equal scores prefer the lower index.
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {
namespace {

constexpr float kBf16Max = 0x1.fep127f;

// Nearest bf16 value of a double with a single rounding, as a fused bf16 multiply-add gives it.
double round_bf16_once(double x) {
  constexpr int kDropped = 52 - 7;
  uint64_t b = std::bit_cast<uint64_t>(x);
  b += (uint64_t{1} << (kDropped - 1)) - 1 + ((b >> kDropped) & 1);
  return std::bit_cast<double>(b & ~((uint64_t{1} << kDropped) - 1));
}

// Damaged weights give NaN, which has no place in an order: it counts as the worst score.
template <class T>
T ordered(T score) {
  return std::isnan(score) ? -std::numeric_limits<T>::infinity() : score;
}

}  // namespace

template <class T>
void Backend<T>::best_entries(const T* scores, int64_t n, int64_t keep, int32_t* order) const {
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  if (keep < n) {
    std::nth_element(order, order + keep, order + n,
                     [scores](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    std::sort(order, order + keep);
  }
}

template <class T>
void Backend<T>::score_row(const RowSet& set, int row, const KvSource& source, int64_t visible, T* scores) const {
  const SequenceRows& s = set.of(row);
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim;
  const float *q = at<float>(Role::kIndexQuery, row), *weight = at<float>(Role::kIndexWeights, row);
  float* key = scratch<float>(Slot::kKeys, d);
  float* panel = scratch<float>(Slot::kPanel, d * kLanes);
  T* acc = scratch<T>(Slot::kAccumulator, heads * kLanes);
  for (int64_t g0 = 0; g0 < visible; g0 += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, visible - g0);
    std::fill(panel, panel + d * kLanes, 0.0f);
    for (int64_t l = 0; l < lanes; ++l) {
      decode_key(page(s, set, g0 + l, source.page_entries), source, (g0 + l) % source.page_entries, key);
      for (int64_t i = 0; i < d; ++i) panel[i * kLanes + l] = key[i];
    }
    std::fill(acc, acc + heads * kLanes, T{0});
    panel_dot(q, d, heads, panel, kLanes, d, acc);
    for (int64_t l = 0; l < lanes; ++l) {
      if (!rounding_) {
        T sum = 0;
        for (int64_t h = 0; h < heads; ++h) sum += static_cast<T>(weight[h]) * std::max(acc[h * kLanes + l], T{0});
        scores[g0 + l] = ordered(sum);
        continue;
      }
      double chain[4] = {0, 0, 0, 0};  // four bf16 accumulators (8.2)
      for (int64_t h = 0; h < heads; ++h) {
        const double dot = round_bf16_once(std::max<double>(acc[h * kLanes + l], 0.0));
        chain[h % 4] = round_bf16_once(dot * weight[h] + chain[h % 4]);
      }
      scores[g0 + l] = static_cast<T>(
          ordered(round_bf16_once(round_bf16_once(chain[0] + chain[2]) + round_bf16_once(chain[1] + chain[3]))));
    }
  }
}

template <class T>
void Backend<T>::choose_candidates(int row, const T* scores, int64_t visible) {
  const int64_t size = c_.candidate_block_size, keep = c_.candidate_topk_blocks;
  const int64_t blocks = (visible + size - 1) / size;
  int32_t* out = at<int32_t>(Role::kCandidates, row);
  if (blocks <= keep) {
    out[0] = -1;
    return;
  }
  T* top = scratch<T>(Slot::kProbabilities, blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    top[b] = std::min<T>(*std::max_element(scores + b * size, scores + std::min(visible, (b + 1) * size)), kBf16Max);
  }
  top[blocks - 1] = std::numeric_limits<T>::infinity();  // the newest block is pinned
  int32_t* order = scratch<int32_t>(Slot::kOrder, blocks);
  best_entries(top, blocks, keep, order);
  std::copy_n(order, keep, out);
}

template <class T>
void Backend<T>::choose_entries(int row, T* scores, int64_t visible, bool filtered) {
  const int32_t* kept = at<int32_t>(Role::kCandidates, row);
  int64_t possible = visible;
  if (filtered && kept[0] >= 0) {
    const int64_t size = c_.candidate_block_size;
    int64_t next = 0;
    possible = 0;
    for (int64_t i = 0; i < c_.candidate_topk_blocks; ++i) {
      const int64_t begin = kept[i] * size, end = std::min(visible, begin + size);
      std::fill(scores + next, scores + begin, -std::numeric_limits<T>::infinity());
      possible += end - begin;
      next = end;
    }
    std::fill(scores + next, scores + visible, -std::numeric_limits<T>::infinity());
  }
  const int64_t keep = std::min(possible, c_.index_topk);
  int32_t* out = at<int32_t>(Role::kSelected, row);
  int32_t* order = scratch<int32_t>(Slot::kOrder, visible);
  best_entries(scores, visible, keep, order);
  std::copy_n(order, keep, out);
  std::fill(out + keep, out + c_.index_topk, -1);
}

template <class T>
void Backend<T>::select(At where) {
  const RowSet& set = set_of(where.rows);
  const checkpoint::LayerInfo& layer = c_.layers[where.layer];
  const KvSource& keys = layout_.sources[layout_.source_at(layer.index_key_source)];
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int row = static_cast<int>(i);
      const int64_t visible = (set.positions[row] + 1) / layer.ratio;
      const bool needed = visible > c_.index_topk || limits_.keep_scores;  // else every entry is taken
      T* scores = limits_.keep_scores ? at<T>(Role::kIndexScores, row) : scratch<T>(Slot::kScores, visible);
      if (limits_.keep_scores)
        std::fill_n(scores, buffer(Role::kIndexScores).cols, -std::numeric_limits<T>::infinity());
      if (needed) {
        score_row(set, row, keys, visible, scores);
      } else {
        std::fill_n(scores, visible, T{0});
      }
      if (layer.publishes_candidates) choose_candidates(row, scores, visible);
      choose_entries(row, scores, visible, layer.uses_candidates);
    }
  };
  parallel(set.rows, body);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
