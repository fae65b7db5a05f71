// The indexer's best entries without all scores: every key has a bound that is cheaper than its score. Those with the
// largest bounds are scored first, and what they reach leaves out most of the others; what may be among the best is
// gathered and scored as always, so that the choice is that of all scores.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/row_search.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kKeysOfRange = 1024;  // at least
constexpr int64_t kQueryBytesOfTask = 32 << 10;
constexpr int64_t kRowsOfTask = 64, kRowsLeast = 8;
constexpr int64_t kBoundBytesOfTask = 512 << 10;  // they stay in the second-level cache
constexpr int64_t kScanned = 512;                 // bounds that meet one `above`

int64_t panel_bytes(int64_t channels) { return channels * kKeyLanes; }
int64_t panel_factors(int64_t channels) { return channels / kIndexGroup * kKeyLanes; }

// The next smaller number; x: above 0.
float below(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) - 1); }

}  // namespace

void BestKeys::shrink(const Kernels& kernels) {
  int32_t* order = scratch<int32_t>(Slot::kOrder, count);
  kernels.best(scores, count, keep, order);
  float least = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < keep; ++i) {
    scores[i] = scores[order[i]];
    keys[i] = keys[order[i]];
    least = std::min(least, scores[i]);
  }
  count = static_cast<int32_t>(keep);
  above = least;
}

void BestKeys::begin_above(const Kernels& kernels, const float* some, int64_t n) {
  if (n < keep) return;
  int32_t* order = scratch<int32_t>(Slot::kOrder, keep);
  kernels.best(some, n, keep, order);
  float least = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < keep; ++i) least = std::min(least, some[order[i]]);
  if (least >= kReachLeast && least < std::numeric_limits<float>::infinity()) above = below(least);
}

// Some keys of a sequence in a row: where they lie in the cache, panel by panel.
struct FastBackend::SearchKeys {
  const uint8_t **data = nullptr, **scales = nullptr;
  int64_t first = 0, count = 0;
};

// So many that the best of them say much about the best of all.
int64_t FastBackend::keys_bounded() const {
  constexpr int64_t kLeast = 2048, kMost = 16384;
  return std::clamp(64 * c_.index_topk, kLeast, kMost) / kReachKeys * kReachKeys;
}

int64_t FastBackend::search_task_rows() const {
  const int64_t queries = kQueryBytesOfTask / (c_.index_n_heads * c_.index_head_dim),
                bounds = kBoundBytesOfTask / (keys_bounded() * static_cast<int64_t>(sizeof(float)));
  return std::clamp<int64_t>(std::min(queries, bounds), kScoreRows, kRowsOfTask);
}

int64_t FastBackend::search_lists(int64_t rows) const { return std::max<int64_t>(rows, int64_t{16} * pool_.threads()); }

void FastBackend::search_scratch(std::vector<std::pair<Slot, int64_t>>* plan) const {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float)), kIndex = static_cast<int64_t>(sizeof(int32_t));
  const int64_t d = c_.index_head_dim, keep = std::max<int64_t>(c_.index_topk, c_.candidate_topk_blocks);
  const int64_t rows = search_task_rows(), keys = keys_bounded();
  plan->emplace_back(Slot::kPanel, kReachPanels * panel_bytes(d));
  plan->emplace_back(Slot::kAccumulator, kReachPanels * panel_factors(d) * kFloat);
  plan->emplace_back(Slot::kWords, panel_bytes(d));
  plan->emplace_back(Slot::kQueries, panel_factors(d) * kFloat);
  plan->emplace_back(Slot::kUp, kKeyLanes * (d / 2 + d / kIndexGroup));
  plan->emplace_back(Slot::kTile, rows * static_cast<int64_t>(sizeof(RowSearch)));
  plan->emplace_back(Slot::kInput, rows * keys * kFloat);
  plan->emplace_back(Slot::kKeys, (keys + kKeyLanes) * kIndex);
  plan->emplace_back(Slot::kGate, 2 * keys / kKeyLanes * static_cast<int64_t>(sizeof(const uint8_t*)));
  plan->emplace_back(Slot::kScores, 2 * keys * kFloat);
  plan->emplace_back(Slot::kOrder, 2 * std::max(keep, keys) * kIndex);
}

// Scores keys.first + list[i] and gives every score to use(key, score).
template <class Use>
void FastBackend::score_some(int row, const SearchKeys& keys, const int32_t* list, int64_t n, Use&& use) const {
  const int64_t d = c_.index_head_dim, groups = d / kIndexGroup, key_bytes = layout_.key_data_bytes,
                scale_bytes = layout_.key_scale_bytes;
  uint8_t* codes = scratch<uint8_t>(Slot::kWords, panel_bytes(d));
  float* factors = scratch<float>(Slot::kQueries, panel_factors(d));
  uint8_t* packed = scratch<uint8_t>(Slot::kUp, kKeyLanes * (d / 2 + groups));
  uint8_t* packed_scales = packed + kKeyLanes * d / 2;
  float scores[kKeyLanes];
  for (int64_t i = 0; i < n; i += kKeyLanes) {
    const int64_t count = std::min(kKeyLanes, n - i);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t lane = list[i + j] % kKeyLanes, panel = list[i + j] / kKeyLanes;
      const uint8_t *data = keys.data[panel] + lane * key_bytes, *scales = keys.scales[panel] + lane * scale_bytes;
      for (int64_t g = 0; g < groups; ++g) {
        std::memcpy(packed + (j * groups + g) * (kIndexGroup / 2), data + g * (kIndexGroup / 2), kIndexGroup / 2);
        packed_scales[j * groups + g] = scales[g];
      }
    }
    k_.key_panel({packed, packed_scales, d / 2, groups, count, d, codes, factors});
    k_.score(score_call(row, codes, factors, scores));
    for (int64_t j = 0; j < count; ++j) use(static_cast<int32_t>(keys.first + list[i + j]), scores[j]);
  }
}

// Before its first key: the scores of some that are likely among the best tell what the others must exceed.
void FastBackend::begin_search(int row, const SearchKeys& keys, int64_t visible, int32_t newest_block,
                               const float* bounds, RowSearch* search) const {
  const int64_t keep = search->best()->keep, groups = 4 * keep;
  if (visible < 4 * groups) return;
  // The best of each group, and the best half of those.
  float* tops = scratch<float>(Slot::kScores, 2 * keys_bounded());
  std::copy_n(bounds, groups, tops);
  for (int64_t k = groups; k + groups <= visible; k += groups) {
    for (int64_t i = 0; i < groups; ++i) tops[i] = std::max(tops[i], bounds[k + i]);
  }
  int32_t* list = scratch<int32_t>(Slot::kKeys, keys_bounded() + kKeyLanes);
  k_.best(tops, groups, groups / 2, list);
  float least = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < groups / 2; ++i) least = std::min(least, tops[list[i]]);
  const int64_t n = std::min(k_.list_above(bounds, visible, below(least), list), keys_bounded());
  float *scores = tops, *block_tops = tops + keys_bounded();
  int64_t count = 0, blocks = 0;
  int32_t block = -1;
  score_some(row, keys, list, n, [&](int32_t key, float score) {
    scores[count++] = score;
    if (search->blocks() == nullptr || search->block_of(key) == newest_block) return;
    if (search->block_of(key) != block)
      block_tops[blocks++] = score;
    else
      block_tops[blocks - 1] = std::max(block_tops[blocks - 1], score);
    block = search->block_of(key);
  });
  search->best()->begin_above(k_, scores, count);
  if (search->blocks() != nullptr) search->blocks()->begin_above(k_, block_tops, blocks);
}

// Those of `keys` that the row sees.
void FastBackend::search_some(int row, const SearchKeys& keys, int64_t visible, int32_t newest_block,
                              const float* bounds, RowSearch* search) const {
  const bool bounded = index_positive_[row] > 0;
  if (bounded && search->fresh()) begin_search(row, keys, visible, newest_block, bounds, search);
  int32_t* list = scratch<int32_t>(Slot::kKeys, keys_bounded() + kKeyLanes);
  for (int64_t k = 0, n; k < visible; k += n) {
    const float above = search->above();
    if (!bounded && above >= 0) return;  // no score is above 0
    const bool known = bounded && above >= kReachLeast;
    n = std::min(visible - k, known ? kScanned : kReachKeys);
    int64_t count = n;
    if (known) {
      count = k_.list_above(bounds + k, n, above, list);
      for (int64_t i = 0; i < count; ++i) list[i] += static_cast<int32_t>(k);
    } else {
      std::iota(list, list + n, static_cast<int32_t>(k));
    }
    score_some(row, keys, list, count, [&](int32_t key, float score) { search->take(k_, score, key); });
  }
}

// Bounds of the keys for each row of the task, as far as it sees them; a row's are keys_bounded() apart.
void FastBackend::bound_keys(const RowSet& set, const KvSource& source, int ratio, const SearchTask& task,
                             const SearchKeys& keys, float* bounds) const {
  const SequenceRows& s = set.of(task.row0);
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = d / kIndexGroup;
  uint8_t* codes = scratch<uint8_t>(Slot::kPanel, kReachPanels * panel_bytes(d));
  float* factors = scratch<float>(Slot::kAccumulator, kReachPanels * panel_factors(d));
  for (int64_t g0 = 0; g0 < keys.count; g0 += kReachKeys) {
    for (int64_t p = 0; p < kReachPanels; ++p) {
      // Panels behind the last key repeat it; no row sees them.
      const int64_t at = std::min(g0 + p * kKeyLanes, keys.count - 1);
      const uint8_t *data, *scales;
      key_memory(s, set, source, keys.first + at, &data, &scales);
      if (at % kKeyLanes == 0) keys.data[at / kKeyLanes] = data, keys.scales[at / kKeyLanes] = scales;
      k_.key_panel({data, scales, static_cast<int64_t>(layout_.key_data_bytes),
                    static_cast<int64_t>(layout_.key_scale_bytes), std::min(kKeyLanes, keys.count - at), d,
                    codes + p * panel_bytes(d), factors + p * panel_factors(d)});
    }
    for (int64_t i = 0; i < task.rows; ++i) {
      const int64_t row = task.row0 + i, visible = int64_t{set.positions[row] + 1} / ratio - keys.first - g0;
      if (visible <= 0 || index_positive_[row] == 0) continue;
      k_.reach({codes, factors, d, index_codes_.data() + row * heads * d, index_factors_.data() + row * heads * groups,
                index_twelve_.data() + row * heads * groups, index_heads_.data() + row * heads,
                index_weights_.data() + row * heads, index_positive_[row], bounds + i * keys_bounded() + g0});
    }
  }
}

void FastBackend::search_keys(const RowSet& set, const KvSource& source, int ratio, const SearchTask& task) {
  const int64_t most = keys_bounded();
  const auto visible_of = [&](int i) { return int64_t{set.positions[task.row0 + i] + 1} / ratio; };
  RowSearch* search = scratch<RowSearch>(Slot::kTile, task.rows);
  float* bounds = scratch<float>(Slot::kInput, task.rows * most);
  const uint8_t** places = scratch<const uint8_t*>(Slot::kGate, 2 * most / kKeyLanes);
  for (int i = 0; i < task.rows; ++i) {
    const int64_t list = (task.row0 + i) * search_ranges_ + task.range;
    search[i].begin(&found_[list], task.blocks ? &found_blocks_[list] : nullptr, c_.candidate_block_size);
  }
  const auto newest_block = [&](int i) { return static_cast<int32_t>((visible_of(i) - 1) / c_.candidate_block_size); };
  const int64_t end = std::min(task.end, visible_of(task.rows - 1));
  for (int64_t first = task.begin; first < end; first += most) {
    const SearchKeys keys{places, places + most / kKeyLanes, first, std::min(most, end - first)};
    bound_keys(set, source, ratio, task, keys, bounds);
    for (int i = 0; i < task.rows; ++i) {
      const int64_t visible = std::min(visible_of(i) - first, keys.count);
      if (visible > 0) search_some(task.row0 + i, keys, visible, newest_block(i), bounds + i * most, &search[i]);
    }
  }
  for (int i = 0; task.blocks && i < task.rows; ++i) {
    const int64_t newest = visible_of(i) - 1;
    if (newest >= task.begin && newest < task.end) {
      search[i].end_with_newest(k_, newest_block(i));
    } else {
      search[i].end(k_);
    }
  }
}

// The best of all ranges of keys, ascending.
void FastBackend::choose_found(const BestKeys* found, int32_t* out) const {
  int32_t* keys = found->keys;
  float* scores = found->scores;
  int64_t n = found->count;
  if (search_ranges_ > 1) {
    scores = scratch<float>(Slot::kScores, limits_.context_max);
    keys = scratch<int32_t>(Slot::kProbabilities, limits_.context_max);
    n = 0;
    for (int64_t r = 0; r < search_ranges_; n += found[r++].count) {
      std::copy_n(found[r].scores, found[r].count, scores + n);
      std::copy_n(found[r].keys, found[r].count, keys + n);
    }
  }
  int32_t* order = scratch<int32_t>(Slot::kOrder, n);
  k_.best(scores, n, found->keep, order);
  for (int64_t i = 0; i < found->keep; ++i) out[i] = keys[order[i]];
}

void FastBackend::plan_search(const RowSet& set, int ratio) {
  // Several tasks a thread, so that none is left with one while others have nothing.
  const int64_t even = (set.rows + int64_t{4} * pool_.threads() - 1) / (int64_t{4} * pool_.threads());
  const int64_t task_rows = std::clamp<int64_t>(even, kRowsLeast, search_task_rows());
  search_tasks_.clear();
  int64_t most = 0;
  for (int row = 0, rows = 1; row < set.rows; row += rows, rows = 1) {
    const Scoring scoring = scoring_[row];
    if (scoring != Scoring::kSearch && scoring != Scoring::kSearchBlocks) continue;
    while (row + rows < set.rows && rows < task_rows && set.sequence[row + rows] == set.sequence[row] &&
           scoring_[row + rows] == scoring)
      ++rows;
    search_tasks_.push_back({.row0 = row, .rows = rows, .blocks = scoring == Scoring::kSearchBlocks});
    most = std::max<int64_t>(most, int64_t{set.positions[row + rows - 1] + 1} / ratio);
  }
  if (search_tasks_.empty()) return;
  // Few rows: their keys are divided as well.
  const auto runs = static_cast<int64_t>(search_tasks_.size());
  const int64_t wanted = (int64_t{2} * pool_.threads() + runs - 1) / runs;
  search_ranges_ =
      std::max<int64_t>(1, std::min({wanted, most / kKeysOfRange, static_cast<int64_t>(found_.size()) / set.rows}));
  const int64_t keep = c_.index_topk, keep_blocks = c_.candidate_topk_blocks;
  for (int64_t i = 0; i < set.rows * search_ranges_; ++i) {
    found_[i] = {found_scores_.data() + i * 2 * keep, found_keys_.data() + i * 2 * keep, keep};
    found_blocks_[i] = {block_scores_.data() + i * 2 * keep_blocks, block_keys_.data() + i * 2 * keep_blocks,
                        keep_blocks};
  }
}

void FastBackend::search_rows(const RowSet& set, const KvSource& source, int ratio) {
  plan_search(set, ratio);
  if (search_tasks_.empty()) return;
  auto search = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      SearchTask task = search_tasks_[t / search_ranges_];
      const int64_t visible = int64_t{set.positions[task.row0 + task.rows - 1] + 1} / ratio;
      const int64_t keys = (visible / search_ranges_ + kReachKeys) / kReachKeys * kReachKeys;
      task.range = t % search_ranges_;
      task.begin = task.range * keys;
      task.end = task.begin + keys;
      search_keys(set, source, ratio, task);
    }
  };
  parallel(static_cast<int64_t>(search_tasks_.size()) * search_ranges_, search);
  auto choose = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool blocks = scoring_[row] == Scoring::kSearchBlocks;
      if (!blocks && scoring_[row] != Scoring::kSearch) continue;
      choose_found(&found_[row * search_ranges_], at<int32_t>(Role::kSelected, row));
      if (blocks) choose_found(&found_blocks_[row * search_ranges_], at<int32_t>(Role::kCandidates, row));
    }
  };
  parallel(set.rows, choose, 16);
}

}  // namespace deepinfer::ops::cpu::fast
