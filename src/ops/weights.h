// Views of a checkpoint's weights, ordered by layer, as a backend receives them (spec/model.md 13). Nothing is owned or
// copied: the addresses point into the mapped checkpoint, which outlives the backend. A backend may keep copies of its
// own (device memory, another order inside a tile); formats stay as published.
//
// Tensors a layer does not have are empty (data == nullptr). So are the experts and tables that a WeightStore holds:
// their formats and sizes are there, their bytes come through `store` when a step needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace deepinfer::checkpoint {
class WeightStore;
}

namespace deepinfer::ops {

enum class WeightFormat : uint8_t {
  kF32,      // scales none
  kBf16,     // scales none
  kFp8,      // e4m3 [rows, cols]; ue8m0 [ceil(rows / 32), cols / 32]
  kFp8Rows,  // e4m3 [rows, cols]; ue8m0 [rows, cols / 32]   (Engram tables)
  kFp4,      // e2m1 [rows, cols / 2] packed, even column in the low nibble; ue8m0 [rows, cols / 32]
};

// A matrix [rows, cols] (y = M x), or a vector (rows = 1), row-major.
struct Matrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scale = nullptr;
  const std::byte* lanes = nullptr;  // a backend's own copy in an order of its own, where it keeps one

  explicit operator bool() const { return data != nullptr; }
};

// Mix of a sublayer (5.3).
struct HyperWeights {
  Matrix fn, base, scale;  // F32 [2C + C*C, C*D], [2C + C*C], [3]
};

struct ExpertWeights {
  Matrix gate, up, down;  // w1, w3, w2
};

struct MoeWeights {
  Matrix gate, bias, bias_vl;  // router
  ExpertWeights shared;
  std::vector<ExpertWeights> experts;
};

struct AttentionWeights {
  Matrix sink, wq_a, q_norm, wq_b, wkv, kv_norm, wo_a, wo_b;
};

struct CompressorWeights {
  Matrix wkv, wgate, norm;  // KV sources; wgate for ratio 2 only
};

struct IndexerWeights {
  Matrix wk, k_norm;          // KV sources
  Matrix wq_b, weights_proj;  // index sources
};

struct EngramWeights {
  Matrix table, wkv, q_weight, k_weight;
};

struct LayerWeights {
  Matrix attn_norm, ffn_norm;
  HyperWeights hc_attn, hc_ffn;
  AttentionWeights attention;
  CompressorWeights compressor;
  IndexerWeights indexer;
  MoeWeights moe;
  EngramWeights engram;
};

struct ModelWeights {
  Matrix embed, norm, head;
  Matrix image_start, image_newline, image_end;
  std::vector<LayerWeights> layers;  // backbone 0..n-1, then the drafter's stages
  Matrix main_proj, main_norm, draft_norm, markov_embed, markov_head, confidence;  // drafter (11.1)
  std::vector<int32_t> token_classes;  // Engram class of every token id (10.1)
  // Null: all weights are at the addresses above. Else the experts of all layers are read through store->experts(), and
  // the embedding and the Engram tables without an address through store->rows().
  std::shared_ptr<checkpoint::WeightStore> store;
};

}  // namespace deepinfer::ops
