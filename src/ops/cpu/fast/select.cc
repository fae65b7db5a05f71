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
constexpr int64_t kKeysScored = 1024;  // of few rows of a small model: to score them all takes less than to search them

}  // namespace

void FastBackend::best_entries(const float* scores, int64_t n, int64_t keep, int32_t* order) const {
  k_.best(scores, n, keep, order);
}

void FastBackend::prepare_query(int64_t row) {
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = heads * d / kIndexGroup;
  k_.query_codes(at<float>(Role::kIndexQuery, row), groups, index_codes_.data() + row * heads * d,
                 index_factors_.data() + row * groups, index_twelve_.data() + row * groups);
  const float* weights = at<float>(Role::kIndexWeights, row);
  int32_t n = 0;
  for (int32_t h = 0; h < heads; ++h) {
    if (!(weights[h] > 0)) continue;
    index_heads_[row * heads + n] = h;
    index_weights_[row * heads + n++] = weights[h] * reach_factor_;
  }
  index_positive_[row] = n;
}

ScoreCall FastBackend::score_call(int row, const uint8_t* codes, const float* factors, float* scores) const {
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = heads * d / kIndexGroup;
  return {codes,
          factors,
          heads,
          d,
          index_codes_.data() + row * heads * d,
          index_factors_.data() + row * groups,
          index_twelve_.data() + row * groups,
          at<float>(Role::kIndexWeights, row),
          scores};
}

void FastBackend::key_memory(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t key,
                             const uint8_t** data, const uint8_t** scales) const {
  const int64_t at_page = key % source.page_entries;
  const auto* p = reinterpret_cast<const uint8_t*>(page(s, set, key, source.page_entries));
  *data = p + source.key_offset + at_page * layout_.key_data_bytes;
  *scales = p + source.key_scale_offset + at_page * layout_.key_scale_bytes;
}

void FastBackend::panel_of(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t first,
                           int64_t keys, uint8_t* codes, float* factors) const {
  const uint8_t *data, *scales;
  key_memory(s, set, source, first, &data, &scales);
  k_.key_panel({data, scales, static_cast<int64_t>(layout_.key_data_bytes),
                static_cast<int64_t>(layout_.key_scale_bytes), keys, c_.index_head_dim, codes, factors});
}

// Scores of keys key0 .. key0 + keys - 1 for the rows of one task, as far as each sees them.
void FastBackend::score_keys(const RowSet& set, const KvSource& source, int ratio, const ScoreTask& task) {
  const SequenceRows& s = set.of(task.row0);
  const int64_t d = c_.index_head_dim;
  uint8_t* codes = scratch<uint8_t>(Slot::kPanel, d * kKeyLanes);
  float* factors = scratch<float>(Slot::kAccumulator, d / kIndexGroup * kKeyLanes);
  const int64_t end =
      std::min<int64_t>(task.key0 + task.keys, (set.positions[task.row0 + task.rows - 1] + 1) / ratio);
  for (int64_t g0 = task.key0; g0 < end; g0 += kKeyLanes) {
    const int64_t keys = std::min(kKeyLanes, end - g0);
    panel_of(s, set, source, g0, keys, codes, factors);
    for (int row = task.row0; row < task.row0 + task.rows; ++row) {
      const int64_t visible = std::min<int64_t>(keys, (set.positions[row] + 1) / ratio - g0);
      if (visible <= 0) continue;
      float some[kKeyLanes];
      float *scores = row_scores(row) + g0, *to = visible == kKeyLanes ? scores : some;
      k_.score(score_call(row, codes, factors, to));
      if (to == some) std::copy_n(some, visible, scores);
    }
  }
}

int64_t FastBackend::listed_keys(int row, int64_t visible) const {
  const int64_t size = c_.candidate_block_size, last = c_.candidate_topk_blocks - 1;
  const int32_t* kept = at<int32_t>(Role::kCandidates, row);
  return last * size + std::min(size, visible - kept[last] * size);
}

void FastBackend::listed_panel(const SequenceRows& s, const RowSet& set, const KvSource& source, const int32_t* list,
                               int64_t keys, uint8_t* codes, float* factors) const {
  const auto data = static_cast<int64_t>(layout_.key_data_bytes), scale = static_cast<int64_t>(layout_.key_scale_bytes);
  uint8_t* packed = scratch<uint8_t>(Slot::kTile, kKeyLanes * (data + scale));
  for (int64_t i = 0; i < keys; ++i) {
    const uint8_t *codes_of, *scales_of;
    key_memory(s, set, source, list[i], &codes_of, &scales_of);
    std::memcpy(packed + i * data, codes_of, data);
    std::memcpy(packed + kKeyLanes * data + i * scale, scales_of, scale);
  }
  k_.key_panel({packed, packed + kKeyLanes * data, data, scale, keys, c_.index_head_dim, codes, factors});
}

// The same in the row's list of candidates: place i is key i % size of block i / size.
void FastBackend::score_listed(const RowSet& set, const KvSource& source, int ratio, const ScoreTask& task) {
  const SequenceRows& s = set.of(task.row0);
  const int64_t d = c_.index_head_dim, size = c_.candidate_block_size;
  uint8_t* codes = scratch<uint8_t>(Slot::kPanel, d * kKeyLanes);
  float* factors = scratch<float>(Slot::kAccumulator, d / kIndexGroup * kKeyLanes);
  const int32_t* kept = at<int32_t>(Role::kCandidates, task.row0);
  const int64_t end = std::min(task.key0 + task.keys, listed_keys(task.row0, (set.positions[task.row0] + 1) / ratio));
  for (int64_t i0 = task.key0; i0 < end; i0 += kKeyLanes) {
    const int64_t keys = std::min(kKeyLanes, end - i0);
    int32_t list[kKeyLanes];
    for (int64_t i = 0; i < keys; ++i) list[i] = static_cast<int32_t>(kept[(i0 + i) / size] * size + (i0 + i) % size);
    listed_panel(s, set, source, list, keys, codes, factors);
    float scores[kKeyLanes];
    k_.score(score_call(task.row0, codes, factors, scores));
    std::copy_n(scores, keys, row_scores(task.row0) + i0);
  }
}

void FastBackend::choose_listed(int row, int64_t visible) {
  const int64_t size = c_.candidate_block_size, possible = listed_keys(row, visible),
                keep = std::min(possible, c_.index_topk);
  const int32_t* kept = at<int32_t>(Role::kCandidates, row);
  int32_t *out = at<int32_t>(Role::kSelected, row), *order = scratch<int32_t>(Slot::kOrder, possible);
  best_entries(row_scores(row), possible, keep, order);
  for (int64_t i = 0; i < keep; ++i) out[i] = static_cast<int32_t>(kept[order[i] / size] * size + order[i] % size);
  std::fill(out + keep, out + c_.index_topk, -1);
}

float* FastBackend::row_scores(int row) {
  return limits_.keep_scores ? at<float>(Role::kIndexScores, row)
                             : scores_.data() + (row - scores_row0_) * limits_.context_max;
}

FastBackend::Scoring FastBackend::scoring_of(const checkpoint::LayerInfo& layer, int row, int64_t visible,
                                             int64_t rows) const {
  if (limits_.keep_scores) return Scoring::kAll;
  if (visible <= c_.index_topk) return Scoring::kNone;
  const bool all = small_ && rows <= kStreamRows && visible <= kKeysScored;
  if (layer.publishes_candidates && visible > c_.candidate_topk_blocks * c_.candidate_block_size)
    return !all && kReachKeys % c_.candidate_block_size == 0 ? Scoring::kSearchBlocks : Scoring::kAll;
  if (layer.uses_candidates && *at<int32_t>(Role::kCandidates, row) >= 0) return Scoring::kListed;
  return all ? Scoring::kAll : Scoring::kSearch;
}

// Scores of the rows from row0 on that want them.
void FastBackend::score_group(const RowSet& set, const KvSource& source, int ratio, int row0, int end) {
  // A panel of keys is decoded once for all rows of a task.
  const int task_rows = static_cast<int>(
      std::clamp<int64_t>(kQueryBytesOfTask / (c_.index_n_heads * c_.index_head_dim), kScoreRows, kScoreRowsMax));
  const auto visible_of = [&](int row) { return int64_t{set.positions[row] + 1} / ratio; };
  // One row of a small model: a half for each of two threads.
  const auto span_of = [&](int64_t keys) {
    return narrow_ && set.rows == 1 ? std::min(kKeysOfTask, (keys / 2 + kKeyLanes) / kKeyLanes * kKeyLanes)
                                    : kKeysOfTask;
  };
  scores_row0_ = row0;
  score_tasks_.clear();
  for (int row = row0; row < end;) {
    int rows = 1;
    if (scoring_[row] == Scoring::kListed) {
      const int64_t keys = listed_keys(row, visible_of(row)), span = span_of(keys);
      for (int64_t k = 0; k < keys; k += span) score_tasks_.push_back({row, rows, k, span});
    } else if (scoring_[row] == Scoring::kAll) {
      while (row + rows < end && rows < task_rows && set.sequence[row + rows] == set.sequence[row] &&
             scoring_[row + rows] == Scoring::kAll)
        ++rows;
      const int64_t keys = visible_of(row + rows - 1), span = span_of(keys);
      for (int64_t k = 0; k < keys; k += span) score_tasks_.push_back({row, rows, k, span});
    }
    row += rows;
  }
  if (limits_.keep_scores) {
    for (int row = row0; row < end; ++row)
      std::fill_n(row_scores(row), buffer(Role::kIndexScores).cols, -std::numeric_limits<float>::infinity());
  }
  auto score = [&](int64_t b, int64_t e) {
    for (int64_t t = b; t < e; ++t) {
      const ScoreTask& task = score_tasks_[t];
      if (scoring_[task.row0] == Scoring::kListed) {
        score_listed(set, source, ratio, task);
      } else {
        score_keys(set, source, ratio, task);
      }
    }
  };
  parallel(static_cast<int64_t>(score_tasks_.size()), score);
}

void FastBackend::select(At where) {
  if (alone(where.rows)) {  // the keys of the window may wait
    finish_beside(kOthers);
    finish_beside(kEntries);
  } else {
    run_waiting();
  }
  entries_source_ = kNoSource;
  const RowSet& set = set_of(where.rows);
  const checkpoint::LayerInfo& layer = c_.layers[where.layer];
  const KvSource& keys = layout_.sources[layout_.source_at(layer.index_key_source)];
  const auto visible_of = [&](int row) { return int64_t{set.positions[row] + 1} / layer.ratio; };
  bool queries = false, scores = false;
  for (int row = 0; row < set.rows; ++row) {
    scoring_[row] = scoring_of(layer, row, visible_of(row), set.rows);
    queries |= scoring_[row] != Scoring::kNone;
    scores |= scoring_[row] == Scoring::kAll || scoring_[row] == Scoring::kListed;
  }
  if (queries) {
    auto prepare = [&](int64_t b, int64_t e) {
      for (int64_t row = b; row < e; ++row) prepare_query(row);
    };
    parallel(set.rows, prepare, 32);
    search_rows(set, keys, layer.ratio);
  }
  const int64_t in_group =
      limits_.keep_scores || !scores ? set.rows : static_cast<int64_t>(scores_.size()) / limits_.context_max;
  for (int row0 = 0; row0 < set.rows; row0 += static_cast<int>(in_group)) {
    const int end = static_cast<int>(std::min<int64_t>(set.rows, row0 + in_group));
    if (scores) score_group(set, keys, layer.ratio, row0, end);
    auto choose = [&](int64_t b, int64_t e) {
      for (int row = row0 + static_cast<int>(b); row < row0 + e; ++row) {
        const int64_t visible = visible_of(row);
        if (layer.publishes_candidates) {
          if (scoring_[row] == Scoring::kAll) {
            choose_candidates(row, row_scores(row), visible);
          } else if (scoring_[row] != Scoring::kSearchBlocks) {
            *at<int32_t>(Role::kCandidates, row) = -1;  // all blocks
          }
        }
        if (scoring_[row] == Scoring::kAll) {
          choose_entries(row, row_scores(row), visible, layer.uses_candidates);
        } else if (scoring_[row] == Scoring::kListed) {
          choose_listed(row, visible);
        } else if (scoring_[row] == Scoring::kNone) {
          int32_t* out = at<int32_t>(Role::kSelected, row);
          for (int64_t i = 0; i < c_.index_topk; ++i) out[i] = i < visible ? static_cast<int32_t>(i) : -1;
        }
      }
    };
    parallel(end - row0, choose, 4);
  }
}

}  // namespace deepinfer::ops::cpu::fast
