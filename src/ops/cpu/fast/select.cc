// The indexer (spec/model.md 8): scores of many rows against blocks of keys, then the best of each row. Blocks of keys
// are divided among the threads, so that one row over a long context uses all of them.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kKeysOfTask = 1024;

// Ascending with the score; scores are bf16 values, zeros are equal.
inline uint32_t order_key(float score) {
  uint32_t b;
  std::memcpy(&b, &score, sizeof b);
  if (b == 0x80000000u) b = 0;
  b >>= 16;
  return b & 0x8000u ? 0xffffu - b : b | 0x8000u;
}

}  // namespace

// The `keep` best of n by descending score, lower index first among equals, ascending by index: two rounds of counting
// find the score of the last one.
void best_scores(const float* scores, int64_t n, int64_t keep, int32_t* out) {
  if (keep >= n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
    return;
  }
  std::array<int64_t, 256> count{};
  for (int64_t i = 0; i < n; ++i) ++count[order_key(scores[i]) >> 8];
  int64_t left = keep;
  uint32_t high = 255;
  while (count[high] < left) left -= count[high--];
  count.fill(0);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t k = order_key(scores[i]);
    if (k >> 8 == high) ++count[k & 255];
  }
  uint32_t low = 255;
  while (count[low] < left) left -= count[low--];
  const uint32_t last = high << 8 | low;
  for (int64_t i = 0, kept = 0; kept < keep; ++i) {
    const uint32_t k = order_key(scores[i]);
    if (k > last || (k == last && left-- > 0)) out[kept++] = static_cast<int32_t>(i);
  }
}

void FastBackend::best_entries(const float* scores, int64_t n, int64_t keep, int32_t* order) const {
  best_scores(scores, n, keep, order);
}

void FastBackend::prepare_query(int64_t row) {
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = d / kIndexGroup;
  const float* q = at<float>(Role::kIndexQuery, row);
  int8_t* codes = index_codes_.data() + row * heads * d;
  float* factors = index_factors_.data() + row * heads * groups;
  int32_t* twelve = index_twelve_.data() + row * heads * groups;
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int64_t g = 0; g < heads * groups; ++g) {
    const std::span<const float> group(q + g * kIndexGroup, kIndexGroup);
    uint8_t packed[kIndexGroup / 2], scale;
    numeric::fq4i_encode(group, packed, &scale);
    int32_t sum = 0;
    for (int64_t i = 0; i < kIndexGroup / 2; ++i) {
      int8_t* even = codes + g * kIndexGroup + i;
      even[0] = kTwice[packed[i] & 15];
      even[kIndexGroup / 2] = kTwice[packed[i] >> 4];
      sum += even[0] + even[kIndexGroup / 2];
    }
    factors[g] = numeric::ue8m0_to_float(scale);
    twelve[g] = 12 * sum;
  }
}

// Scores of keys key0 .. key0 + kKeysOfTask - 1 for the rows of one task, as far as each sees them.
void FastBackend::score_keys(const RowSet& set, const KvSource& source, int ratio, const ScoreTask& task) {
  const SequenceRows& s = set.of(task.row0);
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = d / kIndexGroup;
  uint8_t* codes = scratch<uint8_t>(Slot::kPanel, d * kKeyLanes);
  float* factors = scratch<float>(Slot::kAccumulator, groups * kKeyLanes);
  const int64_t end =
      std::min<int64_t>(task.key0 + kKeysOfTask, (set.positions[task.row0 + task.rows - 1] + 1) / ratio);
  for (int64_t g0 = task.key0; g0 < end; g0 += kKeyLanes) {
    const int64_t keys = std::min(kKeyLanes, end - g0), at_page = g0 % source.page_entries;
    const auto* p = reinterpret_cast<const uint8_t*>(page(s, set, g0, source.page_entries));
    k_.key_panel({p + source.key_offset + at_page * layout_.key_data_bytes,
                  p + source.key_scale_offset + at_page * layout_.key_scale_bytes,
                  static_cast<int64_t>(layout_.key_data_bytes), static_cast<int64_t>(layout_.key_scale_bytes), keys, d,
                  codes, factors});
    for (int row = task.row0; row < task.row0 + task.rows; ++row) {
      const int64_t visible = std::min<int64_t>(keys, (set.positions[row] + 1) / ratio - g0);
      if (visible <= 0) continue;
      float scores[kKeyLanes];
      k_.score({codes, factors, heads, d, index_codes_.data() + row * heads * d,
                index_factors_.data() + row * heads * groups, index_twelve_.data() + row * heads * groups,
                at<float>(Role::kIndexWeights, row), scores});
      std::copy_n(scores, visible, row_scores(row) + g0);
    }
  }
}

float* FastBackend::row_scores(int row) {
  return limits_.keep_scores ? at<float>(Role::kIndexScores, row)
                             : scores_.data() + (row - scores_row0_) * limits_.context_max;
}

void FastBackend::select(At where) {
  const RowSet& set = set_of(where.rows);
  const checkpoint::LayerInfo& layer = c_.layers[where.layer];
  const KvSource& keys = layout_.sources[layout_.source_at(layer.index_key_source)];
  const int64_t in_group = limits_.keep_scores ? set.rows : static_cast<int64_t>(scores_.size()) / limits_.context_max;
  const auto visible_of = [&](int row) { return int64_t{set.positions[row] + 1} / layer.ratio; };
  const auto needed = [&](int row) { return visible_of(row) > c_.index_topk || limits_.keep_scores; };
  for (int row0 = 0; row0 < set.rows; row0 += static_cast<int>(in_group)) {
    const int end = static_cast<int>(std::min<int64_t>(set.rows, row0 + in_group));
    scores_row0_ = row0;
    score_tasks_.clear();
    for (int row = row0; row < end;) {
      int rows = 1;
      while (row + rows < end && rows < kScoreRows && set.sequence[row + rows] == set.sequence[row]) ++rows;
      for (int64_t k = 0; needed(row + rows - 1) && k < visible_of(row + rows - 1); k += kKeysOfTask)
        score_tasks_.push_back({row, rows, k});
      row += rows;
    }
    if (!score_tasks_.empty()) {
      auto prepare = [&](int64_t b, int64_t e) {
        for (int64_t row = row0 + b; row < row0 + e; ++row) prepare_query(row);
      };
      parallel(end - row0, prepare, 4);
      if (limits_.keep_scores) {
        for (int row = row0; row < end; ++row)
          std::fill_n(row_scores(row), buffer(Role::kIndexScores).cols, -std::numeric_limits<float>::infinity());
      }
      auto score = [&](int64_t b, int64_t e) {
        for (int64_t t = b; t < e; ++t) score_keys(set, keys, layer.ratio, score_tasks_[t]);
      };
      parallel(static_cast<int64_t>(score_tasks_.size()), score);
    }
    auto choose = [&](int64_t b, int64_t e) {
      for (int row = row0 + static_cast<int>(b); row < row0 + e; ++row) {
        if (layer.publishes_candidates) choose_candidates(row, row_scores(row), visible_of(row));
        if (needed(row)) {
          choose_entries(row, row_scores(row), visible_of(row), layer.uses_candidates);
        } else {
          int32_t* out = at<int32_t>(Role::kSelected, row);
          for (int64_t i = 0; i < c_.index_topk; ++i) out[i] = i < visible_of(row) ? static_cast<int32_t>(i) : -1;
        }
      }
    };
    parallel(end - row0, choose, 4);
  }
}

}  // namespace deepinfer::ops::cpu::fast
