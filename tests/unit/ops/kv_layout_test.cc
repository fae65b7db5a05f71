// Sizes and offsets that spec/model.md 16.2 states for the official model, and the rules behind them for a small one.
#include "ops/kv_layout.h"

#include <gtest/gtest.h>

#include "checkpoint/config.h"

namespace deepinfer::ops {
namespace {

TEST(KvLayout, OfficialPage) {
  const KvLayout k = KvLayout::make(checkpoint::official_config(), {}, {});
  EXPECT_EQ(k.backtrack, 6);
  EXPECT_EQ(k.window_bytes, 528u);
  EXPECT_EQ(k.entry_bytes, 288u);
  EXPECT_EQ(k.key_data_bytes, 64u);
  EXPECT_EQ(k.key_scale_bytes, 4u);
  ASSERT_EQ(k.sources.size(), 4u);
  const size_t key_offsets[] = {0, 22784, 45568, 68352}, entry_offsets[] = {4352, 27136, 49920, 77056};
  const int layers[] = {2, 8, 14, 20};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(k.sources[i].layer, layers[i]);
    EXPECT_EQ(k.source_at(layers[i]), i);
    EXPECT_EQ(k.sources[i].ratio, i < 3 ? 2 : 1);
    EXPECT_EQ(k.sources[i].page_entries, i < 3 ? 64 : 128);
    EXPECT_EQ(k.sources[i].key_offset, key_offsets[i]);
    EXPECT_EQ(k.sources[i].key_scale_offset, key_offsets[i] + (i < 3 ? 64 : 128) * 64);
    EXPECT_EQ(k.sources[i].entry_offset, entry_offsets[i]);
  }
  EXPECT_EQ(k.source_at(3), -1);
  EXPECT_EQ(k.page_bytes, 113920u);
  EXPECT_EQ(k.page_stride, 114048u);
}

TEST(KvLayout, OfficialSlot) {
  const KvLayout six = KvLayout::make(checkpoint::official_config(), {}, {.backtrack = 6});
  EXPECT_EQ(six.window_slots, 134);
  EXPECT_EQ(six.compressor_slots, 7);
  EXPECT_EQ(six.window_offsets.size(), 43u);
  EXPECT_EQ(six.window_offsets[1], 70752u);
  EXPECT_EQ(six.encoder_bytes, 1415040u);
  EXPECT_EQ(six.slot_stride, 3128928u);
  const KvLayout twelve = KvLayout::make(checkpoint::official_config(), {}, {.backtrack = 12});
  EXPECT_EQ(twelve.window_slots, 140);
  EXPECT_EQ(twelve.compressor_slots, 13);
  EXPECT_EQ(twelve.slot_stride, 3339072u);
}

TEST(KvLayout, PartsDoNotOverlap) {
  for (const KvFormat format :
       {KvFormat{}, KvFormat{KvFormat::Records::kPacked, 8}, KvFormat{KvFormat::Records::kRaw, 8}}) {
    const checkpoint::ModelConfig c = checkpoint::tiny_config();
    const KvLayout k = KvLayout::make(c, format, {.backtrack = 6, .history = 130});
    size_t at = 0;
    for (const KvSource& s : k.sources) {
      EXPECT_GE(s.key_offset, at);
      EXPECT_EQ(s.key_scale_offset, s.key_offset + s.page_entries * k.key_data_bytes);
      EXPECT_GE(s.entry_offset, s.key_scale_offset + s.page_entries * k.key_scale_bytes);
      at = s.entry_offset + s.page_entries * k.entry_bytes;
    }
    EXPECT_LE(at, k.page_bytes);
    EXPECT_EQ(k.window_slots, c.sliding_window + 6 + 130);
    at = 0;
    for (const size_t offset : k.window_offsets) {
      EXPECT_GE(offset, at);
      EXPECT_EQ(offset % 32, 0u);
      at = offset + k.window_slots * k.window_bytes;
    }
    for (const KvSource& s : k.sources) {
      if (s.ratio == 1) continue;
      EXPECT_GE(s.compressor_offset, at);
      EXPECT_EQ(s.compressor_offset % 8, 0u);
      at = s.compressor_offset + k.compressor_slots * k.compressor_slot_bytes;
    }
    EXPECT_LE(at, k.slot_stride);
  }
}

}  // namespace
}  // namespace deepinfer::ops
