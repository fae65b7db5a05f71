// Random weights that any program can make again from a seed and the tensor's name (spec/model.md 19.4).
//
//   RandomTensor t(41, spec);                                // spec: one entry of expected_tensors(config)
//   std::vector<std::byte> data(t.row_bytes() * t.rows()), scales(t.scale_bytes());
//   t.fill(0, t.rows(), data.data(), scales.data());         // stored bytes of all rows, little-endian, row-major
//
// Elements depend on seed, name and position only, so rows can be filled in any order and by any thread.
// row_begin is a multiple of kBandRows, row_end too unless it is rows().
// Beyond 19.4, which names no vision tensors: norm1.weight and norm2.weight count as norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/tensors.h"

namespace deepinfer::checkpoint {

uint64_t fnv1a(std::string_view name);
uint64_t splitmix(uint64_t z);  // the mix(z) of 19.4

class RandomTensor {
 public:
  static constexpr int64_t kBandRows = 32;  // rows that share FP8 scales

  RandomTensor(uint64_t seed, const TensorSpec& spec);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }  // of the logical shape
  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t scale_bytes() const { return scale_bytes_; }                  // of the whole tensor; 0 without a scale
  uint64_t scale_offset(int64_t row_begin) const;                        // of the scales of a band within them

  // data: (row_end - row_begin) * row_bytes(); scales: those of these rows, ignored where the format has none.
  void fill(int64_t row_begin, int64_t row_end, std::byte* data, std::byte* scales) const;

  // Element values before storage, rows row_begin .. row_end - 1.
  void values(int64_t row_begin, int64_t row_end, float* out) const;

 private:
  uint64_t key_;
  Format format_;
  int64_t rows_;
  int64_t columns_;
  float factor_;
  float mean_;
  bool zero_row_7_;
  bool engram_table_;
  uint64_t row_bytes_;
  uint64_t scale_bytes_;
};

}  // namespace deepinfer::checkpoint
