// The configuration of a DeepSeek-V4.1 checkpoint: the official keys of config.json and what follows from them.
//
//   Result<ModelConfig> c = ModelConfig::load("models/tiny");
//   if (!c.ok()) return c.status();
//   for (const std::string& w : c->warnings) log(w);              // keys that this program does not know
//   const LayerInfo& layer = c->layers[l];                        // role, sources, Engram of layer l
//
// A default-constructed ModelConfig holds the official DeepSeek-V4.1-Flash values (spec/model.md 2.1, 2.2) and becomes
// usable through complete(), which checks the rules of 2.5, 3 and 19.1 and fills the derived members; parse() and
// load() call it. Errors name the key: kInvalidArgument for a wrong type, a missing key, a value out of range or an
// impossible combination; kUnsupported for another architecture or for a variant of V4.1 that this program does not
// run; kNotFound without a file. Limits: config.json up to 4 MiB, 1,024 layers, 4,096 Engram primes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::checkpoint {

inline constexpr std::string_view kArchitecture = "DeepseekV41ForCausalLM";
inline constexpr int kBlockTokens = 128;  // tokens of a KV block (16.2)

struct RopeScaling {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

struct VisionConfig {
  int64_t num_hidden_layers = 32;
  int64_t hidden_size = 1024;
  int64_t num_attention_heads = 16;
  int64_t intermediate_size = 2816;
  int64_t patch_size = 14;
  double rope_theta = 10000;
  int64_t downsample_ratio = 3;
  int64_t max_image_tokens = 1024;
  int64_t min_pixels = 295936;
  std::optional<double> max_wh_ratio;  // null in the official file
};

enum class LayerRole : uint8_t {
  kWindow,   // ratio 0: attends to its own window only
  kFull,     // owns a compressor, index keys and index queries
  kReindex,  // owns index queries; scores the keys of its KV source
  kReuse,    // takes compressed KV and the top-k list of the sources before it
};
std::string_view role_name(LayerRole role);  // "window", "full", "reindex", "reuse"

// What one backbone layer is (section 3). Layer numbers are -1 where there is none.
struct LayerInfo {
  int id = 0;
  LayerRole role = LayerRole::kWindow;
  int ratio = 0;              // tokens of one compressed entry: 0 (none), 1 or 2
  int kv_source = -1;         // whose compressed KV it reads
  int index_source = -1;      // whose top-k list it uses
  int index_key_source = -1;  // whose index keys that list was scored on
  bool publishes_candidates = false;
  bool uses_candidates = false;  // its own selection is restricted to the published candidate blocks
  bool decoder_half = false;
  int engram = -1;      // index into ModelConfig::engram, runs before the layer
  int dspark_tap = -1;  // which part of main_hidden the stream that enters this layer is

  bool owns_kv() const { return role == LayerRole::kFull; }
  bool owns_index() const { return role == LayerRole::kFull || role == LayerRole::kReindex; }
};

// Hash constants of one Engram layer (10.2, 10.3). Column (k - 1) * n_heads + head belongs to n-gram length k + 1.
struct EngramInfo {
  int layer = 0;
  std::vector<int64_t> primes;       // [columns]
  std::vector<int64_t> offsets;      // [columns]: first table row of the column
  std::vector<int64_t> multipliers;  // [max_ngram_size]
  int64_t rows = 0;                  // sum of the primes
};

struct ModelConfig {
  // Top level.
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = 129264;

  // text_config, by its official names.
  int64_t vocab_size = 129280;
  int64_t hidden_size = 5120;
  int64_t moe_intermediate_size = 2304;
  int64_t num_hidden_layers = 40;
  int64_t num_attention_heads = 64;
  int64_t head_dim = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t q_lora_rank = 1280;
  int64_t o_lora_rank = 1024;
  int64_t o_groups = 8;
  double swiglu_limit = 10.0;
  double rms_norm_eps = 1e-20;
  int64_t max_position_embeddings = 1048576;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double compress_rope_theta = 160000;
  int64_t n_routed_experts = 384;
  int64_t num_experts_per_tok = 6;
  double routed_scaling_factor = 1.5;
  int64_t sliding_window = 128;
  // empty: the official ones for 40 layers; padded with 0 to layers + drafter stages
  std::vector<int64_t> compress_ratios;
  std::vector<int64_t> kv_source_layer_ids = {2, 8, 14, 20};
  std::vector<int64_t> index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  int64_t index_n_heads = 32;
  int64_t index_head_dim = 128;
  int64_t index_topk = 512;
  int64_t candidate_source_layer_id = 20;
  int64_t candidate_topk_blocks = 2048;
  int64_t candidate_block_size = 8;
  int64_t hc_mult = 4;
  int64_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  std::vector<int64_t> engram_layer_ids = {1, 14};
  std::vector<int64_t> engram_num_embeddings = {384006168, 384016682};
  int64_t engram_max_ngram_size = 4;
  int64_t engram_vocab_size = 16000000;  // where the walk over primes starts
  int64_t engram_n_heads = 8;
  int64_t engram_head_dim = 256;
  int64_t engram_pad_token_id = 2;
  int64_t engram_compressed_vocab_size = 99092;
  int64_t num_nextn_predict_layers = 3;  // drafter stages; 0: no drafter
  int64_t dspark_block_size = 5;
  int64_t dspark_noise_token_id = 128799;
  std::vector<int64_t> dspark_target_layer_ids = {37, 38, 39};
  int64_t dspark_markov_rank = 256;
  int64_t dspark_n_routed_experts = 128;
  int64_t dspark_num_experts_per_tok = 3;

  std::optional<VisionConfig> vision;
  std::vector<std::string> warnings;

  // Derived by complete().
  std::vector<LayerInfo> layers;
  int decoder_start = 0;  // first layer of the decoder half (n_prefill_layer)
  std::vector<EngramInfo> engram;

  int64_t hc_coefficients() const { return 2 * hc_mult + hc_mult * hc_mult; }  // 24: pre, post, comb
  int64_t hc_width() const { return hc_mult * hidden_size; }
  int64_t nope_head_dim() const { return head_dim - qk_rope_head_dim; }
  int64_t group_input() const { return num_attention_heads / o_groups * head_dim; }
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  int64_t engram_width() const { return engram_columns() * engram_head_dim; }
  double attention_scale() const;  // head_dim^-0.5
  double index_scale() const;      // (index_head_dim * index_n_heads)^-0.5
  bool has_drafter() const { return num_nextn_predict_layers > 0; }
  // Bytes of compressed KV and index keys of all sources for kBlockTokens tokens (section 16): 113,920 officially.
  uint64_t kv_bytes_per_block() const;

  static Result<ModelConfig> load(const std::string& directory);  // reads directory/config.json
  static Result<ModelConfig> parse(std::string_view json);        // `json` is the content of config.json
  Status complete();

  // config.json with these values: official key order, two spaces of indentation, one newline at the end.
  std::string to_json() const;
};

// Sampling defaults of generation_config.json. Absent keys keep these values.
struct GenerationConfig {
  bool do_sample = true;
  double temperature = 1.0;
  double top_p = 1.0;
  std::optional<int64_t> top_k;
  std::vector<int64_t> eos_token_ids;  // empty: config.json's

  // A missing file gives the defaults; a file of the wrong form is an error.
  static Result<GenerationConfig> load(const std::string& directory);
  static Result<GenerationConfig> parse(std::string_view json);
};

// The first n layers of a completed config (19.4): ids filtered, the last three kept layers feed the drafter.
// kInvalidArgument if no ratio-1 KV source is left.
Result<ModelConfig> first_layers(const ModelConfig& config, int64_t n);

// "tiny" and "tiny-wide" of section 19, completed.
ModelConfig tiny_config();
ModelConfig tiny_wide_config();
// The official values, completed. Without a vision tower.
ModelConfig official_config();

}  // namespace deepinfer::checkpoint
