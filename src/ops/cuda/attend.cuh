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

// A row attends to keys 0 .. total - 1: its window, oldest first, then its selected entries.
struct KeyList {
  SequenceRows s;
  int begin, in_window, total;
  const int32_t* selected;

  __device__ KeyList(const AttendArguments& a, int row) : s(a.v.sequences[a.v.sequence[row]]) {
    const int position = a.v.positions[row];
    selected = a.selected + static_cast<int64_t>(row) * a.topk;
    int entries = a.ratio > 0 ? min((position + 1) / a.ratio, a.topk) : 0;
    while (entries > 0 && selected[entries - 1] < 0) --entries;  // candidates may leave fewer
    const int newest = a.draft ? s.first_position - 1 : position,
              last = a.draft ? s.first_position + s.rows - 1 : newest;
    begin = max(0, max(s.window_begin, newest - a.window + 1));
    in_window = last - begin + 1;
    total = in_window + entries;
  }
  __device__ const uint8_t* window_record(const AttendArguments& a, int k) const {
    const int p = begin + k;
    return p >= s.first_position ? a.records + static_cast<int64_t>(s.first_row + p - s.first_position) * a.record_bytes
                                 : reinterpret_cast<const uint8_t*>(a.slots + s.slot * a.slot_stride + a.ring_offset) +
                                       static_cast<int64_t>(p % a.ring_slots) * a.record_bytes;
  }
  __device__ const uint8_t* entry_record(const AttendArguments& a, int entry) const {
    return reinterpret_cast<const uint8_t*>(
               a.pages + static_cast<int64_t>(a.v.blocks[s.first_block + (entry >> a.page_shift)]) * a.page_stride +
               a.entry_offset) +
           static_cast<int64_t>(entry & ((1 << a.page_shift) - 1)) * a.entry_bytes;
  }
  __device__ const uint8_t* record(const AttendArguments& a, int k) const {
    return k < in_window ? window_record(a, k) : entry_record(a, selected[k - in_window]);
  }
};

// head_dim 512 (attend_wide.cu). Keys of a row at most kWideKeys; records 16-byte aligned.
inline constexpr int kWideDim = 512, kWideKeys = 640;
void attend_wide(const AttendArguments& a, int rows, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
