#include "tests/support/golden/stage_recorder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/config.h"
#include "numeric/quantize.h"

namespace deepinfer::testing {

using model::Stage;
using ops::Role;

void StageRecorder::start(const model::Sequence* sequence, int outputs) {
  outputs_ = outputs;
  sequence_ = sequence;
  stages_.clear();
  model_.observe([this](int layer, Stage stage, ops::Rows rows) { note(layer, stage, rows); });
}

void StageRecorder::stop() { model_.observe({}); }

std::vector<double> StageRecorder::read(Role role, int64_t n, int64_t cols) {
  const int64_t stride = model_.ops().buffer(role).cols;
  std::vector<double> all(n * stride);
  if (!model_.ops().read(role, 0, n, all).ok()) return {};
  if (cols == 0 || cols == stride) return all;
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.insert(out.end(), all.begin() + i * stride, all.begin() + i * stride + cols);
  return out;
}

void StageRecorder::note(int layer, Stage stage, ops::Rows rows) {
  const checkpoint::ModelConfig& c = model_.config();
  const int64_t n = model_.ops().row_count(rows);
  const bool draft = layer >= c.num_hidden_layers;
  const std::string name =
      draft ? "draft" + std::to_string(layer - c.num_hidden_layers) : "layer" + std::to_string(layer);
  switch (stage) {
    case Stage::kEmbedding: stages_["embedding"] = read(Role::kResidual, n, c.hidden_size); break;
    case Stage::kEngram: {
      const int64_t columns = c.engram_columns(), all = columns * static_cast<int64_t>(c.engram.size());
      const std::vector<double> ids = read(Role::kEngramRows, n);
      std::vector<double>& out = stages_[name + ".engram_rows"];
      for (int64_t i = 0; i < n; ++i) {
        const auto begin = ids.begin() + i * all + c.layers[layer].engram * columns;
        out.insert(out.end(), begin, begin + columns);
      }
      stages_[name + ".engram_gate"] = read(Role::kEngramGate, n);
      break;
    }
    case Stage::kProjected: projected(name, layer, n); break;
    case Stage::kGlobal: global(name, layer); break;
    case Stage::kSelected: selected(name, layer, n); break;
    case Stage::kHeads: stages_[name + ".attention_heads"] = read(Role::kHeads, n); break;
    case Stage::kAttentionOut: stages_[name + ".attention_out"] = read(Role::kSublayerOut, n); break;
    case Stage::kMoeIn: stages_[name + ".moe_in"] = read(Role::kSublayerIn, n); break;
    case Stage::kRouted: routed(name, layer, n); break;
    case Stage::kMoeOut: stages_[name + ".moe_out"] = read(Role::kSublayerOut, n); break;
    case Stage::kBlock:
      stages_[name + ".residual"] = read(Role::kResidual, n);
      stages_[name + ".pre"] = read(Role::kPre, n);
      break;
    case Stage::kTaps: stages_["main_hidden"] = read(Role::kTaps, n); break;
    case Stage::kHead: stages_["final_hidden"] = read(Role::kFinalHidden, outputs_); break;
  }
}

void StageRecorder::projected(const std::string& name, int layer, int64_t n) {
  const checkpoint::ModelConfig& c = model_.config();
  stages_[name + ".attention_in"] = read(Role::kSublayerIn, n);
  stages_[name + ".qr"] = read(Role::kQueryLow, n);
  const std::vector<double> records = read(Role::kWindowRecords, n);
  const size_t bytes = model_.kv_layout().window_bytes;
  std::vector<double>& entries = stages_[name + ".window_entry"];
  std::vector<uint8_t> record(bytes);
  std::vector<float> x(c.head_dim);
  for (int64_t i = 0; i < n; ++i) {
    for (size_t b = 0; b < bytes; ++b) record[b] = static_cast<uint8_t>(records[i * bytes + b]);
    if (model_.kv_layout().format.records == ops::KvFormat::Records::kPacked) {
      numeric::decode_window_record(record.data(), std::span<float>(x));
    } else {
      std::memcpy(x.data(), record.data(), bytes);
    }
    entries.insert(entries.end(), x.begin(), x.end());
  }
  if (layer < c.num_hidden_layers && c.layers[layer].owns_index()) {
    stages_[name + ".index_queries"] = read(Role::kIndexQuery, n);
    stages_[name + ".index_weights"] = read(Role::kIndexWeights, n);
  }
}

std::vector<double> StageRecorder::entry_values(int source, int64_t entry, bool key) {
  const ops::KvLayout& k = model_.kv_layout();
  const ops::KvSource& s = k.sources[source];
  const checkpoint::ModelConfig& c = model_.config();
  const std::byte* page = model_.kv_memory().pages + sequence_->blocks()[entry / s.page_entries] * k.page_stride;
  const int64_t at = entry % s.page_entries;
  std::vector<std::byte> bytes(k.page_stride);
  if (!model_.ops().kv_read(page, bytes).ok()) return {};
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  std::vector<float> x(key ? c.index_head_dim : c.head_dim);
  if (k.format.records == ops::KvFormat::Records::kRaw) {
    std::memcpy(x.data(), p + (key ? s.key_offset + at * k.key_data_bytes : s.entry_offset + at * k.entry_bytes),
                x.size() * sizeof(float));
  } else if (key) {
    numeric::fq4i_decode(p + s.key_offset + at * k.key_data_bytes, p + s.key_scale_offset + at * k.key_scale_bytes,
                         std::span<float>(x));
  } else {
    numeric::decode_entry_record(p + s.entry_offset + at * k.entry_bytes, std::span<float>(x));
  }
  return {x.begin(), x.end()};
}

void StageRecorder::global(const std::string& name, int layer) {
  const checkpoint::ModelConfig& c = model_.config();
  const int64_t n = model_.ops().row_count(ops::Rows::kEncoder), first = sequence_->size();
  const int ratio = c.layers[layer].ratio, source = model_.kv_layout().source_at(layer);
  const std::vector<double> latents = read(Role::kLatent, n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t position = first + i;
    if ((position + 1) % ratio != 0) continue;
    std::vector<double>& latent = stages_[name + ".latent"];
    latent.insert(latent.end(), latents.begin() + i * c.head_dim, latents.begin() + (i + 1) * c.head_dim);
    for (const bool key : {false, true}) {
      const std::vector<double> v = entry_values(source, position / ratio, key);
      std::vector<double>& out = stages_[name + (key ? ".index_keys" : ".entries")];
      out.insert(out.end(), v.begin(), v.end());
    }
  }
}

void StageRecorder::selected(const std::string& name, int layer, int64_t n) {
  const checkpoint::ModelConfig& c = model_.config();
  const checkpoint::LayerInfo& info = c.layers[layer];
  const int64_t first = sequence_->size(), entries = (first + n) / info.ratio;
  stages_[name + ".index_scores"] = read(Role::kIndexScores, n, entries);
  const std::vector<double> list = read(Role::kSelected, n);
  std::vector<double> mask(n * entries, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < c.index_topk && list[i * c.index_topk + k] >= 0; ++k)
      mask[i * entries + static_cast<int64_t>(list[i * c.index_topk + k])] = 1;
  }
  stages_[name + ".selected"] = mask;
  if (!info.publishes_candidates) return;
  const std::vector<double> blocks = read(Role::kCandidates, n);
  const int64_t size = c.candidate_block_size, keep = c.candidate_topk_blocks;
  std::vector<double> kept(n * entries, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t visible = (first + i + 1) / info.ratio;
    const auto take = [&](int64_t block) {
      for (int64_t g = block * size; g < std::min(entries, (block + 1) * size); ++g) kept[i * entries + g] = 1;
    };
    if (blocks[i * keep] < 0) {
      for (int64_t b = 0; b * size < visible; ++b) take(b);
    } else {
      for (int64_t b = 0; b < keep; ++b) take(static_cast<int64_t>(blocks[i * keep + b]));
    }
  }
  stages_[name + ".candidate_entries"] = kept;
}

void StageRecorder::routed(const std::string& name, int layer, int64_t n) {
  const int64_t k = model_.ops().experts_per_row(layer);
  const std::vector<double> ids = read(Role::kExpertIds, n, k), weights = read(Role::kExpertWeights, n, k);
  std::vector<double>&out_ids = stages_[name + ".experts"], &out_weights = stages_[name + ".expert_weights"];
  for (int64_t i = 0; i < n; ++i) {
    std::vector<std::pair<double, double>> row;
    for (int64_t e = i * k; e < (i + 1) * k; ++e) row.emplace_back(ids[e], weights[e]);
    std::sort(row.begin(), row.end());
    for (const auto& [id, weight] : row) {
      out_ids.push_back(id);
      out_weights.push_back(weight);
    }
  }
}

}  // namespace deepinfer::testing
