// Attention over window and selected entries (spec/model.md 6.3, 6.4): scores and values as pair sums, lanes are heads
// in the first and channels in the second product.
#include <algorithm>
#include <cmath>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kValueChannels = 64;

}  // namespace

std::pair<int64_t, int64_t> FastBackend::window_of(const At& where, const RowSet& set, int row) const {
  const SequenceRows& s = set.of(row);
  const bool draft = where.rows == Rows::kDraft;
  const int64_t newest = draft ? s.first_position - 1 : set.positions[row];
  return {std::max<int64_t>({0, s.window_begin, newest - c_.sliding_window + 1}),
          (draft ? s.first_position + s.rows - 1 : newest) + 1};
}

int64_t FastBackend::gather_window(const At& where, const RowSet& set, int row, uint16_t* keys) const {
  const SequenceRows& s = set.of(row);
  const int64_t d = c_.head_dim;
  const auto [begin, end] = window_of(where, set, row);
  int64_t n = 0;
  for (int64_t p = begin; p < end; ++p, ++n) {
    const auto* record = p >= s.first_position ? at<uint8_t>(Role::kWindowRecords, s.first_row + p - s.first_position)
                                               : reinterpret_cast<const uint8_t*>(ring_record(s, where.layer, p));
    k_.window_words(record, d, keys + n * d);
  }
  return n;
}

int64_t FastBackend::gather_entries(const At& where, const RowSet& set, int row, uint16_t* keys) const {
  if (ratio_of(where.layer) == 0) return 0;
  const SequenceRows& s = set.of(row);
  const int64_t d = c_.head_dim;
  const KvSource& source = layout_.sources[layout_.source_at(c_.layers[where.layer].kv_source)];
  const int32_t* selected = at<int32_t>(Role::kSelected, row);
  const auto of_page = static_cast<uint32_t>(source.page_entries);
  int64_t n = 0;
  for (; n < c_.index_topk && selected[n] >= 0; ++n) {
    const uint32_t entry = static_cast<uint32_t>(selected[n]), at_page = entry / of_page;
    const std::byte* p = page(s, set, at_page, 1) + source.entry_offset +
                         static_cast<size_t>(entry - at_page * of_page) * layout_.entry_bytes;
    k_.entry_words(reinterpret_cast<const uint8_t*>(p), d, keys + n * d);
  }
  return n;
}

void attend_heads(const Kernels& k, const AttendCall& c) {
  const int64_t d = c.channels, heads = c.heads, n = c.keys, lanes = (heads + kLanes - 1) / kLanes * kLanes,
                pairs = (n + 1) / 2;
  if (n == 0) {
    std::fill(c.out, c.out + heads * d, 0.0f);
    return;
  }
  if (k.few_heads != nullptr && heads <= kFewHeads && d % 32 == 0) {
    std::byte* memory = scratch<std::byte>(Slot::kPanel, few_heads_bytes(n, d));
    return k.few_heads({c.q, heads, d, c.words, n, c.sink, c.out}, memory);
  }
  uint32_t* panel = scratch<uint32_t>(Slot::kQueries, d / 2 * lanes);
  uint16_t* packed = scratch<uint16_t>(Slot::kWords, packed_columns(d));
  std::fill(panel, panel + d / 2 * lanes, 0u);
  for (int64_t h = 0; h < heads; ++h) {
    k.pack(c.q + h * d, d, Order::kNatural, false, packed, kStep);
    for (int64_t p = 0; p < d / 2; ++p)
      panel[p * lanes + h] = packed[2 * p] | static_cast<uint32_t>(packed[2 * p + 1]) << 16;
  }
  float* scores = scratch<float>(Slot::kScores, n * lanes);
  k.outer({reinterpret_cast<const uint32_t*>(c.words), d / 2, 1, panel, lanes, n, d / 2, lanes, scores, lanes});

  uint32_t* p = scratch<uint32_t>(Slot::kProbabilities, pairs * lanes);
  float* denominators = scratch<float>(Slot::kAccumulator, 2 * lanes);
  float* sink = denominators + lanes;
  std::fill(sink, sink + lanes, 0.0f);
  std::copy_n(c.sink, heads, sink);
  k.softmax({scores, n, lanes, 1.0f / std::sqrt(static_cast<float>(d)), sink, p, denominators});

  uint32_t* values = scratch<uint32_t>(Slot::kPanel, pairs * kValueChannels);
  for (int64_t c0 = 0; c0 < d; c0 += kValueChannels) {
    const int64_t channels = std::min(kValueChannels, d - c0);
    k.pair_rows(c.words + c0, d, n, channels, values);
    k.outer({p, 1, lanes, values, channels, heads, pairs, channels, c.out + c0, d});
  }
  for (int64_t h = 0; h < heads; ++h) k.divide(c.out + h * d, d, denominators[h]);
}

void FastBackend::attend_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const RowSet& set = set_of(stage.at.rows);
  const int64_t d = c_.head_dim;
  uint16_t* keys = scratch<uint16_t>(Slot::kKeys, keys_max() * d);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = gather_words(stage.at, set, static_cast<int>(i), keys);
    attend_heads(k_, {at<float>(Role::kQuery, i), c_.num_attention_heads, d, keys, n,
                      vectors_[stage.at.layer].sink.data(), at<float>(Role::kHeads, i)});
  }
}

void FastBackend::attend(At where) {
  run_waiting();  // the records of all rows
  mix_beside_attention_ = false;
  if (by_rows(where.rows)) return later({.run = &FastBackend::attend_rows, .at = where});
  if (alone(where.rows)) return attend_beside(where);
  const RowSet& set = set_of(where.rows);
  const int64_t heads = c_.num_attention_heads;
  // Few rows: heads are divided as well, at the price of expanding the keys more than once.
  int64_t parts = 1;
  while (set.rows * parts < pool_.threads() && heads / (parts * 2) >= 2 * kLanes) parts *= 2;
  const int64_t per_part = heads / parts;
  if (small_ && late_mix_ != nullptr && parts == 1) {  // one row
    auto one_each = [&](int64_t begin, int64_t end) {
      if (begin == 0) attend_rows({.at = where}, 0, 1);
      if (end == 2) do_late_mix();
    };
    return parallel(2, one_each);
  }
  auto body = [&](int64_t begin, int64_t end) {
    uint16_t* keys = scratch<uint16_t>(Slot::kKeys, keys_max() * c_.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / parts, part = i % parts, h0 = part * per_part;
      const int64_t n = gather_words(where, set, static_cast<int>(row), keys), d = c_.head_dim;
      attend_heads(k_, {at<float>(Role::kQuery, row) + h0 * d, part + 1 == parts ? heads - h0 : per_part, d, keys, n,
                        vectors_[where.layer].sink.data() + h0, at<float>(Role::kHeads, row) + h0 * d});
    }
  };
  parallel(set.rows * parts, body);
}

}  // namespace deepinfer::ops::cpu::fast
