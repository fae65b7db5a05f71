// Linear layers of many rows with AMX: a panel of weights is expanded once and meets 32 rows of activations at a
// time. The sums of linear_amx_avx512.h, which includes this. Only for files compiled with AVX-512 VBMI.
//
//   amx_panels<HardwareTiles, F>(call, scratch);   // scratch: amx_panels_bytes(k), on huge pages if they are to be had
//
// Tiles want one of the two turned: the activations if they are fewer than a panel's outputs, else the weights.
//
// Columns are divided twice, since sums go on from where they were: into parts, so that a panel of many rows of weights
// fits the second-level cache and activations are read as seldom as can be; and a part into steps that stay in the
// first-level cache, activations and 32 rows of weights at a time. Between parts sums wait in the output.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/amx_blocks_avx512.h"
#include "ops/cpu/fast/amx_stored_avx512.h"
#include "ops/cpu/fast/scaled_rows_avx512.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// How a matrix of k columns is divided, best as measured.
struct PanelPlan {
  static constexpr int64_t kBytes = 1 << 20, kRowsMax = 512, kPartSteps = 40, kStepsTogether = 8;
  int64_t steps = 0, part = 0, rows = 0;  // of 32 columns: all, those of a part; rows of a panel

  explicit constexpr PanelPlan(int64_t k) : steps(packed_columns(k) / kStep) {
    const int64_t parts = (steps + kPartSteps - 1) / kPartSteps;
    part = ((steps + parts - 1) / parts + 1) / 2 * 2;  // whole chunks
    rows = kBytes / (part * kLine) / kGroupRows * kGroupRows;
    rows = rows < kGroupRows ? kGroupRows : rows > kRowsMax ? kRowsMax : rows;
  }
};

constexpr int64_t amx_panels_bytes(int64_t k) {
  const PanelPlan p(k);
  const int64_t scales = kBlock * loss_columns(p.part) * static_cast<int64_t>(sizeof(uint32_t)) + 2 * p.part + 128;
  return (2 * kBlock + p.rows) * p.part * kLine + 2 * kBlock * p.rows * static_cast<int64_t>(sizeof(float)) + scales;
}

// Fetches words of rows of x that are wanted soon, some lines at a time.
class RowsAhead {
 public:
  // 32 rows from `row` on, `steps` steps from `step` on, in `times` goes.
  RowsAhead(const PackedRows& x, int64_t row, int64_t step, int64_t steps, int64_t times)
      : at_(reinterpret_cast<const char*>(x.words + row / kTileRows * kTileRows * x.ld + step * kStep * kTileRows)),
        tile_(kTileRows * x.ld * static_cast<int64_t>(sizeof(uint16_t))),
        run_(steps * kLine * kTileRows),
        lines_((kTiles * run_ / 64 + times - 1) / times) {}
  void go() {
    for (int64_t line = 0; line < lines_; ++line) {
      _mm_prefetch(at_ + offset_, _MM_HINT_T1);
      offset_ += 64;
      if (offset_ < run_) continue;
      offset_ = 0;
      at_ += tile_;
    }
  }

 private:
  static constexpr int64_t kTiles = (kGroupRows + kTileRows - 1) / kTileRows;
  const char* at_;
  int64_t tile_, run_, lines_, offset_ = 0;  // bytes from tile to tile, of a tile's run
};

// Memory of a call: blocks of 2 x 16 rows of x and of a panel's weights, and of its sums, [x rows / 16] within
// [outputs / 16].
template <class Tiles, WeightFormat F, bool kTurnsX>
class AmxPanels {
 public:
  AmxPanels(const LinearCall& call, std::byte* scratch)
      : c_(call),
        plan_(call.w->cols),
        x_(reinterpret_cast<uint16_t*>(scratch)),
        panel_(x_ + 2 * kBlock * plan_.part * kStep),
        sums_(reinterpret_cast<float*>(panel_ + plan_.rows * plan_.part * kStep)),
        losses_(reinterpret_cast<uint32_t*>(sums_ + 2 * kBlock * plan_.rows)),
        scales_(reinterpret_cast<uint8_t*>(losses_ + kBlock * loss_columns(plan_.part))) {}

  void run() {
    Tiles::configure(kBlock);
    for (first_ = 0; first_ < c_.rows; first_ += plan_.rows) {
      count_ = c_.rows - first_ < plan_.rows ? c_.rows - first_ : plan_.rows;
      for (begin_ = 0; begin_ < plan_.steps; begin_ = end_) {
        end_ = begin_ + plan_.part < plan_.steps ? begin_ + plan_.part : plan_.steps;
        fill_panel();
        for (int64_t i = 0; i < c_.x.n; i += kGroupRows) multiply(i);
      }
    }
    Tiles::release();
  }

 private:
  static constexpr int64_t kSums = kBlock * kBlock;

  int64_t padded() const { return (count_ + kGroupRows - 1) / kGroupRows * kGroupRows; }
  int64_t rows_of_half(int64_t i, int64_t half) const {
    const int64_t n = c_.x.n - i - half * kBlock;
    return n < 0 ? 0 : n < kBlock ? n : kBlock;
  }
  uint16_t* panel_block(int64_t row) const { return panel_ + row / kBlock * kBlockWords * plan_.part; }

  static void turn_block(uint16_t* b) {
    __m512i v[kBlock];
    for (int64_t r = 0; r < kBlock; ++r) v[r] = _mm512_load_si512(b + r * kStep);
    turn(v, b);
  }
  static void turn_blocks(uint16_t* b, int64_t n) {
    for (int64_t k = 0; k < n; ++k) turn_block(b + k * kBlockWords);
  }

  void fill_panel() {
    const int64_t steps = end_ - begin_;
    for (int64_t row = 0; row < padded(); row += kBlock) {
      uint16_t* b = panel_block(row);
      if (F == WeightFormat::kFp4 && row + kBlock <= count_) {
        fill_fp4(row, b);
      } else {
        fill_rows(row, b);
      }
      if constexpr (!kTurnsX) turn_blocks(b, steps);
    }
  }

  void fill_rows(int64_t row, uint16_t* to) {
    const int64_t steps = end_ - begin_;
    for (int64_t r = 0; r < kBlock; ++r, to += kStep) {
      if (row + r < count_) {
        expand_chunks<F>(*c_.w, c_.row0 + first_ + row + r, begin_ / 2, steps / 2, scales_, to, kBlock);
      } else {
        for (int64_t k = 0; k < steps; ++k) _mm512_store_si512(to + k * kBlockWords, _mm512_setzero_si512());
      }
    }
  }

  // Sixteen rows that exist, as amx_stored() takes them; the next ones are fetched meanwhile.
  void fill_fp4(int64_t row, uint16_t* to) {
    constexpr int64_t kBytes = chunk_bytes(WeightFormat::kFp4);
    const Matrix& w = *c_.w;
    const int64_t blocks = w.cols / 32, stride = w.cols / 2, steps = end_ - begin_,
                  here = blocks - begin_ < steps ? blocks - begin_ : steps;
    const WeightRow first = row_of(w, c_.row0 + first_ + row);
    const uint8_t* at = first.data + begin_ / 2 * kBytes;
    GroupPlace g{at, at + kBlock * stride, stride, stride, losses_, loss_columns(plan_.part)};
    for (int64_t r = 0; r < kBlock; ++r) loss_pairs(first.scale + r * blocks + begin_, here, losses_ + r * g.losses_ld);
    for (int64_t k = 0; k < steps; k += 2, to += 2 * kBlockWords, g.at += kBytes, g.fetched += kBytes, g.losses += 2) {
      const int64_t left = w.cols - (begin_ + k) * kStep;
      for (int r = 0; r < kBlock; r += 4) {
        if (left >= kChunk) {
          fp4_.template four<true>(g, r, left, to);
        } else {
          fp4_.template four<false>(g, r, left, to);
        }
      }
    }
  }

  void copy_rows(int64_t i, int64_t half) {
    uint16_t* blocks = x_ + half * kBlockWords * plan_.part;
    for (int64_t r = 0; r < rows_of_half(i, half); ++r) {
      const int64_t row = i + half * kBlock + r, step = c_.x.step(row);
      const uint16_t* from = c_.x.row(row) + begin_ * step;
      uint16_t* to = blocks + r * kStep;
      for (int64_t k = begin_; k < end_; ++k, from += step, to += kBlockWords)
        _mm512_store_si512(to, _mm512_loadu_si512(from));
    }
    if (kTurnsX && rows_of_half(i, half) > 0) turn_blocks(blocks, end_ - begin_);
  }

  // Sums lie as the outputs do but while they are multiplied.
  void turn_sums() {
    if constexpr (kTurnsX) turn_blocks(reinterpret_cast<uint16_t*>(sums_), padded() / kBlock * 2);
  }

  // Between the outputs and the sums' blocks, sixteen outputs of up to sixteen rows.
  template <class Move>
  void move_sums(int64_t i, Move&& move) {
    for (int64_t j = 0; j < count_; j += kBlock) {
      const auto mask = static_cast<__mmask16>(count_ - j >= kBlock ? 0xffff : (1 << (count_ - j)) - 1);
      for (int64_t half = 0; half < 2; ++half) {
        float* sums = sums_ + (j / kBlock * 2 + half) * kSums;
        float* out = c_.out + (i + half * kBlock) * c_.ldo + first_ + j;
        for (int64_t r = 0; r < rows_of_half(i, half); ++r) move(mask, sums + r * kBlock, out + r * c_.ldo);
      }
    }
  }

  void multiply(int64_t i) {
    const int64_t steps = end_ - begin_, next = i + kGroupRows < c_.x.n ? i + kGroupRows : 0;
    copy_rows(i, 0);
    copy_rows(i, 1);
    if (begin_ > 0) {
      move_sums(i, [](__mmask16 mask, float* sums, const float* out) {
        _mm512_store_ps(sums, _mm512_maskz_loadu_ps(mask, out));
      });
      turn_sums();
    }
    RowsAhead ahead(c_.x, next, begin_, steps, padded() / kGroupRows * steps);
    for (int64_t k = 0; k < steps; k += PanelPlan::kStepsTogether) {
      const int64_t end = k + PanelPlan::kStepsTogether < steps ? k + PanelPlan::kStepsTogether : steps;
      for (int64_t row = 0; row < padded(); row += kGroupRows) {
        if (rows_of_half(i, 1) > 0) {
          meet<true>(row, k, end, ahead);
        } else {
          meet<false>(row, k, end, ahead);
        }
      }
    }
    turn_sums();
    const bool rounds = c_.round && end_ == plan_.steps;
    move_sums(i, [&](__mmask16 mask, const float* sums, float* out) {
      const __m512 v = _mm512_load_ps(sums);
      _mm512_mask_storeu_ps(out, mask, rounds ? round_to_bf16(v) : v);
    });
  }

  template <int C, int W, int X>
  static void dot() {
    if constexpr (kTurnsX) {
      Tiles::template dot<C, W, X>();
    } else {
      Tiles::template dot<C, X, W>();
    }
  }

  // 32 rows of x, or sixteen, and 32 outputs, steps k .. end - 1 of the part.
  template <bool kBoth>
  void meet(int64_t row, int64_t k, int64_t end, RowsAhead& ahead) {
    const uint16_t *left = panel_block(row), *right = panel_block(row + kBlock), *upper = x_,
                   *lower = x_ + kBlockWords * plan_.part;
    float* s = sums_ + row / kBlock * 2 * kSums;  // upper left, lower left, upper right, lower right
    constexpr int64_t kSumsLine = kBlock * sizeof(float);
    if (begin_ == 0 && k == 0) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      if constexpr (kBoth) Tiles::template zero<2>();
      if constexpr (kBoth) Tiles::template zero<3>();
    } else {
      Tiles::template load<0>(s, kSumsLine);
      Tiles::template load<1>(s + 2 * kSums, kSumsLine);
      if constexpr (kBoth) Tiles::template load<2>(s + kSums, kSumsLine);
      if constexpr (kBoth) Tiles::template load<3>(s + 3 * kSums, kSumsLine);
    }
    for (; k < end; ++k) {
      ahead.go();
      Tiles::template load<4>(left + k * kBlockWords, kLine);
      Tiles::template load<6>(upper + k * kBlockWords, kLine);
      Tiles::template load<5>(right + k * kBlockWords, kLine);
      dot<0, 4, 6>();
      dot<1, 5, 6>();
      if constexpr (kBoth) {
        Tiles::template load<7>(lower + k * kBlockWords, kLine);
        dot<2, 4, 7>();
        dot<3, 5, 7>();
      }
    }
    Tiles::template store<0>(s, kSumsLine);
    Tiles::template store<1>(s + 2 * kSums, kSumsLine);
    if constexpr (kBoth) Tiles::template store<2>(s + kSums, kSumsLine);
    if constexpr (kBoth) Tiles::template store<3>(s + 3 * kSums, kSumsLine);
  }

  const LinearCall& c_;
  const PanelPlan plan_;
  const ChunkOfRows<WeightFormat::kFp4> fp4_;
  uint16_t *x_, *panel_;
  float* sums_;
  uint32_t* losses_;
  uint8_t* scales_;
  int64_t first_ = 0, count_ = 0;  // outputs of the panel
  int64_t begin_ = 0, end_ = 0;    // steps of the part
};

template <class Tiles, WeightFormat F>
void amx_panels(const LinearCall& c, std::byte* scratch) {
  const int64_t panel = PanelPlan(c.w->cols).rows;
  if (c.x.n < (c.rows < panel ? c.rows : panel)) {
    AmxPanels<Tiles, F, true>(c, scratch).run();
  } else {
    AmxPanels<Tiles, F, false>(c, scratch).run();
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
