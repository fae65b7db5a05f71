// ModelConfig::to_json: the layout of Python's json.dumps(indent=2), which the published and the test configurations
// have.
#include <cmath>

#include <fmt/format.h>

#include "checkpoint/config.h"

namespace deepinfer::checkpoint {
namespace {

class Writer {
 public:
  void open(std::string_view key) {
    begin(key);
    text_ += "{";
    ++depth_;
    first_ = true;
  }
  void close() {
    --depth_;
    text_ += "\n" + std::string(2 * static_cast<size_t>(depth_), ' ') + "}";
    first_ = false;
  }
  void text(std::string_view key, std::string_view v) { raw(key, fmt::format("\"{}\"", v)); }
  void boolean(std::string_view key, bool v) { raw(key, v ? "true" : "false"); }
  void integer(std::string_view key, int64_t v) { raw(key, fmt::format("{}", v)); }
  void number(std::string_view key, double v) {
    raw(key, v == std::floor(v) && v < 1e16 ? fmt::format("{:.1f}", v) : fmt::format("{}", v));
  }
  // A number that the official file writes without a fraction.
  void whole(std::string_view key, double v) {
    if (v == std::floor(v) && v < 1e16) integer(key, static_cast<int64_t>(v));
    else number(key, v);
  }
  template <class List>
  void list(std::string_view key, const List& items) {
    begin(key);
    const std::string pad(2 * static_cast<size_t>(depth_) + 2, ' ');
    text_ += "[";
    bool first = true;
    for (const auto& item : items) {
      text_ += fmt::format("{}\n{}{}", first ? "" : ",", pad, item);
      first = false;
    }
    text_ += first ? "]" : "\n" + pad.substr(2) + "]";
  }
  void raw(std::string_view key, std::string_view v) {
    begin(key);
    text_ += v;
  }
  std::string finish() { return text_ + "\n"; }

 private:
  void begin(std::string_view key) {
    if (depth_ == 0) return;
    text_ += fmt::format("{}\n{}\"{}\": ", first_ ? "" : ",", std::string(2 * static_cast<size_t>(depth_), ' '), key);
    first_ = false;
  }

  std::string text_;
  int depth_ = 0;
  bool first_ = true;
};

void write_text_config(const ModelConfig& c, Writer* w) {
  w->open("text_config");
  w->text("model_type", "deepseek_v41_text");
  w->integer("vocab_size", c.vocab_size);
  w->integer("hidden_size", c.hidden_size);
  w->integer("moe_intermediate_size", c.moe_intermediate_size);
  w->integer("num_hidden_layers", c.num_hidden_layers);
  w->integer("num_attention_heads", c.num_attention_heads);
  w->integer("num_key_value_heads", 1);
  w->integer("head_dim", c.head_dim);
  w->integer("qk_rope_head_dim", c.qk_rope_head_dim);
  w->integer("q_lora_rank", c.q_lora_rank);
  w->integer("o_lora_rank", c.o_lora_rank);
  w->integer("o_groups", c.o_groups);
  w->text("hidden_act", "silu");
  w->number("swiglu_limit", c.swiglu_limit);
  w->number("rms_norm_eps", c.rms_norm_eps);
  w->boolean("attention_bias", false);
  w->number("attention_dropout", 0);
  w->number("initializer_range", 0.02);
  w->boolean("use_cache", true);
  w->boolean("tie_word_embeddings", false);
  w->integer("max_position_embeddings", c.max_position_embeddings);
  w->whole("rope_theta", c.rope_theta);
  w->open("rope_scaling");
  w->text("rope_type", "yarn");
  w->whole("factor", c.rope_scaling.factor);
  w->whole("beta_fast", c.rope_scaling.beta_fast);
  w->whole("beta_slow", c.rope_scaling.beta_slow);
  w->integer("original_max_position_embeddings", c.rope_scaling.original_max_position_embeddings);
  w->close();
  w->whole("compress_rope_theta", c.compress_rope_theta);
  w->integer("n_routed_experts", c.n_routed_experts);
  w->integer("n_shared_experts", 1);
  w->integer("num_experts_per_tok", c.num_experts_per_tok);
  w->text("scoring_func", "sqrtsoftplus");
  w->text("topk_method", "noaux_tc");
  w->boolean("norm_topk_prob", true);
  w->number("routed_scaling_factor", c.routed_scaling_factor);
  w->integer("sliding_window", c.sliding_window);
  w->list("compress_ratios", c.compress_ratios);
  w->list("kv_source_layer_ids", c.kv_source_layer_ids);
  w->list("index_source_layer_ids", c.index_source_layer_ids);
  w->integer("index_n_heads", c.index_n_heads);
  w->integer("index_head_dim", c.index_head_dim);
  w->integer("index_topk", c.index_topk);
  w->integer("candidate_source_layer_id", c.candidate_source_layer_id);
  w->integer("candidate_topk_blocks", c.candidate_topk_blocks);
  w->integer("candidate_block_size", c.candidate_block_size);
  w->integer("hc_mult", c.hc_mult);
  w->integer("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  w->number("hc_eps", c.hc_eps);
  w->list("engram_layer_ids", c.engram_layer_ids);
  w->list("engram_num_embeddings", c.engram_num_embeddings);
  w->integer("engram_max_ngram_size", c.engram_max_ngram_size);
  w->integer("engram_vocab_size", c.engram_vocab_size);
  w->integer("engram_n_heads", c.engram_n_heads);
  w->integer("engram_head_dim", c.engram_head_dim);
  w->integer("engram_pad_token_id", c.engram_pad_token_id);
  w->integer("engram_compressed_vocab_size", c.engram_compressed_vocab_size);
  w->integer("num_nextn_predict_layers", c.num_nextn_predict_layers);
  w->integer("dspark_block_size", c.dspark_block_size);
  w->integer("dspark_noise_token_id", c.dspark_noise_token_id);
  w->list("dspark_target_layer_ids", c.dspark_target_layer_ids);
  w->integer("dspark_markov_rank", c.dspark_markov_rank);
  w->integer("dspark_n_routed_experts", c.dspark_n_routed_experts);
  w->integer("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok);
  w->close();
}

void write_vision_config(const VisionConfig& v, Writer* w) {
  w->open("vision_config");
  w->text("model_type", "deepseek_v41_vision");
  w->integer("num_hidden_layers", v.num_hidden_layers);
  w->integer("hidden_size", v.hidden_size);
  w->integer("num_attention_heads", v.num_attention_heads);
  w->integer("intermediate_size", v.intermediate_size);
  w->integer("patch_size", v.patch_size);
  w->whole("rope_theta", v.rope_theta);
  w->integer("downsample_ratio", v.downsample_ratio);
  w->integer("max_image_tokens", v.max_image_tokens);
  w->integer("min_pixels", v.min_pixels);
  if (v.max_wh_ratio) w->number("max_wh_ratio", *v.max_wh_ratio);
  else w->raw("max_wh_ratio", "null");
  w->close();
}

}  // namespace

std::string ModelConfig::to_json() const {
  Writer w;
  w.open("");
  w.list("architectures", std::vector<std::string>{fmt::format("\"{}\"", kArchitecture)});
  w.text("model_type", "deepseek_v41");
  w.text("dtype", "bfloat16");
  w.integer("bos_token_id", bos_token_id);
  w.integer("eos_token_id", eos_token_id);
  w.integer("pad_token_id", pad_token_id);
  w.integer("image_token_id", image_token_id);
  w.open("quantization_config");
  w.text("quant_method", "fp8");
  w.text("activation_scheme", "dynamic");
  w.list("weight_block_size", std::vector<int>{32, 32});
  w.text("scale_fmt", "ue8m0");
  w.text("expert_dtype", "fp4");
  w.close();
  write_text_config(*this, &w);
  if (vision) write_vision_config(*vision, &w);
  w.close();
  return w.finish();
}

}  // namespace deepinfer::checkpoint
