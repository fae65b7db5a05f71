#include "checkpoint/config.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "base/file.h"

namespace deepinfer::checkpoint {
namespace {

std::string read_data(const std::string& name) {
  return read_file(std::string(DEEPINFER_TEST_DATA) + "/model/" + name, 1 << 20).value();
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

TEST(Config, ReadsTheTinyFilesAndWritesThemBack) {
  for (const auto& [file, preset] :
       {std::pair{"tiny-random.config.json", tiny_config()}, {"tiny-wide-random.config.json", tiny_wide_config()}}) {
    const std::string text = read_data(file);
    const Result<ModelConfig> c = ModelConfig::parse(text);
    ASSERT_TRUE(c.ok()) << c.status().message();
    EXPECT_TRUE(c->warnings.empty()) << c->warnings[0];
    EXPECT_EQ(c->to_json(), text);
    EXPECT_EQ(preset.to_json(), text);
  }
}

TEST(Config, BundledModel) {
  const Result<ModelConfig> c = ModelConfig::load("models/tiny");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->engram_compressed_vocab_size, 6518);
  EXPECT_EQ(c->dspark_noise_token_id, 8187);
  EXPECT_EQ(c->to_json(), read_file("models/tiny/config.json", 1 << 20).value());
  const Result<GenerationConfig> g = GenerationConfig::load("models/tiny");
  ASSERT_TRUE(g.ok());
  EXPECT_TRUE(g->do_sample);
  EXPECT_EQ(g->temperature, 1.0);
  EXPECT_EQ(g->eos_token_ids, std::vector<int64_t>{1});
}

TEST(Config, OfficialSchedule) {
  const ModelConfig c = official_config();
  EXPECT_EQ(c.decoder_start, 20);
  int counts[4] = {};
  for (const LayerInfo& l : c.layers) ++counts[static_cast<int>(l.role)];
  EXPECT_EQ(counts[0], 2);   // window
  EXPECT_EQ(counts[1], 4);   // full
  EXPECT_EQ(counts[2], 4);   // reindex
  EXPECT_EQ(counts[3], 30);  // reuse
  EXPECT_EQ(c.layers[0].kv_source, -1);
  EXPECT_EQ(c.layers[7].kv_source, 2);
  EXPECT_EQ(c.layers[7].index_source, 2);
  EXPECT_EQ(c.layers[27].kv_source, 20);
  EXPECT_EQ(c.layers[27].index_source, 24);
  EXPECT_TRUE(c.layers[20].publishes_candidates);
  EXPECT_FALSE(c.layers[20].uses_candidates);
  EXPECT_TRUE(c.layers[36].uses_candidates);
  EXPECT_FALSE(c.layers[14].uses_candidates);
  EXPECT_EQ(c.layers[14].engram, 1);
  EXPECT_EQ(c.layers[38].dspark_tap, 1);
  EXPECT_EQ(c.kv_bytes_per_block(), 113920u);  // 890 bytes a token
  EXPECT_EQ(c.engram_width(), 6144);
  EXPECT_EQ(c.group_input(), 4096);
  EXPECT_EQ(c.index_scale(), 1.0 / 64);
  EXPECT_EQ(c.nope_head_dim(), 448);
  const Result<ModelConfig> again = ModelConfig::parse(c.to_json());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->to_json(), c.to_json());
}

TEST(Config, VisionTower) {
  ModelConfig c = official_config();
  c.vision = VisionConfig{};
  const Result<ModelConfig> again = ModelConfig::parse(c.to_json());
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_TRUE(again->vision.has_value());
  EXPECT_EQ(again->vision->hidden_size, 1024);
  EXPECT_FALSE(again->vision->max_wh_ratio.has_value());
  EXPECT_EQ(again->to_json(), c.to_json());
}

TEST(Config, ReportsUnknownKeys) {
  const std::string text = with(with(read_data("tiny-random.config.json"), "\"dtype\"", "\"colour\": 1, \"dtype\""),
                                "\"head_dim\"", "\"shape\": [1], \"head_dim\"");
  const Result<ModelConfig> c = ModelConfig::parse(text);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ASSERT_EQ(c->warnings.size(), 2u);
  EXPECT_NE(c->warnings[0].find("shape"), std::string::npos);
  EXPECT_NE(c->warnings[1].find("colour"), std::string::npos);
}

struct Case {
  const char* from;
  const char* to;
  Code code;
  const char* says;
};

TEST(Config, RefusesByName) {
  const Case cases[] = {
      {"\"hidden_size\": 256", "\"hidden_size\": \"256\"", Code::kInvalidArgument,
       "text_config.hidden_size is a string"},
      {"\"hidden_size\": 256", "\"hidden_size\": 256.5", Code::kInvalidArgument,
       "text_config.hidden_size is a fraction"},
      {"\"hidden_size\": 256", "\"hidden_size\": 18446744073709551615", Code::kInvalidArgument,
       "text_config.hidden_size is too large"},
      {"\"hidden_size\": 256", "\"hidden_size\": 1099511627776", Code::kInvalidArgument, "text_config.hidden_size"},
      {"\"hidden_size\": 256", "\"hidden_size\": -32", Code::kInvalidArgument, "text_config.hidden_size"},
      {"\"hidden_size\": 256", "\"hidden_sizes\": 256", Code::kInvalidArgument, "text_config.hidden_size is missing"},
      {"\"hidden_size\": 256", "\"hidden_size\": 250", Code::kInvalidArgument, "multiple of 32"},
      {"\"swiglu_limit\": 1.5", "\"swiglu_limit\": null", Code::kInvalidArgument, "swiglu_limit is null"},
      {"\"deepseek_v41\"", "\"deepseek_v4\"", Code::kUnsupported, "deepseek_v4"},
      {"DeepseekV41ForCausalLM", "LlamaForCausalLM", Code::kUnsupported, "LlamaForCausalLM"},
      {"\"bfloat16\"", "\"float16\"", Code::kUnsupported, "dtype"},
      {"\"silu\"", "\"gelu\"", Code::kUnsupported, "hidden_act"},
      {"\"attention_bias\": false", "\"attention_bias\": true", Code::kUnsupported, "attention_bias"},
      {"\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", Code::kUnsupported, "attention_dropout"},
      {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8", Code::kUnsupported, "num_key_value_heads"},
      {"\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", Code::kUnsupported,
       "quantization_config.quant_method"},
      {"\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"fp8\"", Code::kUnsupported, "expert_dtype"},
      {"\"dynamic\"", "\"static\"", Code::kUnsupported, "activation_scheme"},
      {"\"ue8m0\"", "\"e4m3\"", Code::kUnsupported, "scale_fmt"},
      {"\"sqrtsoftplus\"", "\"sigmoid\"", Code::kUnsupported, "scoring_func"},
      {"\"noaux_tc\"", "\"greedy\"", Code::kUnsupported, "topk_method"},
      {"\"norm_topk_prob\": true", "\"norm_topk_prob\": false", Code::kUnsupported, "norm_topk_prob"},
      {"\"yarn\"", "\"linear\"", Code::kUnsupported, "rope_scaling.rope_type"},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", Code::kUnsupported, "tie_word_embeddings"},
      {"\"hc_mult\": 4", "\"hc_mult\": 4, \"hc_shifted\": false", Code::kUnsupported, "hc_shifted"},
      {"\"o_groups\": 2", "\"o_groups\": 3", Code::kInvalidArgument, "divisible by o_groups"},
      {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 33", Code::kInvalidArgument, "qk_rope_head_dim"},
      {"\"candidate_topk_blocks\": 8", "\"candidate_topk_blocks\": 12", Code::kInvalidArgument,
       "candidate_topk_blocks"},
      {"\"index_topk\": 32", "\"index_topk\": 58", Code::kInvalidArgument, "fewer than index_topk"},
      {"\"candidate_block_size\": 8", "\"candidate_block_size\": 4", Code::kInvalidArgument, "candidate_block_size"},
      {"\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 5", Code::kInvalidArgument,
       "candidate_source_layer_id"},
      {"\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 3", Code::kInvalidArgument,
       "another compressed cache"},
      {"\"dspark_noise_token_id\": 9", "\"dspark_noise_token_id\": 8192", Code::kInvalidArgument,
       "dspark_noise_token_id"},
      {"\"engram_vocab_size\": 1000", "\"engram_vocab_size\": 1010", Code::kInvalidArgument,
       "engram_num_embeddings[0] is 6126"},
      {"\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 17", Code::kInvalidArgument, "num_experts_per_tok"},
      {"\"num_hidden_layers\": 8", "\"num_hidden_layers\": 7", Code::kInvalidArgument,
       "compress_ratios has 11 entries"},
      {"\"text_config\": {", "\"text_config\": [], \"x\": {", Code::kInvalidArgument, "text_config is a list"},
      {"{", "", Code::kInvalidArgument, "not valid JSON"},
  };
  const std::string text = read_data("tiny-random.config.json");
  for (const Case& c : cases) {
    const Result<ModelConfig> r = ModelConfig::parse(with(text, c.from, c.to));
    ASSERT_FALSE(r.ok()) << c.to;
    EXPECT_EQ(r.status().code(), c.code) << c.to << ": " << r.status().message();
    EXPECT_NE(r.status().message().find(c.says), std::string::npos) << c.to << ": " << r.status().message();
  }
}

TEST(Config, RefusesImpossibleSchedules) {
  struct Change {
    std::function<void(ModelConfig&)> make;
    const char* says;
  };
  const Change changes[] = {
      {[](ModelConfig& c) { c.kv_source_layer_ids = {1, 3}; }, "must name layer 4"},
      {[](ModelConfig& c) { c.kv_source_layer_ids = {1, 2, 3, 4}; }, "not in index_source_layer_ids"},
      {[](ModelConfig& c) { c.kv_source_layer_ids = {3, 4}; }, "no layer up to it"},
      {[](ModelConfig& c) { c.index_source_layer_ids = {0, 1, 3, 4, 6}; }, "compress ratio is 0"},
      {[](ModelConfig& c) { c.index_source_layer_ids = {1, 4, 3}; }, "ascending"},
      {[](ModelConfig& c) { c.index_source_layer_ids = {1, 3, 4, 8}; }, "layers 0 to 7"},
      {[](ModelConfig& c) { c.compress_ratios = {0, 2, 2, 2, 1, 2, 1, 1}; }, "behind the first 1"},
      {[](ModelConfig& c) { c.compress_ratios = {0, 2, 2, 2, 2, 2, 2, 2}; }, "no 1"},
      {[](ModelConfig& c) { c.compress_ratios = {0, 2, 2, 2, 1, 1, 1, 1, 0, 2, 0}; }, "drafter stages"},
      {[](ModelConfig& c) { c.engram_layer_ids = {1, 4}; }, "Engram layers lie before"},
      {[](ModelConfig& c) { c.engram_layer_ids = {1}; }, "2 entries for 1"},
      {[](ModelConfig& c) { c.dspark_target_layer_ids = {3, 5, 7}; }, "decoder half"},
      {[](ModelConfig& c) { c.engram_n_heads = 2000; }, "hash columns"},
      {[](ModelConfig& c) { c.engram_compressed_vocab_size = 9000; }, "larger than vocab_size"},
  };
  for (const Change& change : changes) {
    ModelConfig c = tiny_config();
    change.make(c);
    const Status s = c.complete();
    ASSERT_FALSE(s.ok()) << change.says;
    EXPECT_NE(s.message().find(change.says), std::string::npos) << s.message();
  }
}

TEST(Config, FortyRatiosAndNoDrafterAreFine) {
  ModelConfig c = official_config();
  c.compress_ratios.resize(40);
  EXPECT_TRUE(c.complete().ok());
  EXPECT_EQ(c.compress_ratios.size(), 43u);
  c.num_nextn_predict_layers = 0;
  c.compress_ratios.resize(40);
  EXPECT_TRUE(c.complete().ok());
  EXPECT_FALSE(c.has_drafter());
}

TEST(Config, FirstLayers) {
  const Result<ModelConfig> c = first_layers(official_config(), 24);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->compress_ratios.size(), 27u);
  EXPECT_EQ(c->kv_source_layer_ids, (std::vector<int64_t>{2, 8, 14, 20}));
  EXPECT_EQ(c->index_source_layer_ids, (std::vector<int64_t>{2, 8, 14, 20}));
  EXPECT_EQ(c->dspark_target_layer_ids, (std::vector<int64_t>{21, 22, 23}));
  EXPECT_FALSE(first_layers(official_config(), 20).ok());
  EXPECT_FALSE(first_layers(official_config(), 41).ok());
}

TEST(Config, SurvivesDamage) {
  const std::string text = read_data("tiny-random.config.json");
  std::mt19937 random(5);
  int parsed = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (uint32_t n = random() % 3 + 1; n > 0; --n)
      damaged[random() % damaged.size()] = "0123456789-e.[]{},\""[random() % 19];
    const Result<ModelConfig> c = ModelConfig::parse(damaged);
    if (!c.ok()) continue;
    ++parsed;
    ASSERT_EQ(c->layers.size(), static_cast<size_t>(c->num_hidden_layers));
  }
  EXPECT_GT(parsed, 0);
  EXPECT_LT(parsed, 3000);
}

TEST(Config, MissingFile) {
  const Result<ModelConfig> c = ModelConfig::load("no/such/folder");
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::kNotFound);
}

TEST(GenerationConfig, FormsAndRefusals) {
  const Result<GenerationConfig> g = GenerationConfig::parse(
      R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1, 5], "do_sample": false})");
  ASSERT_TRUE(g.ok());
  EXPECT_EQ(g->temperature, 0.6);
  EXPECT_EQ(g->top_p, 0.95);
  EXPECT_EQ(g->top_k, 20);
  EXPECT_EQ(g->eos_token_ids, (std::vector<int64_t>{1, 5}));
  EXPECT_FALSE(GenerationConfig::parse(R"({"temperature": "hot"})").ok());
  EXPECT_FALSE(GenerationConfig::parse(R"({"top_p": 2})").ok());
  EXPECT_FALSE(GenerationConfig::parse("[]").ok());
  EXPECT_TRUE(GenerationConfig::load("tests").ok());
}

}  // namespace
}  // namespace deepinfer::checkpoint
