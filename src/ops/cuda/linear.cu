// Linear layers: which kernel takes a problem.
#include "ops/cuda/linear.h"

#include <cassert>

#include "ops/cuda/problem.cuh"

namespace deepinfer::ops::cuda {
namespace {

void dispatch(const LinearWeights& w, Problem p, const LinearOutput& y, int tokens_per_tile, int token_tiles,
              cudaStream_t stream, bool wide = false) {
  p.token_tiles = token_tiles;
  p.codes = static_cast<const uint8_t*>(w.codes);
  p.scales = w.scales;
  p.n = w.n;
  p.k = w.k;
  assert(w.k % kChunk == 0);
  p.chunks = w.k / kChunk;
  p.quarter = p.chunks <= kWholeChunks ? p.chunks : (p.chunks + kQuarters - 1) / kQuarters;
  p.codes_stride = w.codes_stride;
  p.scales_stride = w.scales_stride;
  p.y = y.data;
  p.y_stride = y.stride != 0 ? y.stride : w.n;
  assert(w.format == WeightFormat::kFp8 || w.format == WeightFormat::kFp4 || w.format == WeightFormat::kBf16);
  if (wide) return multiply_wide(y.type, tokens_per_tile, p, stream);
  tokens_per_tile <= kStreamRows ? multiply_few(w.format, y.type, tokens_per_tile, p, stream)
                                 : multiply_many(w.format, y.type, tokens_per_tile, p, stream);
}

int tile_tokens(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

}  // namespace

void linear(const LinearWeights& w, const void* packed, int rows, const LinearOutput& y, cudaStream_t stream) {
  linear_batched(w, 1, packed, rows, 0, y, 0, stream);
}

void linear_batched(const LinearWeights& w, int count, const void* packed, int rows, int packed_rows,
                    const LinearOutput& y, int64_t y_between, cudaStream_t stream) {
  Problem p{};
  p.packed = static_cast<const uint8_t*>(packed);
  p.rows = rows;
  const int wide = w.format == WeightFormat::kFp8 ? wide_tokens(w.n, w.k, count, rows) : 0,
            tokens = wide > 0 ? wide : tile_tokens(rows);
  p.tiles_each = (rows + tokens - 1) / tokens;
  p.group_rows = packed_rows;
  p.y_group = y_between;
  dispatch(w, p, y, tokens, count * p.tiles_each, stream, wide > 0);
}

void linear_grouped(const LinearWeights& w, const void* packed, const GroupTile* tiles, const int32_t* tile_count,
                    int max_tiles, int rows_per_tile, const LinearOutput& y, cudaStream_t stream, const int32_t* y_rows,
                    const int32_t* x_rows) {
  assert(x_rows == nullptr || (w.format == WeightFormat::kFp4 && rows_per_tile <= kStreamRows));
  Problem p{};
  p.packed = static_cast<const uint8_t*>(packed);
  p.tiles = tiles;
  p.tile_count = tile_count;
  p.y_rows = y_rows;
  p.x_rows = x_rows;
  dispatch(w, p, y, rows_per_tile, max_tiles, stream);
}

}  // namespace deepinfer::ops::cuda
