// Short pieces with AVX-512: sixteen pieces side by side, one in each 32-bit element, so that one instruction takes a
// step for all of them. Units lie in columns by their place in the piece; a merge moves what follows it down by one.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "text/bpe.h"

// GCC 12 warns inside its own header of intrinsics.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,bmi,bmi2,lzcnt")

namespace deepinfer::text {
namespace {

using Vector = __m512i;
constexpr size_t kWidth = 16;
constexpr int kPlaceBits = 6;

Vector all(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

// Rows become columns.
__attribute__((always_inline)) inline void transpose(Vector (&rows)[kWidth]) {
  Vector a[kWidth], b[kWidth];
  for (size_t i = 0; i < kWidth; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (size_t i = 0; i < kWidth; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (size_t i = 0; i < 4; ++i) {  // b[4 r + i] holds, in quarter q, column 4 q + i of rows 4 r to 4 r + 3
    const Vector low01 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x44),
                 high01 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xee);
    const Vector low23 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x44),
                 high23 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xee);
    rows[i] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[i + 8] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

Vector join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
// The lower halves of sixteen 64-bit elements.
Vector low(Vector a, Vector b) { return join(_mm512_cvtepi64_epi32(a), _mm512_cvtepi64_epi32(b)); }
// Elements 0 to 7 or 8 to 15.
__m256i half(Vector v, int which) { return which == 0 ? _mm512_castsi512_si256(v) : _mm512_extracti64x4_epi64(v, 1); }
Vector wide_half(Vector v, int which) { return _mm512_cvtepu32_epi64(half(v, which)); }

// PairTable::find() for sixteen pairs, where `asked`; kNone elsewhere.
__attribute__((always_inline)) inline Vector find_pairs(const PairTable::Layout& table, Vector left, Vector right,
                                                        __mmask16 asked) {
  Vector keys[2], hashes[2];
  for (int h = 0; h < 2; ++h) {
    keys[h] = _mm512_or_si512(_mm512_slli_epi64(wide_half(left, h), PairTable::kSymbolBits), wide_half(right, h));
    const Vector product =
        _mm512_mullo_epi64(_mm512_xor_si512(keys[h], _mm512_set1_epi64(static_cast<int64_t>(table.seed))),
                           _mm512_set1_epi64(static_cast<int64_t>(PairTable::kMultiplier)));
    hashes[h] = _mm512_xor_si512(product, _mm512_srli_epi64(product, 32));
  }
  const __m128i shift = _mm_cvtsi32_si128(table.shift);
  const Vector group = _mm512_i32gather_epi32(
      low(_mm512_srl_epi64(hashes[0], shift), _mm512_srl_epi64(hashes[1], shift)), table.groups, 4);
  const Vector bit = _mm512_add_epi32(_mm512_and_si512(low(hashes[0], hashes[1]), all(15)), all(16));
  const __mmask16 known = _mm512_mask_test_epi32_mask(asked, group, _mm512_sllv_epi32(all(1), bit));
  const Vector start = low(_mm512_srli_epi64(hashes[0], 4), _mm512_srli_epi64(hashes[1], 4));
  const Vector step = _mm512_or_si512(low(_mm512_srli_epi64(hashes[0], 24), _mm512_srli_epi64(hashes[1], 24)), all(1));
  const Vector way = _mm512_mullo_epi32(_mm512_and_si512(group, all(PairTable::kMaxDisplacement)), step);
  const Vector slot =
      _mm512_add_epi32(_mm512_and_si512(_mm512_add_epi32(start, way), all(static_cast<uint32_t>(table.mask))), all(1));
  Vector ranks[2];
  __mmask16 found = 0;
  for (int h = 0; h < 2; ++h) {
    const __mmask8 mask = static_cast<__mmask8>(known >> (8 * h));
    const Vector entry = _mm512_mask_i32gather_epi64(_mm512_set1_epi64(-1), mask, half(slot, h), table.entries, 8);
    const __mmask8 same = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(entry, PairTable::kRankBits), keys[h]);
    found = static_cast<__mmask16>(found | (same & mask) << (8 * h));
    ranks[h] = _mm512_and_si512(entry, _mm512_set1_epi64((1 << PairTable::kRankBits) - 1));
  }
  return _mm512_mask_mov_epi32(all(PairTable::kNone), found, low(ranks[0], ranks[1]));
}

// Questions about pairs, packed densely: of a batch's pieces many have ended or have no neighbour.
template <size_t kVectors>
class Questions {
 public:
  void add(__mmask16 asked, Vector left, Vector right) {
    _mm512_storeu_si512(left_ + count_, _mm512_maskz_compress_epi32(asked, left));
    _mm512_storeu_si512(right_ + count_, _mm512_maskz_compress_epi32(asked, right));
    count_ += static_cast<size_t>(__builtin_popcount(asked));
  }
  void answer(const PairTable::Layout& table) {
    for (size_t i = 0; i < count_; i += kWidth) {
      const __mmask16 asked = static_cast<__mmask16>(_bzhi_u32(0xffff, static_cast<uint32_t>(count_ - i)));
      const Vector ranks = find_pairs(table, _mm512_load_si512(left_ + i), _mm512_load_si512(right_ + i), asked);
      _mm512_store_si512(left_ + i, _mm512_slli_epi32(ranks, kPlaceBits));
    }
  }
  // In the order in which they were added: merges in the form of Columns, none where nothing was asked.
  Vector take(__mmask16 asked) {
    const Vector none = all(PairTable::kNone << kPlaceBits);
    const Vector answers = _mm512_mask_expand_epi32(none, asked, _mm512_loadu_si512(left_ + taken_));
    taken_ += static_cast<size_t>(__builtin_popcount(asked));
    return answers;
  }

 private:
  alignas(64) uint32_t left_[(kVectors + 1) * kWidth];  // then the answers
  alignas(64) uint32_t right_[(kVectors + 1) * kWidth];
  size_t count_ = 0, taken_ = 0;
};

// Writes what is now known of the merges at `place` and before it, and finds the lowest: its rank above its place.
__attribute__((always_inline)) inline Vector answer_columns(size_t units, Vector place, Vector with_next,
                                                            Vector with_previous, Vector* merges) {
  const Vector one = all(1), before = _mm512_sub_epi32(place, one);
  Vector best = all(~uint32_t{0}), at = one;
  for (size_t p = 1; p <= units; ++p, at = _mm512_add_epi32(at, one)) {
    Vector merge = merges[p];
    merge = _mm512_mask_mov_epi32(merge, _mm512_cmpeq_epi32_mask(at, place), with_next);
    merge = _mm512_mask_mov_epi32(merge, _mm512_cmpeq_epi32_mask(at, before), with_previous);
    merges[p] = merge;
    best = _mm512_min_epu32(best, _mm512_or_si512(merge, at));
  }
  return best;
}

}  // namespace

// The short pieces of some jobs: their units in rows, and the order in which batches take them.
struct Bpe::UnitRows {
  alignas(64) Symbol units[kColumnJobs][kShortUnits];  // then symbols that never merge, up to a multiple of kWidth
  std::array<uint8_t, kColumnJobs> count;
  std::array<uint8_t, kColumnJobs> order;  // jobs by number of units
};

// A batch of sixteen pieces. By place, from 1 on; around the units lie symbols that never merge.
struct Bpe::Columns {
  Vector units[kShortUnits + 3];
  // Of each unit and the one after it: the rank of their merge above kPlaceBits bits, which are 0.
  Vector merges[kShortUnits + 2];
  Vector counts;
};

// Fills the rows, encodes jobs that are not short, and returns how many these are: the first ones in the order.
size_t Bpe::sort_by_units(std::span<Job> jobs, UnitRows* rows, Scratch* scratch) const {
  const Vector end = all(kSymbolMask);
  std::array<uint8_t, kShortUnits + 2> begin{};  // in the order, of the jobs with so many units
  for (size_t j = 0; j < jobs.size(); ++j) {
    const char* const piece = jobs[j].piece;
    const uint32_t size = jobs[j].size;
    const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffff, size));
    const __m128i bytes = _mm_maskz_loadu_epi8(mask, piece);
    if (size <= kWidth && _mm_movepi8_mask(bytes) == 0) {
      _mm512_store_si512(rows->units[j], _mm512_mask_cvtepu8_epi32(end, mask, bytes));
      rows->count[j] = static_cast<uint8_t>(size);
    } else {
      for (size_t from = 0; from < kShortUnits; from += kWidth) _mm512_store_si512(rows->units[j] + from, end);
      rows->count[j] = size > kShortBytes ? 0 : static_cast<uint8_t>(find_units({piece, size}, rows->units[j]));
      if (rows->count[j] == 0) jobs[j].count = static_cast<uint32_t>(encode_long({piece, size}, scratch, jobs[j].ids));
    }
    ++begin[rows->count[j] + 1u];
  }
  for (size_t n = 1; n < begin.size(); ++n) begin[n] = static_cast<uint8_t>(begin[n] + begin[n - 1]);
  const size_t long_jobs = begin[1];
  for (size_t j = 0; j < jobs.size(); ++j) rows->order[begin[rows->count[j]]++] = static_cast<uint8_t>(j);
  return long_jobs;
}

// Rows `first` and on of the order, of at most `units` units; fewer than kWidth rows leave elements without units.
void Bpe::load_columns(const UnitRows& rows, size_t first, size_t jobs, size_t units, Columns* columns) const {
  const Vector end = all(kSymbolMask);
  alignas(64) uint32_t counts[kWidth] = {};
  for (size_t i = 0; i < jobs; ++i) counts[i] = rows.count[rows.order[first + i]];
  columns->counts = _mm512_load_si512(counts);
  columns->units[0] = end;
  for (size_t from = 0; from < units; from += kWidth) {
    Vector block[kWidth];
    for (size_t i = 0; i < kWidth; ++i)
      block[i] = counts[i] > from ? _mm512_load_si512(rows.units[rows.order[first + i]] + from) : end;
    transpose(block);
    std::copy_n(block, kWidth, columns->units + 1 + from);
  }
  columns->units[units + 1] = end;
}

// The rank of every pair of neighbours in the first `units` places.
void Bpe::find_first_merges(size_t units, Columns* columns) const {
  const PairTable::Layout table = pairs_.layout();
  const Vector none = all(PairTable::kNone), end = all(kSymbolMask);
  for (size_t p = 1; p < units; ++p) {
    const Vector left = columns->units[p], right = columns->units[p + 1];
    const __mmask16 ascii = _mm512_cmplt_epu32_mask(_mm512_or_si512(left, right), all(kAscii));
    const Vector at = _mm512_add_epi32(_mm512_mullo_epi32(left, all(kAscii)), right);
    Vector rank = _mm512_mask_i32gather_epi32(none, ascii, at, ascii_ranks_.data(), 4);
    const __mmask16 others = _mm512_mask_cmpneq_epi32_mask(static_cast<__mmask16>(~ascii), right, end);
    if (others != 0) rank = _mm512_mask_mov_epi32(rank, others, find_pairs(table, left, right, others));
    columns->merges[p] = _mm512_slli_epi32(rank, kPlaceBits);
  }
  columns->merges[units] = columns->merges[units + 1] = _mm512_slli_epi32(none, kPlaceBits);
}

// Takes steps until no merge is left in any piece of the batches.
template <size_t kBatches>
__attribute__((always_inline)) inline void Bpe::merge_columns(size_t units, Columns* batches) const {
  const PairTable::Layout table = pairs_.layout();
  const Vector end = all(kSymbolMask), nowhere = all((1u << kPlaceBits) - 1), one = all(1);
  // Of the last step; at first there is none, and its answers go nowhere.
  Vector place[kBatches], with_next[kBatches], with_previous[kBatches];
  std::fill_n(place, kBatches, nowhere);
  std::fill_n(with_next, kBatches, nowhere);
  std::fill_n(with_previous, kBatches, nowhere);
  while (true) {
    Questions<2 * kBatches> questions;
    Vector best[kBatches];
    __mmask16 live[kBatches], any = 0, asks_next[kBatches], asks_previous[kBatches];
    for (size_t b = 0; b < kBatches; ++b) {
      best[b] = answer_columns(units, place[b], with_next[b], with_previous[b], batches[b].merges);
      live[b] = static_cast<__mmask16>(~_mm512_movepi32_mask(best[b]));
      any = static_cast<__mmask16>(any | live[b]);
    }
    if (any == 0) return;
    for (size_t b = 0; b < kBatches; ++b) {
      Columns* const c = &batches[b];
      place[b] = _mm512_mask_and_epi32(nowhere, live[b], best[b], nowhere);
      const Vector made = _mm512_add_epi32(_mm512_srli_epi32(best[b], kPlaceBits), all(256));
      c->counts = _mm512_mask_sub_epi32(c->counts, live[b], c->counts, one);
      const Vector before = _mm512_sub_epi32(place[b], one), after_next = _mm512_add_epi32(place[b], all(2));
      Vector left = end, right = end, at = one;
      for (size_t p = 1; p <= units; ++p, at = _mm512_add_epi32(at, one)) {
        const Vector unit = c->units[p];
        const __mmask16 moved = _mm512_cmpgt_epi32_mask(at, place[b]);
        left = _mm512_mask_mov_epi32(left, _mm512_cmpeq_epi32_mask(at, before), unit);
        right = _mm512_mask_mov_epi32(right, _mm512_cmpeq_epi32_mask(at, after_next), unit);
        const Vector kept = _mm512_mask_mov_epi32(unit, _mm512_cmpeq_epi32_mask(at, place[b]), made);
        c->units[p] = _mm512_mask_mov_epi32(kept, moved, c->units[p + 1]);
        c->merges[p] = _mm512_mask_mov_epi32(c->merges[p], moved, c->merges[p + 1]);
      }
      asks_next[b] = _mm512_cmpneq_epi32_mask(right, end);
      asks_previous[b] = _mm512_cmpneq_epi32_mask(left, end);
      questions.add(asks_next[b], made, right);
      questions.add(asks_previous[b], left, made);
    }
    // Every piece that is still merging has lost a unit.
    units -= units > 1;
    questions.answer(table);
    for (size_t b = 0; b < kBatches; ++b) {
      with_next[b] = questions.take(asks_next[b]);
      with_previous[b] = questions.take(asks_previous[b]);
    }
  }
}

void Bpe::store_columns(const Columns& columns, const UnitRows& rows, size_t first, std::span<Job> jobs) const {
  const Vector below_table = all(ids_in_order_ ? 256 : static_cast<uint32_t>(ids_.size()));
  alignas(64) uint32_t counts[kWidth];
  _mm512_store_si512(counts, columns.counts);
  const size_t most = _mm512_reduce_max_epu32(columns.counts);
  for (size_t from = 0; from < most; from += kWidth) {
    Vector block[kWidth];
    for (size_t i = 0; i < kWidth; ++i) {
      const Vector symbol = columns.units[1 + std::min(from + i, most)];
      const Vector id = _mm512_add_epi32(symbol, all(static_cast<uint32_t>(first_merged_id_) - 256));
      const __mmask16 tabled = _mm512_cmplt_epu32_mask(symbol, below_table);
      block[i] = tabled == 0 ? id : _mm512_mask_i32gather_epi32(id, tabled, symbol, ids_.data(), 4);
    }
    transpose(block);
    for (size_t i = 0; i < kWidth; ++i) {
      if (counts[i] <= from) continue;
      const uint32_t left = counts[i] - static_cast<uint32_t>(from);
      _mm512_mask_storeu_epi32(jobs[rows.order[first + i]].ids + from, static_cast<__mmask16>(_bzhi_u32(0xffff, left)),
                               block[i]);
    }
  }
  for (size_t i = 0; i < kWidth && first + i < jobs.size(); ++i) jobs[rows.order[first + i]].count = counts[i];
}

// Up to kColumnJobs jobs.
void Bpe::encode_columns(std::span<Job> jobs, Scratch* scratch) const {
  constexpr size_t kBatches = 2;  // while one waits for memory the other goes on
  UnitRows rows;
  Columns batches[kBatches];
  size_t first = sort_by_units(jobs, &rows, scratch);
  while (first < jobs.size()) {
    const size_t end = std::min(first + kBatches * kWidth, jobs.size());
    const size_t units = rows.count[rows.order[end - 1]];
    size_t used = 0;
    for (size_t at = first; at < end; at += kWidth) {
      load_columns(rows, at, std::min(kWidth, end - at), units, &batches[used]);
      find_first_merges(units, &batches[used++]);
    }
    if (used == kBatches) {
      merge_columns<kBatches>(units, batches);
    } else {
      merge_columns<1>(units, batches);
    }
    for (size_t b = 0; b < used; ++b) store_columns(batches[b], rows, first + b * kWidth, jobs);
    first = end;
  }
}

}  // namespace deepinfer::text

#pragma GCC pop_options

#endif
