// The indexer's best entries without all scores: a bound that is cheaper than a score leaves out most keys; what may be
// among the best is gathered and scored as always, so that the choice is that of all scores.
#include <algorithm>
#include <bit>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/row_search.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kKeysOfRange = 1024;  // at least
constexpr int64_t kQueryBytesOfTask = 32 << 10;
constexpr int64_t kRowsOfTask = 128;

// Whether so many of the keys are wanted that whole panels are scored as they lie.
bool many(uint64_t keys) {
  constexpr int kMany = 24;
  int n = 0;
  for (; keys != 0 && n < kMany; keys &= keys - 1) ++n;
  return n == kMany;
}

int64_t panel_bytes(int64_t channels) { return channels * kKeyLanes; }
int64_t panel_factors(int64_t channels) { return channels / kIndexGroup * kKeyLanes; }

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

// Panels of keys as they lie in the cache and decoded.
struct FastBackend::SearchPanels {
  uint8_t* codes = nullptr;
  float* factors = nullptr;
  const uint8_t *data[kReachPanels], *scales[kReachPanels];
};

int64_t FastBackend::search_lists(int64_t rows) const { return std::max<int64_t>(rows, int64_t{16} * pool_.threads()); }

void FastBackend::search_scratch(std::vector<std::pair<Slot, int64_t>>* plan) const {
  const int64_t d = c_.index_head_dim, keep = std::max<int64_t>(c_.index_topk, c_.candidate_topk_blocks);
  plan->emplace_back(Slot::kPanel, kReachPanels * panel_bytes(d));
  plan->emplace_back(Slot::kAccumulator, kReachPanels * panel_factors(d) * static_cast<int64_t>(sizeof(float)));
  plan->emplace_back(Slot::kWords, panel_bytes(d));
  plan->emplace_back(Slot::kQueries, panel_factors(d) * static_cast<int64_t>(sizeof(float)));
  plan->emplace_back(Slot::kUp, kRowsOfTask * RowSearch::memory_bytes(d));
  plan->emplace_back(Slot::kTile, kRowsOfTask * static_cast<int64_t>(sizeof(RowSearch)));
  plan->emplace_back(Slot::kOrder, 2 * keep * static_cast<int64_t>(sizeof(int32_t)));
}

void FastBackend::score_waiting(int row, RowSearch* search) const {
  const int64_t d = c_.index_head_dim;
  uint8_t* codes = scratch<uint8_t>(Slot::kWords, panel_bytes(d));
  float* factors = scratch<float>(Slot::kQueries, panel_factors(d));
  k_.key_panel({search->data(), search->scales(), d / 2, d / kIndexGroup, search->count(), d, codes, factors});
  float scores[kKeyLanes];
  k_.score(score_call(row, codes, factors, scores));
  for (int64_t i = 0; i < search->count(); ++i) search->take(k_, scores[i], search->key(i));
  search->clear();
}

// Keys key0 .. key0 + kReachKeys - 1 of which the row sees `visible`.
void FastBackend::search_panels(int row, const SearchPanels& panels, int64_t key0, int64_t visible,
                                RowSearch* search) const {
  const int64_t heads = c_.index_n_heads, d = c_.index_head_dim, groups = d / kIndexGroup;
  const int32_t positive = index_positive_[row];
  const float above = search->above();
  uint64_t keys = visible >= kReachKeys ? ~uint64_t{0} : (uint64_t{1} << visible) - 1;
  if (positive == 0 && above >= 0) return;  // no score is above 0
  if (above >= kReachLeast) {
    keys &= k_.reach({panels.codes, panels.factors, d, index_codes_.data() + row * heads * d,
                      index_factors_.data() + row * heads * groups, index_twelve_.data() + row * heads * groups,
                      index_heads_.data() + row * heads, index_weights_.data() + row * heads, positive, above});
  }
  if (!many(keys)) {
    for (; keys != 0; keys &= keys - 1) {
      const int at = std::countr_zero(keys), lane = at % kKeyLanes;
      const int64_t p = at / kKeyLanes;
      search->wait(panels.data[p] + lane * layout_.key_data_bytes, panels.scales[p] + lane * layout_.key_scale_bytes, d,
                   static_cast<int32_t>(key0 + at));
      if (search->full()) score_waiting(row, search);
    }
    return;
  }
  if (search->count() > 0) score_waiting(row, search);  // keys come in order
  for (int64_t p = 0; keys != 0; ++p, keys >>= kKeyLanes) {
    auto some = static_cast<uint32_t>(keys & 0xffff);
    if (some == 0) continue;
    float scores[kKeyLanes];
    k_.score(score_call(row, panels.codes + p * panel_bytes(d), panels.factors + p * panel_factors(d), scores));
    for (; some != 0; some &= some - 1) {
      const int lane = std::countr_zero(some);
      search->take(k_, scores[lane], static_cast<int32_t>(key0 + p * kKeyLanes + lane));
    }
  }
}

void FastBackend::search_keys(const RowSet& set, const KvSource& source, int ratio, const SearchTask& task) {
  const SequenceRows& s = set.of(task.row0);
  const int64_t d = c_.index_head_dim;
  const auto visible_of = [&](int i) { return int64_t{set.positions[task.row0 + i] + 1} / ratio; };
  SearchPanels panels{scratch<uint8_t>(Slot::kPanel, kReachPanels * panel_bytes(d)),
                      scratch<float>(Slot::kAccumulator, kReachPanels * panel_factors(d)),
                      {},
                      {}};
  uint8_t* memory = scratch<uint8_t>(Slot::kUp, task.rows * RowSearch::memory_bytes(d));
  RowSearch* search = scratch<RowSearch>(Slot::kTile, task.rows);
  for (int i = 0; i < task.rows; ++i) {
    const int64_t list = (task.row0 + i) * search_ranges_ + task.range;
    search[i].begin(&found_[list], task.blocks ? &found_blocks_[list] : nullptr, c_.candidate_block_size,
                    memory + i * RowSearch::memory_bytes(d), d);
  }
  const int64_t end = std::min(task.end, visible_of(task.rows - 1));
  for (int64_t g0 = task.begin; g0 < end; g0 += kReachKeys) {
    for (int64_t p = 0; p < kReachPanels; ++p) {
      // Panels behind the last key repeat it; no row sees them.
      const int64_t first = std::min(g0 + p * kKeyLanes, end - 1);
      key_memory(s, set, source, first, &panels.data[p], &panels.scales[p]);
      k_.key_panel({panels.data[p], panels.scales[p], static_cast<int64_t>(layout_.key_data_bytes),
                    static_cast<int64_t>(layout_.key_scale_bytes), std::min(kKeyLanes, end - first), d,
                    panels.codes + p * panel_bytes(d), panels.factors + p * panel_factors(d)});
    }
    for (int i = 0; i < task.rows; ++i) {
      const int64_t visible = visible_of(i) - g0;
      if (visible > 0) search_panels(task.row0 + i, panels, g0, visible, &search[i]);
    }
  }
  for (int i = 0; i < task.rows; ++i) {
    if (search[i].count() > 0) score_waiting(task.row0 + i, &search[i]);
    if (!task.blocks) continue;
    const int64_t newest = visible_of(i) - 1;
    if (newest >= task.begin && newest < task.end) {
      search[i].end_with_newest(k_, static_cast<int32_t>(newest / c_.candidate_block_size));
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
  const int64_t task_rows =
      std::clamp<int64_t>(kQueryBytesOfTask / (c_.index_n_heads * c_.index_head_dim), kScoreRows, kRowsOfTask);
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
