// Where every byte of KV memory lies: pages of global KV, and the state slot of a running sequence
// (spec/model.md 16.1, 16.2).
//
//   KvLayout layout = KvLayout::make(config, KvFormat{}, {.backtrack = 6});
//   std::byte* page = pages + page_id * layout.page_stride;
//   const KvSource& s = layout.sources[k];                       // k-th KV-source layer, ascending
//   int entry = position / s.ratio;                              // entry g of the sequence
//   int page_index = entry / s.page_entries, at = entry % s.page_entries;
//   record = page + s.entry_offset + at * layout.entry_bytes;    // e2m1 codes, then e4m3 scales
//   key    = page + s.key_offset + at * layout.key_data_bytes;
//   scales = page + s.key_scale_offset + at * layout.key_scale_bytes;
//
// A page holds kPageTokens tokens of all KV sources: per source its index keys (all data, then all scales), then its
// entries, each section padded to 32 bytes. A slot holds [window rings of the encoder half][window rings of the decoder
// half, then of the drafter stages][compressor rings of the ratio-2 sources]; ring slot = position mod ring size. Only
// the pages and the first part of a slot (encoder_bytes) may be kept in a cache; the rest is rebuilt (15.6).
//
//   full size, backtrack 6:  page_stride 114,048; window ring 134 slots x 528 bytes; slot_stride 3,128,928
//
// Limits: page and ring sizes follow from a checked config; make() cannot fail for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::checkpoint {
struct ModelConfig;
}

namespace deepinfer::ops {

inline constexpr int kPageTokens = 128;

// What the records hold. A backend names the format it works on in its Capabilities.
struct KvFormat {
  enum class Records : uint8_t {
    kPacked,  // the records of 16.1: FP8 window, FP4 entries and keys
    kRaw,     // fp32 channels, no scales: numeric mode `off` only
  };
  Records records = Records::kPacked;
  // Bytes of an element of a compressor ring: 4 (fp32, 16.2), or 8 where the open half group must keep double
  // precision.
  uint8_t compressor_element_bytes = 4;

  bool operator==(const KvFormat&) const = default;
};

struct KvRingSizes {
  int backtrack = 0;  // tokens that a sequence may be stepped back by: at least drafts + 1; 0 = drafts + 1 (11.4, 15.4)
  int history = 0;    // extra window slots, for engines that take snapshots behind the newest row (design.md 6)
};

// One KV-source layer's part of a page.
struct KvSource {
  int layer = 0;
  int ratio = 1;                 // tokens an entry
  int page_entries = 0;          // kPageTokens / ratio
  size_t key_offset = 0;         // index keys: page_entries x key_data_bytes
  size_t key_scale_offset = 0;   // then page_entries x key_scale_bytes
  size_t entry_offset = 0;       // entries: page_entries x entry_bytes
  size_t compressor_offset = 0;  // in the slot; ratio 2 only
};

struct KvLayout {
  static KvLayout make(const checkpoint::ModelConfig& config, KvFormat format, KvRingSizes rings = {});

  KvFormat format;
  int backtrack = 0;

  size_t window_bytes = 0;     // one window or drafter record: 528 at full size
  size_t entry_bytes = 0;      // one compressed entry: 288
  size_t key_data_bytes = 0;   // one index key without scales: 64
  size_t key_scale_bytes = 0;  // its scales: 4

  std::vector<KvSource> sources;  // ascending by layer
  size_t page_bytes = 0;          // used bytes of a page
  size_t page_stride = 0;

  int window_slots = 0;                // slots of every window ring: window + backtrack + history
  int compressor_slots = 0;            // slots of a compressor ring: 1 + backtrack (ratio 2)
  size_t compressor_slot_bytes = 0;    // [gate score, value][head_dim]
  std::vector<size_t> window_offsets;  // in the slot; layers 0..n-1, then drafter stages n..n+stages-1
  size_t encoder_bytes = 0;            // size of the part that may be cached
  size_t slot_bytes = 0;
  size_t slot_stride = 0;

  // Index into `sources` of the source at that layer; -1 if the layer is none.
  int source_at(int layer) const;
  // Pages that hold the global KV of `tokens` tokens.
  static int pages_for(int64_t tokens) { return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens); }
};

}  // namespace deepinfer::ops
