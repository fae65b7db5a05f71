// A few layers of the full-width model with random weights in host memory, for benchmarks of the CUDA backend's stages:
// all matrices are views of one pool at different places, so that gigabytes of distinct device copies need half a
// gigabyte on the host.
//
//   Synthetic model(experts);
//   backend->load(model.config(), model.weights(), limits);
//
// Layer 0: window only; layer 1: KV and index source (8 experts each); layers 2 and 3 take layer 1's selection and have
// `experts` experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/cuda/full_width.h"
#include "checkpoint/config.h"
#include "ops/weights.h"

namespace bench {

class Synthetic {
 public:
  using Matrix = deepinfer::ops::Matrix;
  using WeightFormat = deepinfer::ops::WeightFormat;
  static constexpr int kLayers = 4, kFirstReuse = 2;

  explicit Synthetic(int experts)
      : codes_(kPool), bf16_(kPool), scales_(kPool / 16), floats_(kFloats), ones_(kFloats, 1.0f) {
    uint64_t s = 1;
    const auto word = [&s] {
      s = s * 6364136223846793005u + 1442695040888963407u;
      return static_cast<uint32_t>(s >> 32);
    };
    // FP8 below 2 (no NaN), bf16 in +-2^-6 .. 2^-5, scales such that outputs are about 1, small fp32.
    for (size_t i = 0; i < kPool; i += 4) *reinterpret_cast<uint32_t*>(&codes_[i]) = word() & 0xbfbfbfbfu;
    for (size_t i = 0; i < kPool; i += 4)
      *reinterpret_cast<uint32_t*>(&bf16_[i]) = (word() & 0x807f807fu) | 0x3c803c80u;
    for (uint8_t& x : scales_) x = static_cast<uint8_t>(120 + word() % 2);
    for (float& x : floats_) x = (static_cast<float>(word()) * 0x1p-32f - 0.5f) * 0.02f;

    config_ = full_width(kLayers, experts);
    weights_.embed = matrix(WeightFormat::kBf16, config_.vocab_size, config_.hidden_size);
    weights_.head = matrix(WeightFormat::kBf16, config_.vocab_size, config_.hidden_size);
    weights_.norm = vector(config_.hidden_size);
    weights_.token_classes.assign(static_cast<size_t>(config_.vocab_size), 0);
    for (int l = 0; l < kLayers; ++l) weights_.layers.push_back(layer(l, l < kFirstReuse ? 8 : experts));
  }
  Synthetic(const Synthetic&) = delete;
  const deepinfer::checkpoint::ModelConfig& config() const { return config_; }
  const deepinfer::ops::ModelWeights& weights() const { return weights_; }

 private:
  static constexpr size_t kPool = size_t{256} << 20, kFloats = size_t{1} << 20;

  Matrix matrix(WeightFormat format, int64_t rows, int64_t cols) {
    const auto n = static_cast<size_t>(rows * cols);
    const std::vector<uint8_t>& from = format == WeightFormat::kBf16 ? bf16_ : codes_;
    const size_t bytes = format == WeightFormat::kBf16 ? 2 * n : format == WeightFormat::kFp4 ? n / 2 : n;
    const size_t at = place(from.size() - bytes), scale_at = place(scales_.size() / 2);
    return {format, rows, cols, reinterpret_cast<const std::byte*>(from.data() + at),
            reinterpret_cast<const std::byte*>(scales_.data() + scale_at)};
  }
  Matrix vector(int64_t n) {
    return {WeightFormat::kF32, 1, n, reinterpret_cast<const std::byte*>(ones_.data()), nullptr};
  }
  Matrix f32(int64_t rows, int64_t cols) {
    return {WeightFormat::kF32, rows, cols, reinterpret_cast<const std::byte*>(floats_.data()), nullptr};
  }
  size_t place(size_t range) {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return (seed_ >> 20) % (range + 1) / 256 * 256;
  }
  deepinfer::ops::ExpertWeights expert(WeightFormat f) {
    const int64_t d = config_.hidden_size, inter = config_.moe_intermediate_size;
    return {matrix(f, inter, d), matrix(f, inter, d), matrix(f, d, inter)};
  }
  deepinfer::ops::LayerWeights layer(int l, int experts) {
    const auto& c = config_;
    const int64_t D = c.hidden_size, heads = c.num_attention_heads, d = c.head_dim;
    const WeightFormat f8 = WeightFormat::kFp8, b16 = WeightFormat::kBf16;
    deepinfer::ops::LayerWeights w;
    w.attn_norm = w.ffn_norm = vector(D);
    w.hc_attn = w.hc_ffn = {f32(c.hc_coefficients(), c.hc_width()), f32(1, c.hc_coefficients()), vector(3)};
    w.attention = {f32(1, heads),
                   matrix(f8, c.q_lora_rank, D),
                   vector(c.q_lora_rank),
                   matrix(f8, heads * d, c.q_lora_rank),
                   matrix(f8, d, D),
                   vector(d),
                   matrix(f8, c.o_groups * c.o_lora_rank, c.group_input()),
                   matrix(f8, D, c.o_groups * c.o_lora_rank)};
    if (c.layers[static_cast<size_t>(l)].owns_kv()) {
      w.compressor = {matrix(b16, d, D), {}, vector(d)};
      w.indexer = {matrix(b16, c.index_head_dim, d), vector(c.index_head_dim),
                   matrix(f8, c.index_n_heads * c.index_head_dim, c.q_lora_rank), matrix(b16, c.index_n_heads, D)};
    }
    w.moe.gate = matrix(b16, experts, D);
    w.moe.bias = w.moe.bias_vl = f32(1, experts);
    w.moe.shared = expert(f8);
    for (int e = 0; e < experts; ++e) w.moe.experts.push_back(expert(WeightFormat::kFp4));
    return w;
  }

  std::vector<uint8_t> codes_, bf16_, scales_;
  std::vector<float> floats_, ones_;
  deepinfer::checkpoint::ModelConfig config_;
  deepinfer::ops::ModelWeights weights_;
  uint64_t seed_ = 7;
};

}  // namespace bench
