#include "checkpoint/tensors.h"

#include <fmt/format.h>

namespace deepinfer::checkpoint {
namespace {

uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t n = 1;
  for (int64_t d : shape) n *= static_cast<uint64_t>(d);
  return n;
}

class List {
 public:
  explicit List(const ModelConfig& config) : c_(config) {}

  std::vector<TensorSpec> take() && { return std::move(tensors_); }

  void globals_before() {
    add("embed.weight", {c_.vocab_size, c_.hidden_size}, Format::kBF16, Group::kEmbedding);
    for (const char* name : {"image_start", "image_newline", "image_end"})
      add(name, {c_.hidden_size}, Format::kBF16, Group::kEmbedding);
  }

  void globals_after() {
    add("norm.weight", {c_.hidden_size}, Format::kBF16, Group::kHead);
    add("head.weight", {c_.vocab_size, c_.hidden_size}, Format::kBF16, Group::kHead);
  }

  void layer(const LayerInfo& info) {
    layer_ = info.id;
    prefix_ = fmt::format("layers.{}.", info.id);
    common(Group::kAttention);
    if (info.owns_kv()) kv_source(info.ratio);
    if (info.owns_index()) index_source();
    ffn(c_.n_routed_experts, Group::kSharedExperts, Group::kRoutedExperts);
    if (info.engram >= 0) engram(c_.engram[static_cast<size_t>(info.engram)]);
    leave();
  }

  void drafter() {
    if (!c_.has_drafter()) return;
    for (int64_t stage = 0; stage < c_.num_nextn_predict_layers; ++stage) {
      layer_ = static_cast<int>(stage);
      prefix_ = fmt::format("mtp.{}.", stage);
      common(Group::kDrafter);
      ffn(c_.dspark_n_routed_experts, Group::kDrafter, Group::kDrafterExperts);
      leave();
    }
    const int64_t D = c_.hidden_size;
    const std::string last = fmt::format("mtp.{}.", c_.num_nextn_predict_layers - 1);
    add("mtp.0.main_proj.weight", {D, D * static_cast<int64_t>(c_.dspark_target_layer_ids.size())}, Format::kFp8,
        Group::kDrafter);
    add("mtp.0.main_norm.weight", {D}, Format::kBF16, Group::kDrafter);
    add(last + "norm.weight", {D}, Format::kBF16, Group::kDrafter);
    add(last + "markov_head.embed.weight", {c_.vocab_size, c_.dspark_markov_rank}, Format::kBF16, Group::kDrafter);
    add(last + "markov_head.head.weight", {c_.vocab_size, c_.dspark_markov_rank}, Format::kBF16, Group::kDrafter);
    add(last + "confidence_head.proj.weight", {1, D + c_.dspark_markov_rank}, Format::kBF16, Group::kDrafter);
  }

  void vision() {
    if (!c_.vision) return;
    const VisionConfig& v = *c_.vision;
    const int64_t dim = v.hidden_size, cell = v.downsample_ratio * v.downsample_ratio * dim;
    const auto bf16 = [&](const std::string& name, std::vector<int64_t> shape) {
      add(name, std::move(shape), Format::kBF16, Group::kVision);
    };
    bf16("vision.patch_embed.proj.weight", {dim, 3 * v.patch_size * v.patch_size});
    bf16("vision.patch_embed.proj.bias", {dim});
    for (int64_t b = 0; b < v.num_hidden_layers; ++b) {
      const std::string p = fmt::format("vision.blocks.{}.", b);
      bf16(p + "norm1.weight", {dim});
      bf16(p + "norm2.weight", {dim});
      bf16(p + "attn.wqkv.weight", {3 * dim, dim});
      bf16(p + "attn.wqkv.bias", {3 * dim});
      bf16(p + "attn.wo.weight", {dim, dim});
      bf16(p + "attn.wo.bias", {dim});
      bf16(p + "mlp.w1.weight", {2 * v.intermediate_size, dim});
      bf16(p + "mlp.w2.weight", {dim, v.intermediate_size});
    }
    bf16("vision.norm.weight", {dim});
    bf16("aligner.w1.weight", {c_.hidden_size, cell});
    bf16("aligner.w1.bias", {c_.hidden_size});
    bf16("aligner.w2.weight", {c_.hidden_size, c_.hidden_size});
    bf16("aligner.w2.bias", {c_.hidden_size});
  }

 private:
  void add(std::string_view name, std::vector<int64_t> shape, Format format, Group group) {
    tensors_.push_back({prefix_ + std::string(name), std::move(shape), format, group, layer_});
  }

  void leave() {
    prefix_.clear();
    layer_ = -1;
  }

  void common(Group group) {
    const int64_t D = c_.hidden_size, d = c_.head_dim, H = c_.num_attention_heads;
    add("attn_norm.weight", {D}, Format::kBF16, group);
    add("ffn_norm.weight", {D}, Format::kBF16, group);
    for (const char* part : {"attn", "ffn"}) {
      add(fmt::format("hc_{}_fn", part), {c_.hc_coefficients(), c_.hc_width()}, Format::kF32, group);
      add(fmt::format("hc_{}_base", part), {c_.hc_coefficients()}, Format::kF32, group);
      add(fmt::format("hc_{}_scale", part), {3}, Format::kF32, group);
    }
    add("attn.attn_sink", {H}, Format::kF32, group);
    add("attn.wq_a.weight", {c_.q_lora_rank, D}, Format::kFp8, group);
    add("attn.q_norm.weight", {c_.q_lora_rank}, Format::kBF16, group);
    add("attn.wq_b.weight", {H * d, c_.q_lora_rank}, Format::kFp8, group);
    add("attn.wkv.weight", {d, D}, Format::kFp8, group);
    add("attn.kv_norm.weight", {d}, Format::kBF16, group);
    add("attn.wo_a.weight", {c_.o_groups * c_.o_lora_rank, c_.group_input()}, Format::kFp8, group);
    add("attn.wo_b.weight", {D, c_.o_groups * c_.o_lora_rank}, Format::kFp8, group);
  }

  void kv_source(int ratio) {
    const int64_t D = c_.hidden_size, d = c_.head_dim;
    add("attn.compressor.wkv.weight", {d, D}, Format::kBF16, Group::kAttention);
    if (ratio > 1) add("attn.compressor.wgate.weight", {d, D}, Format::kBF16, Group::kAttention);
    add("attn.compressor.norm.weight", {d}, Format::kBF16, Group::kAttention);
    add("attn.indexer.wk.weight", {c_.index_head_dim, d}, Format::kBF16, Group::kAttention);
    add("attn.indexer.k_norm.weight", {c_.index_head_dim}, Format::kBF16, Group::kAttention);
  }

  void index_source() {
    add("attn.indexer.wq_b.weight", {c_.index_n_heads * c_.index_head_dim, c_.q_lora_rank}, Format::kFp8,
        Group::kAttention);
    add("attn.indexer.weights_proj.weight", {c_.index_n_heads, c_.hidden_size}, Format::kBF16, Group::kAttention);
  }

  void ffn(int64_t experts, Group dense, Group routed) {
    const int64_t D = c_.hidden_size, I = c_.moe_intermediate_size;
    add("ffn.gate.weight", {experts, D}, Format::kBF16, dense);
    add("ffn.gate.bias", {experts}, Format::kF32, dense);
    add("ffn.gate.bias_vl", {experts}, Format::kF32, dense);
    add("ffn.shared_experts.w1.weight", {I, D}, Format::kFp8, dense);
    add("ffn.shared_experts.w2.weight", {D, I}, Format::kFp8, dense);
    add("ffn.shared_experts.w3.weight", {I, D}, Format::kFp8, dense);
    for (int64_t e = 0; e < experts; ++e) {
      add(fmt::format("ffn.experts.{}.w1.weight", e), {I, D}, Format::kFp4, routed);
      add(fmt::format("ffn.experts.{}.w2.weight", e), {D, I}, Format::kFp4, routed);
      add(fmt::format("ffn.experts.{}.w3.weight", e), {I, D}, Format::kFp4, routed);
    }
  }

  void engram(const EngramInfo& info) {
    const int64_t D = c_.hidden_size;
    add("engram.embed.weight", {info.rows, c_.engram_head_dim}, Format::kFp8Rows, Group::kEngramTables);
    add("engram.wkv.weight", {(c_.hc_mult + 1) * D, c_.engram_width()}, Format::kFp8, Group::kEngramDense);
    add("engram.q_weight", {c_.hc_mult, D}, Format::kBF16, Group::kEngramDense);
    add("engram.k_weight", {c_.hc_mult, D}, Format::kBF16, Group::kEngramDense);
  }

  const ModelConfig& c_;
  std::vector<TensorSpec> tensors_;
  std::string prefix_;
  int layer_ = -1;
};

}  // namespace

std::string_view group_name(Group group) {
  switch (group) {
    case Group::kEmbedding: return "embedding";
    case Group::kAttention: return "attention and mixing";
    case Group::kSharedExperts: return "shared experts and routers";
    case Group::kRoutedExperts: return "routed experts";
    case Group::kEngramTables: return "Engram tables";
    case Group::kEngramDense: return "Engram projections";
    case Group::kHead: return "head";
    case Group::kDrafter: return "drafter";
    case Group::kDrafterExperts: return "drafter experts";
    case Group::kVision: return "vision";
  }
  return "?";
}

std::string_view group_key(Group group) {
  switch (group) {
    case Group::kEmbedding: return "embedding";
    case Group::kAttention: return "attention";
    case Group::kSharedExperts: return "shared_experts";
    case Group::kRoutedExperts: return "routed_experts";
    case Group::kEngramTables: return "engram_tables";
    case Group::kEngramDense: return "engram_dense";
    case Group::kHead: return "head";
    case Group::kDrafter: return "drafter";
    case Group::kDrafterExperts: return "drafter_experts";
    case Group::kVision: return "vision";
  }
  return "?";
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  List list(config);
  list.globals_before();
  for (const LayerInfo& layer : config.layers) list.layer(layer);
  list.globals_after();
  list.drafter();
  list.vision();
  return std::move(list).take();
}

bool has_scale(Format format) { return format == Format::kFp8 || format == Format::kFp8Rows || format == Format::kFp4; }

numeric::DType stored_dtype(Format format) {
  switch (format) {
    case Format::kF32: return numeric::DType::kF32;
    case Format::kBF16: return numeric::DType::kBF16;
    case Format::kFp8:
    case Format::kFp8Rows: return numeric::DType::kF8E4M3;
    case Format::kFp4: return numeric::DType::kI8;
  }
  return numeric::DType::kU8;
}

std::vector<int64_t> stored_shape(const TensorSpec& spec) {
  std::vector<int64_t> shape = spec.shape;
  if (spec.format == Format::kFp4) shape.back() /= 2;
  return shape;
}

std::vector<int64_t> scale_shape(const TensorSpec& spec) {
  if (!has_scale(spec.format)) return {};
  const int64_t block_rows = spec.format == Format::kFp8 ? 32 : 1;
  return {(spec.shape[0] + block_rows - 1) / block_rows, spec.shape[1] / 32};
}

std::string scale_name(std::string_view weight_name) {
  constexpr std::string_view kSuffix = "weight";
  return std::string(weight_name.substr(0, weight_name.size() - kSuffix.size())) + "scale";
}

uint64_t parameters(const TensorSpec& spec) { return product(spec.shape); }

uint64_t stored_bytes(const TensorSpec& spec) {
  uint64_t bytes = product(stored_shape(spec)) * numeric::dtype_bytes(stored_dtype(spec.format));
  if (has_scale(spec.format)) bytes += product(scale_shape(spec));
  return bytes;
}

}  // namespace deepinfer::checkpoint
