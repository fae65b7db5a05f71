// What both attention cores share: arguments, and the list of a row's keys (spec/model.md 6.3, 6.4, 11.3).
#pragma once

#include "ops/cuda/common.cuh"

namespace deepinfer::ops::cuda {

struct AttendArguments {
  RowView v;
  const bf16* q;
  const uint8_t* records;  // this step's window records
  const std::byte* slots;
  const std::byte* pages;
  const int32_t* selected;
  const float* sink;
  bf16* out;
  int64_t slot_stride, ring_offset, page_stride, entry_offset;
  // page_shift: log2 of the entries of a page
  int heads, window, ring_slots, record_bytes, page_shift, entry_bytes, topk, ratio;
  bool draft;
  float scale;
};

// A row's keys: its window, oldest first, then at most `limit` selected entries. The window is known from what the host
// gave for the step.
struct RowKeys {
  SequenceRows s;
  int begin, in_window, limit;
  const int32_t* selected;

  __device__ __forceinline__ RowKeys(const AttendArguments& a, int row) : s(a.v.sequences[a.v.sequence[row]]) {
    const int position = a.v.positions[row];
    selected = a.selected + static_cast<int64_t>(row) * a.topk;
    limit = a.ratio > 0 ? min((position + 1) / a.ratio, a.topk) : 0;
    const int newest = a.draft ? s.first_position - 1 : position,
              last = a.draft ? s.first_position + s.rows - 1 : newest;
    begin = max(0, max(s.window_begin, newest - a.window + 1));
    in_window = last - begin + 1;
  }
  // Candidates may leave fewer entries than the limit.
  __device__ __forceinline__ int entries() const {
    int n = limit;
    while (n > 0 && selected[n - 1] < 0) --n;
    return n;
  }
  __device__ __forceinline__ const uint8_t* window_record(const AttendArguments& a, int k) const {
    const int p = begin + k;
    return p >= s.first_position ? a.records + static_cast<int64_t>(s.first_row + p - s.first_position) * a.record_bytes
                                 : reinterpret_cast<const uint8_t*>(a.slots + s.slot * a.slot_stride + a.ring_offset) +
                                       static_cast<int64_t>(p % a.ring_slots) * a.record_bytes;
  }
  __device__ __forceinline__ int block(const AttendArguments& a, int entry) const {
    return a.v.blocks[s.first_block + (entry >> a.page_shift)];
  }
  // block: the entry's.
  __device__ __forceinline__ const uint8_t* entry_record(const AttendArguments& a, int entry, int block) const {
    return reinterpret_cast<const uint8_t*>(a.pages + static_cast<int64_t>(block) * a.page_stride + a.entry_offset) +
           static_cast<int64_t>(entry & ((1 << a.page_shift) - 1)) * a.entry_bytes;
  }
};

// Keys 0 .. total - 1.
struct KeyList : RowKeys {
  int total;

  __device__ KeyList(const AttendArguments& a, int row) : RowKeys(a, row), total(in_window + entries()) {}
  __device__ const uint8_t* record(const AttendArguments& a, int k) const {
    if (k < in_window) return window_record(a, k);
    const int entry = selected[k - in_window];
    return entry_record(a, entry, block(a, entry));
  }
};

// head_dim 512. Keys of a row at most kWideKeys; records 16-byte aligned. attend_wide() takes the way that is fastest
// for so many rows; attend_many() (attend_many.cu) gives the same bits for any number of rows, and is the fastest while
// groups of 64 heads of all rows are at most attend_many_at_once().
inline constexpr int kWideDim = 512, kWideKeys = 640;
void attend_wide(const AttendArguments& a, int rows, cudaStream_t stream);
void attend_many(const AttendArguments& a, int rows, cudaStream_t stream);
int attend_many_at_once();

}  // namespace deepinfer::ops::cuda
