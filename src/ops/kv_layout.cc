#include "ops/kv_layout.h"

#include <numeric>

#include "checkpoint/config.h"
#include "numeric/quantize.h"

namespace deepinfer::ops {
namespace {

constexpr size_t kSectionAlign = 32;

static_assert(kPageTokens == checkpoint::kBlockTokens);

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

KvLayout KvLayout::make(const checkpoint::ModelConfig& c, KvFormat format, KvRingSizes rings) {
  KvLayout k;
  k.format = format;
  k.backtrack = rings.backtrack > 0 ? rings.backtrack : static_cast<int>(c.dspark_block_size) + 1;
  const auto d = static_cast<size_t>(c.head_dim), di = static_cast<size_t>(c.index_head_dim);
  if (format.records == KvFormat::Records::kPacked) {
    k.window_bytes = numeric::window_record_bytes(d);
    k.entry_bytes = numeric::entry_record_bytes(d);
    k.key_data_bytes = di / 2;
    k.key_scale_bytes = di / numeric::kFq4iGroup;
  } else {
    k.window_bytes = k.entry_bytes = d * sizeof(float);
    k.key_data_bytes = di * sizeof(float);
  }

  size_t at = 0;
  for (const checkpoint::LayerInfo& layer : c.layers) {
    if (!layer.owns_kv()) continue;
    KvSource s;
    s.layer = layer.id;
    s.ratio = layer.ratio;
    s.page_entries = kPageTokens / layer.ratio;
    s.key_offset = at;
    s.key_scale_offset = at + s.page_entries * k.key_data_bytes;
    at = round_up(s.key_scale_offset + s.page_entries * k.key_scale_bytes, kSectionAlign);
    s.entry_offset = at;
    at = round_up(at + s.page_entries * k.entry_bytes, kSectionAlign);
    k.sources.push_back(s);
  }
  k.page_bytes = at;
  k.page_stride = round_up(at, std::lcm(size_t{128}, k.entry_bytes));

  k.window_slots = static_cast<int>(c.sliding_window) + k.backtrack + rings.history;
  k.compressor_slots = 1 + k.backtrack;
  k.compressor_slot_bytes = 2 * d * format.compressor_element_bytes;
  const size_t ring_bytes = round_up(k.window_slots * k.window_bytes, kSectionAlign);
  const int rings_total = static_cast<int>(c.num_hidden_layers + c.num_nextn_predict_layers);
  at = 0;
  for (int l = 0; l < rings_total; ++l, at += ring_bytes) k.window_offsets.push_back(at);
  k.encoder_bytes = c.decoder_start * ring_bytes;
  for (KvSource& s : k.sources) {
    if (s.ratio < 2) continue;
    s.compressor_offset = at;
    at += k.compressor_slots * k.compressor_slot_bytes;
  }
  k.slot_bytes = at;
  k.slot_stride = round_up(at, std::lcm(kSectionAlign, k.window_bytes));
  return k;
}

int KvLayout::source_at(int layer) const {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].layer == layer) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace deepinfer::ops
