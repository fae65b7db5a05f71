// Reading config.json and generation_config.json with exact types.
#include "base/file.h"
#include "checkpoint/config.h"
#include "checkpoint/json_object.h"

namespace deepinfer::checkpoint {
namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 1024;

void read_rope_scaling(JsonObject* text, const std::string& where, ModelConfig* c, std::vector<std::string>* warnings) {
  const dom::object o = text->object("rope_scaling");
  if (!text->status().ok()) return;
  JsonObject r(o, where + ".rope_scaling", warnings);
  r.must_be_text("rope_type", "yarn");
  r.number("factor", &c->rope_scaling.factor, 1, 1e6);
  r.number("beta_fast", &c->rope_scaling.beta_fast, 1e-6, 1e9);
  r.number("beta_slow", &c->rope_scaling.beta_slow, 1e-6, 1e9);
  r.integer("original_max_position_embeddings", &c->rope_scaling.original_max_position_embeddings, 1, INT32_MAX);
  const Status s = r.finish();
  if (!s.ok()) text->adopt(s);
}

Status read_text(dom::object object, ModelConfig* c) {
  const std::string where = "config.json: text_config";
  JsonObject t(object, where, &c->warnings);
  t.must_be_text("model_type", "deepseek_v41_text");
  t.integer("vocab_size", &c->vocab_size, 1, kMaxVocab);
  t.integer("hidden_size", &c->hidden_size, 1, kMaxDim);
  t.integer("moe_intermediate_size", &c->moe_intermediate_size, 1, kMaxDim);
  t.integer("num_hidden_layers", &c->num_hidden_layers, 1, kMaxLayers);
  t.integer("num_attention_heads", &c->num_attention_heads, 1, 65536);
  t.must_be_number("num_key_value_heads", 1);
  t.integer("head_dim", &c->head_dim, 1, 65536);
  t.integer("qk_rope_head_dim", &c->qk_rope_head_dim, 2, 65536);
  t.integer("q_lora_rank", &c->q_lora_rank, 1, kMaxDim);
  t.integer("o_lora_rank", &c->o_lora_rank, 1, kMaxDim);
  t.integer("o_groups", &c->o_groups, 1, 65536);
  t.must_be_text("hidden_act", "silu");
  t.number("swiglu_limit", &c->swiglu_limit, 1e-6, 1e30);
  t.number("rms_norm_eps", &c->rms_norm_eps, 0, 1);
  t.must_be_bool("attention_bias", false);
  t.must_be_number("attention_dropout", 0);
  t.ignore("initializer_range");
  t.ignore("use_cache");
  t.must_be_bool("tie_word_embeddings", false);
  t.integer("max_position_embeddings", &c->max_position_embeddings, 1, 1 << 30);
  t.number("rope_theta", &c->rope_theta, 1, 1e15);
  read_rope_scaling(&t, where, c, &c->warnings);
  t.number("compress_rope_theta", &c->compress_rope_theta, 1, 1e15);
  t.integer("n_routed_experts", &c->n_routed_experts, 1, 65536);
  t.must_be_number("n_shared_experts", 1);
  t.integer("num_experts_per_tok", &c->num_experts_per_tok, 1, 1024);
  t.must_be_text("scoring_func", "sqrtsoftplus");
  t.must_be_text("topk_method", "noaux_tc");
  t.must_be_bool("norm_topk_prob", true);
  t.number("routed_scaling_factor", &c->routed_scaling_factor, 0, 1e6);
  t.integer("sliding_window", &c->sliding_window, 1, 1 << 20);
  t.integers("compress_ratios", &c->compress_ratios, 0, 2, 2 * kMaxLayers);
  t.integers("kv_source_layer_ids", &c->kv_source_layer_ids, 0, kMaxLayers, kMaxLayers);
  t.integers("index_source_layer_ids", &c->index_source_layer_ids, 0, kMaxLayers, kMaxLayers);
  t.must_be_list("index_k_source_layer_ids", c->kv_source_layer_ids, false);
  t.integer("index_n_heads", &c->index_n_heads, 1, 4096);
  t.integer("index_head_dim", &c->index_head_dim, 1, 65536);
  t.integer("index_topk", &c->index_topk, 1, 1 << 20);
  t.integer("candidate_source_layer_id", &c->candidate_source_layer_id, 0, kMaxLayers);
  t.integer("candidate_topk_blocks", &c->candidate_topk_blocks, 1, 1 << 20);
  t.integer("candidate_block_size", &c->candidate_block_size, 1, 4096);
  t.integer("hc_mult", &c->hc_mult, 1, 64);
  t.integer("hc_sinkhorn_iters", &c->hc_sinkhorn_iters, 1, 1000);
  t.number("hc_eps", &c->hc_eps, 0, 1);
  t.must_be_bool("hc_shifted", true, false);
  t.must_be_bool("use_fp4_sparse_kv", true, false);
  t.must_be_bool("dspark_target_attn_input", true, false);
  t.integers("engram_layer_ids", &c->engram_layer_ids, 0, kMaxLayers, 64);
  t.integers("engram_num_embeddings", &c->engram_num_embeddings, 1, INT32_MAX, 64);
  t.integer("engram_max_ngram_size", &c->engram_max_ngram_size, 2, 16);
  t.integer("engram_vocab_size", &c->engram_vocab_size, 2, INT32_MAX);
  t.integer("engram_n_heads", &c->engram_n_heads, 1, 256);
  t.integer("engram_head_dim", &c->engram_head_dim, 1, 65536);
  t.integer("engram_pad_token_id", &c->engram_pad_token_id, 0, kMaxVocab);
  t.integer("engram_compressed_vocab_size", &c->engram_compressed_vocab_size, 1, kMaxVocab);
  t.integer("num_nextn_predict_layers", &c->num_nextn_predict_layers, 0, 16);
  t.integer("dspark_block_size", &c->dspark_block_size, 1, 64);
  t.integer("dspark_noise_token_id", &c->dspark_noise_token_id, 0, kMaxVocab);
  t.integers("dspark_target_layer_ids", &c->dspark_target_layer_ids, 0, kMaxLayers, 64);
  t.integer("dspark_markov_rank", &c->dspark_markov_rank, 1, 65536);
  t.integer("dspark_n_routed_experts", &c->dspark_n_routed_experts, 1, 65536);
  t.integer("dspark_num_experts_per_tok", &c->dspark_num_experts_per_tok, 1, 1024);
  return t.finish();
}

Status read_vision(dom::object object, ModelConfig* c) {
  VisionConfig v;
  JsonObject o(object, "config.json: vision_config", &c->warnings);
  o.must_be_text("model_type", "deepseek_v41_vision");
  o.integer("num_hidden_layers", &v.num_hidden_layers, 1, kMaxLayers);
  o.integer("hidden_size", &v.hidden_size, 4, kMaxDim);
  o.integer("num_attention_heads", &v.num_attention_heads, 1, 4096);
  o.integer("intermediate_size", &v.intermediate_size, 1, kMaxDim);
  o.integer("patch_size", &v.patch_size, 1, 1024);
  o.number("rope_theta", &v.rope_theta, 1, 1e15);
  o.integer("downsample_ratio", &v.downsample_ratio, 1, 64);
  o.integer("max_image_tokens", &v.max_image_tokens, 4, 1 << 20);
  o.integer("min_pixels", &v.min_pixels, 0, int64_t{1} << 40);
  if (o.present("max_wh_ratio")) {
    double ratio = 0;
    o.number("max_wh_ratio", &ratio, 1e-6, 1e9);
    v.max_wh_ratio = ratio;
  }
  DI_RETURN_IF_ERROR(o.finish());
  c->vision = v;
  return {};
}

Status read_quantization(dom::object object, std::vector<std::string>* warnings) {
  JsonObject q(object, "config.json: quantization_config", warnings);
  q.must_be_text("quant_method", "fp8");
  q.must_be_text("activation_scheme", "dynamic");
  q.must_be_list("weight_block_size", {32, 32});
  q.must_be_text("scale_fmt", "ue8m0");
  q.must_be_text("expert_dtype", "fp4");
  return q.finish();
}

// Says what a checkpoint of another kind is.
Status check_architecture(JsonObject* top, dom::object object) {
  const std::string_view type = top->text("model_type");
  std::string_view architecture;
  dom::array list;
  if (object.at_key("architectures").get(list) == simdjson::SUCCESS &&
      list.at(0).get(architecture) != simdjson::SUCCESS)
    architecture = {};
  top->ignore("architectures");
  if (type == "deepseek_v41" && architecture == kArchitecture) return {};
  constexpr std::string_view kSupported =
      "DeepInfer runs DeepSeek-V4.1-Flash checkpoints (model_type deepseek_v41, DeepseekV41ForCausalLM)";
  if (type.empty() && architecture.empty()) {
    const bool flat = top->has("n_layers") && top->has("dim");
    return make_error(Code::kUnsupported, "config.json names no model_type and no architecture{}; {}",
                      flat ? " (it looks like the flat inference/config.json: use the folder above it)" : "",
                      kSupported);
  }
  return make_error(Code::kUnsupported,
                    "config.json describes another architecture: model_type \"{}\", architecture \"{}\"; {}",
                    type.substr(0, 80), architecture.substr(0, 80), kSupported);
}

Result<dom::object> parse_object(dom::parser* parser, std::string_view json, std::string_view name) {
  dom::element root;
  const simdjson::error_code error = parser->parse(json.data(), json.size()).get(root);
  if (error)
    return make_error(Code::kInvalidArgument, "{} is not valid JSON: {}", name, simdjson::error_message(error));
  dom::object object;
  if (root.get(object))
    return make_error(Code::kInvalidArgument, "{} holds {}; it must hold an object", name, json_type_name(root.type()));
  return object;
}

}  // namespace

Result<ModelConfig> ModelConfig::parse(std::string_view json) {
  dom::parser parser;
  DI_ASSIGN_OR_RETURN(const dom::object object, parse_object(&parser, json, "config.json"));
  ModelConfig c;
  JsonObject top(object, "config.json", &c.warnings);
  DI_RETURN_IF_ERROR(check_architecture(&top, object));
  top.must_be_text("dtype", "bfloat16");
  top.integer("bos_token_id", &c.bos_token_id, 0, kMaxVocab);
  top.integer("eos_token_id", &c.eos_token_id, 0, kMaxVocab);
  top.integer("pad_token_id", &c.pad_token_id, 0, kMaxVocab);
  top.integer("image_token_id", &c.image_token_id, 0, kMaxVocab);
  top.ignore("transformers_version");
  top.ignore("tokenizer_compatibility");
  const dom::object quantization = top.object("quantization_config"), text = top.object("text_config");
  DI_RETURN_IF_ERROR(top.status());
  DI_RETURN_IF_ERROR(read_quantization(quantization, &c.warnings));
  DI_RETURN_IF_ERROR(read_text(text, &c));
  if (top.present("vision_config")) {
    const dom::object vision = top.object("vision_config");
    DI_RETURN_IF_ERROR(top.status());
    DI_RETURN_IF_ERROR(read_vision(vision, &c));
  }
  DI_RETURN_IF_ERROR(top.finish());
  DI_RETURN_IF_ERROR(c.complete());
  return c;
}

Result<ModelConfig> ModelConfig::load(const std::string& directory) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(directory + "/config.json", kMaxConfigBytes));
  Result<ModelConfig> c = parse(text);
  if (!c.ok()) return c.status().with_context(directory);
  return c;
}

Result<GenerationConfig> GenerationConfig::parse(std::string_view json) {
  dom::parser parser;
  DI_ASSIGN_OR_RETURN(const dom::object object, parse_object(&parser, json, "generation_config.json"));
  GenerationConfig g;
  std::vector<std::string> unknown;
  JsonObject o(object, "generation_config.json", &unknown);
  if (o.present("temperature")) o.number("temperature", &g.temperature, 0, 1e6);
  if (o.present("top_p")) o.number("top_p", &g.top_p, 0, 1);
  if (o.present("top_k")) {
    int64_t k = 0;
    o.integer("top_k", &k, -1, kMaxVocab);
    if (k > 0) g.top_k = k;
  }
  if (o.present("do_sample")) o.boolean("do_sample", &g.do_sample);
  dom::array list;
  if (object.at_key("eos_token_id").get(list) == simdjson::SUCCESS) {
    o.integers("eos_token_id", &g.eos_token_ids, 0, kMaxVocab, 1024);
  } else if (o.present("eos_token_id")) {
    int64_t id = 0;
    o.integer("eos_token_id", &id, 0, kMaxVocab);
    g.eos_token_ids = {id};
  }
  DI_RETURN_IF_ERROR(o.status());
  return g;
}

Result<GenerationConfig> GenerationConfig::load(const std::string& directory) {
  Result<std::string> text = read_file(directory + "/generation_config.json", kMaxConfigBytes);
  if (!text.ok() && text.status().code() == Code::kNotFound) return GenerationConfig{};
  if (!text.ok()) return text.status();
  Result<GenerationConfig> g = parse(text.value());
  if (!g.ok()) return g.status().with_context(directory);
  return g;
}

}  // namespace deepinfer::checkpoint
