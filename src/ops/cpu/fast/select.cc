// The indexer (spec/model.md 8): scores of many rows against blocks of keys, then the best of each row. Blocks of keys
// are divided among the threads, so that one row over a long context uses all of them.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kKeysOfTask = 1024;
constexpr int64_t kQueryBytesOfTask = 16 << 10;  // they stay in the first-level cache
constexpr int kScoreRowsMax = 32;

}  // namespace

void FastBackend::best_entries(const float* scores, int64_t n, int64_t keep, int32_t* order) const {
  k_.best(scores, n, keep, order);
}

void FastBackend::prepare_query(int64_t row) {
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = heads * d / kIndexGroup;
  k_.query_codes(at<float>(Role::kIndexQuery, row), groups, index_codes_.data() + row * heads * d,
                 index_factors_.data() + row * groups, index_twelve_.data() + row * groups);
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
      float some[kKeyLanes];
      float *scores = row_scores(row) + g0, *to = visible == kKeyLanes ? scores : some;
      k_.score({codes, factors, heads, d, index_codes_.data() + row * heads * d,
                index_factors_.data() + row * heads * groups, index_twelve_.data() + row * heads * groups,
                at<float>(Role::kIndexWeights, row), to});
      if (to == some) std::copy_n(some, visible, scores);
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
  // A panel of keys is decoded once for all rows of a task.
  const int task_rows = static_cast<int>(std::clamp<int64_t>(kQueryBytesOfTask / (c_.index_n_heads * c_.index_head_dim),
                                                             kScoreRows, kScoreRowsMax));
  const auto visible_of = [&](int row) { return int64_t{set.positions[row] + 1} / layer.ratio; };
  const auto needed = [&](int row) { return visible_of(row) > c_.index_topk || limits_.keep_scores; };
  for (int row0 = 0; row0 < set.rows; row0 += static_cast<int>(in_group)) {
    const int end = static_cast<int>(std::min<int64_t>(set.rows, row0 + in_group));
    scores_row0_ = row0;
    score_tasks_.clear();
    for (int row = row0; row < end;) {
      int rows = 1;
      while (row + rows < end && rows < task_rows && set.sequence[row + rows] == set.sequence[row]) ++rows;
      for (int64_t k = 0; needed(row + rows - 1) && k < visible_of(row + rows - 1); k += kKeysOfTask)
        score_tasks_.push_back({row, rows, k});
      row += rows;
    }
    if (!score_tasks_.empty()) {
      auto prepare = [&](int64_t b, int64_t e) {
        for (int64_t row = row0 + b; row < row0 + e; ++row) prepare_query(row);
      };
      parallel(end - row0, prepare, 32);
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
