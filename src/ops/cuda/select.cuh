// What the files of the indexer share: arguments, keys that order like scores, and the entries of a row
// (spec/model.md 8). Internal to select.cu and select_wide.cu.
#pragma once

#include "ops/cuda/common.cuh"

namespace deepinfer::ops::cuda {

// A bf16 score as an unsigned key that orders like it; +0 and -0 are one key. 0 stands for "not there".
__device__ __forceinline__ uint16_t ordered_key(bf16 x) {
  const uint16_t b = __bfloat16_as_ushort(x);
  if ((b & 0x7fff) == 0) return 0x8000;
  return b & 0x8000 ? static_cast<uint16_t>(~b) : static_cast<uint16_t>(b | 0x8000);
}
inline constexpr uint16_t kPinned = 0xff80;                  // +infinity
inline constexpr uint16_t kLargestFinite = 0x7f7f | 0x8000;  // 8.4: block maxima are capped there

struct ScoreArguments {
  RowView v;
  const bf16 *q, *weights;
  const std::byte* pages;
  const int32_t* candidates;  // null: all visible entries
  uint16_t* keys;             // [rows of this launch][columns], 16-byte aligned rows
  uint16_t* maxima;           // [rows of this launch][maxima_columns], likewise: keys of candidate blocks
  float* scores;              // kept scores, or null
  int32_t *selected, *kept;   // out: [rows][topk]; [rows][candidate_blocks], or null
  int64_t page_stride, key_offset, key_scale_offset, columns, maxima_columns, score_columns;
  // shifts: log2 of entries
  int first_row, page_shift, key_data_bytes, key_scale_bytes, heads, ratio, topk, candidate_blocks, candidate_size,
      candidate_shift;
};

// Entries that a row scores: all visible ones, or those of its candidate blocks laid back to back.
struct Scored {
  int visible, count;
  const int32_t* blocks;  // null: identity

  __device__ Scored(const ScoreArguments& a, int row) {
    visible = count = (a.v.positions[row] + 1) / a.ratio;
    blocks = nullptr;
    if (a.candidates == nullptr) return;
    const int32_t* kept = a.candidates + static_cast<int64_t>(row) * a.candidate_blocks;
    if (kept[0] < 0) return;
    blocks = kept;
    // The newest block is always kept and may be a partial one.
    count = (a.candidate_blocks - 1) * a.candidate_size + visible - kept[a.candidate_blocks - 1] * a.candidate_size;
    count = min(count, a.candidate_blocks * a.candidate_size);
  }
  __device__ int entry(int i, int shift) const {
    return blocks == nullptr ? i : (blocks[i >> shift] << shift) + (i & ((1 << shift) - 1));
  }
};

// Index heads of 128 channels, at most 32: scores and selection in one kernel, `rows` rows from first_row on.
// Candidate blocks and the entries of a page: powers of two, blocks of 8 to 64, pages of 64 or more.
// multiprocessors: of the GPU; a row is shared by as many CTAs as that leaves.
bool select_wide_fits(const ScoreArguments& a);
void select_wide(const ScoreArguments& a, int rows, int multiprocessors, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
