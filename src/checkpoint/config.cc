#include "checkpoint/config.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/engram_hash.h"
#include "numeric/quantize.h"

namespace deepinfer::checkpoint {
namespace {

constexpr int64_t kMaxEngramPrimes = 4096;

template <class... Args>
Status bad(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidArgument, "config.json: " + fmt::format(format, std::forward<Args>(args)...));
}

Status check_multiple(std::string_view what, int64_t value, int64_t of) {
  if (value > 0 && value % of == 0) return {};
  return bad("{} is {}; it must be a positive multiple of {}", what, value, of);
}

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Status check_ids(std::string_view name, const std::vector<int64_t>& ids, int64_t layers) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= layers)
      return bad("text_config.{} names layer {}, but there are layers 0 to {}", name, ids[i], layers - 1);
    if (i > 0 && ids[i] <= ids[i - 1]) return bad("text_config.{} must be ascending without repeats", name);
  }
  return {};
}

// The block sizes of FP8 and FP4 and the head geometry (19.1).
Status check_shapes(const ModelConfig& c) {
  if (c.num_attention_heads < 1 || c.o_groups < 1 || c.num_attention_heads % c.o_groups != 0) {
    return bad("text_config.num_attention_heads ({}) must be divisible by o_groups ({})", c.num_attention_heads,
               c.o_groups);
  }
  DI_RETURN_IF_ERROR(check_multiple("text_config.hidden_size", c.hidden_size, 32));
  DI_RETURN_IF_ERROR(check_multiple("text_config.moe_intermediate_size", c.moe_intermediate_size, 32));
  DI_RETURN_IF_ERROR(check_multiple("text_config.q_lora_rank", c.q_lora_rank, 32));
  DI_RETURN_IF_ERROR(check_multiple("text_config.o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, 32));
  DI_RETURN_IF_ERROR(check_multiple("text_config.head_dim", c.head_dim, 32));
  DI_RETURN_IF_ERROR(check_multiple("text_config.index_head_dim", c.index_head_dim, 32));
  DI_RETURN_IF_ERROR(
      check_multiple("the input of an output group (num_attention_heads / o_groups * head_dim)", c.group_input(), 32));
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim > c.head_dim || c.qk_rope_head_dim > c.index_head_dim) {
    return bad("text_config.qk_rope_head_dim is {}; it must be even and at most head_dim ({}) and index_head_dim ({})",
               c.qk_rope_head_dim, c.head_dim, c.index_head_dim);
  }
  if (c.hc_mult != 4)
    return make_error(Code::kUnsupported, "config.json: text_config.hc_mult is {}; only 4 is supported", c.hc_mult);
  if (c.num_experts_per_tok < 1 || c.num_experts_per_tok > c.n_routed_experts) {
    return bad("text_config.num_experts_per_tok is {}; there are {} routed experts", c.num_experts_per_tok,
               c.n_routed_experts);
  }
  if (c.vision && c.vision->hidden_size % (4 * c.vision->num_attention_heads) != 0) {
    return bad("vision_config.hidden_size ({}) / num_attention_heads ({}) must be divisible by 4",
               c.vision->hidden_size, c.vision->num_attention_heads);
  }
  return {};
}

Status check_token_ids(const ModelConfig& c) {
  const std::pair<std::string_view, int64_t> ids[] = {{"bos_token_id", c.bos_token_id},
                                                      {"eos_token_id", c.eos_token_id},
                                                      {"pad_token_id", c.pad_token_id},
                                                      {"image_token_id", c.image_token_id},
                                                      {"text_config.engram_pad_token_id", c.engram_pad_token_id},
                                                      {"text_config.dspark_noise_token_id", c.dspark_noise_token_id}};
  for (const auto& [name, id] : ids) {
    if (id < 0 || id >= c.vocab_size)
      return bad("{} is {}, but the vocabulary has ids 0 to {}", name, id, c.vocab_size - 1);
  }
  return {};
}

Status check_candidates(const ModelConfig& c) {
  if (c.candidate_block_size != 8 && c.candidate_block_size != 16) {
    return bad("text_config.candidate_block_size is {}; it must be 8 or 16", c.candidate_block_size);
  }
  DI_RETURN_IF_ERROR(check_multiple("text_config.candidate_topk_blocks", c.candidate_topk_blocks, 8));
  const int64_t sure = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1);
  if (sure < c.index_topk) {
    return bad(
        "text_config.candidate_topk_blocks ({}) of {} entries hold only {} entries for certain, fewer than index_topk "
        "({})",
        c.candidate_topk_blocks, c.candidate_block_size, sure, c.index_topk);
  }
  return {};
}

int source_of(const std::vector<int64_t>& sources, int64_t layer) {
  int64_t best = -1;
  for (int64_t s : sources) {
    if (s <= layer) best = std::max(best, s);
  }
  return static_cast<int>(best);
}

// Lengths of the compress_ratios list, and the two halves: ratio 0 or 2 before the first 1, ratio 1 or 0 after it.
Status finish_ratios(ModelConfig* c) {
  std::vector<int64_t>& r = c->compress_ratios;
  const size_t all = static_cast<size_t>(c->num_hidden_layers + c->num_nextn_predict_layers);
  if (r.size() < static_cast<size_t>(c->num_hidden_layers) || r.size() > all) {
    return bad("text_config.compress_ratios has {} entries; {} layers and {} drafter stages need {} (or {})", r.size(),
               c->num_hidden_layers, c->num_nextn_predict_layers, all, c->num_hidden_layers);
  }
  r.resize(all, 0);
  const auto layers_end = r.begin() + c->num_hidden_layers;
  if (std::any_of(layers_end, r.end(), [](int64_t ratio) { return ratio != 0; })) {
    return bad("text_config.compress_ratios must be 0 for the drafter stages");
  }
  const auto first = std::find(r.begin(), layers_end, 1);
  if (first == layers_end) return bad("text_config.compress_ratios holds no 1: the model would have no decoder half");
  c->decoder_start = static_cast<int>(first - r.begin());
  if (std::any_of(first, layers_end, [](int64_t ratio) { return ratio > 1; })) {
    return bad(
        "text_config.compress_ratios holds a 2 behind the first 1 (layer {}); a compressed cache may not cross into "
        "the decoder half",
        c->decoder_start);
  }
  return {};
}

Status finish_layers(ModelConfig* c) {
  DI_RETURN_IF_ERROR(check_ids("kv_source_layer_ids", c->kv_source_layer_ids, c->num_hidden_layers));
  DI_RETURN_IF_ERROR(check_ids("index_source_layer_ids", c->index_source_layer_ids, c->num_hidden_layers));
  for (int64_t id : c->kv_source_layer_ids) {
    if (!contains(c->index_source_layer_ids, id))
      return bad("text_config.kv_source_layer_ids names layer {}, which is not in index_source_layer_ids", id);
  }
  if (!contains(c->kv_source_layer_ids, c->decoder_start)) {
    return bad("text_config.kv_source_layer_ids must name layer {}, the first layer of ratio 1", c->decoder_start);
  }
  const int candidate = static_cast<int>(c->candidate_source_layer_id);
  c->layers.clear();
  for (int l = 0; l < c->num_hidden_layers; ++l) {
    LayerInfo layer;
    layer.id = l;
    layer.ratio = static_cast<int>(c->compress_ratios[static_cast<size_t>(l)]);
    layer.decoder_half = l >= c->decoder_start;
    const bool kv = contains(c->kv_source_layer_ids, l), index = contains(c->index_source_layer_ids, l);
    if (layer.ratio == 0) {
      if (index) return bad("text_config.index_source_layer_ids names layer {}, whose compress ratio is 0", l);
      c->layers.push_back(layer);
      continue;
    }
    layer.kv_source = source_of(c->kv_source_layer_ids, l);
    layer.index_source = source_of(c->index_source_layer_ids, l);
    layer.index_key_source = layer.kv_source;
    if (layer.kv_source < 0)
      return bad("layer {} has compress ratio {} but no layer up to it is in text_config.kv_source_layer_ids", l,
                 layer.ratio);
    if (c->compress_ratios[static_cast<size_t>(layer.kv_source)] != layer.ratio) {
      return bad("layer {} has compress ratio {}, but its KV source, layer {}, has {}", l, layer.ratio, layer.kv_source,
                 c->compress_ratios[static_cast<size_t>(layer.kv_source)]);
    }
    layer.role = kv ? LayerRole::kFull : index ? LayerRole::kReindex : LayerRole::kReuse;
    layer.publishes_candidates = l == candidate;
    layer.uses_candidates = index && l > candidate;
    if (layer.uses_candidates && layer.kv_source != source_of(c->kv_source_layer_ids, candidate)) {
      return bad("layer {} would choose among the candidate blocks of layer {}, which reads another compressed cache",
                 l, candidate);
    }
    c->layers.push_back(layer);
  }
  if (candidate < 0 || candidate >= c->num_hidden_layers || !contains(c->index_source_layer_ids, candidate)) {
    return bad("text_config.candidate_source_layer_id is {}, which is not in index_source_layer_ids", candidate);
  }
  return {};
}

Status finish_drafter(ModelConfig* c) {
  if (!c->has_drafter()) return {};
  DI_RETURN_IF_ERROR(check_ids("dspark_target_layer_ids", c->dspark_target_layer_ids, c->num_hidden_layers));
  if (c->dspark_target_layer_ids.empty()) return bad("text_config.dspark_target_layer_ids is empty");
  if (c->dspark_target_layer_ids.front() < c->decoder_start) {
    return bad(
        "text_config.dspark_target_layer_ids names layer {}; only layers of the decoder half (from {}) can feed the "
        "drafter",
        c->dspark_target_layer_ids.front(), c->decoder_start);
  }
  if (c->dspark_num_experts_per_tok < 1 || c->dspark_num_experts_per_tok > c->dspark_n_routed_experts) {
    return bad("text_config.dspark_num_experts_per_tok is {}; there are {} drafter experts",
               c->dspark_num_experts_per_tok, c->dspark_n_routed_experts);
  }
  int tap = 0;
  for (int64_t id : c->dspark_target_layer_ids) c->layers[static_cast<size_t>(id)].dspark_tap = tap++;
  return {};
}

Status finish_engram(ModelConfig* c) {
  c->engram.clear();
  DI_RETURN_IF_ERROR(check_ids("engram_layer_ids", c->engram_layer_ids, c->num_hidden_layers));
  if (c->engram_num_embeddings.size() != c->engram_layer_ids.size()) {
    return bad("text_config.engram_num_embeddings has {} entries for {} Engram layers", c->engram_num_embeddings.size(),
               c->engram_layer_ids.size());
  }
  if (c->engram_layer_ids.empty()) return {};
  if (c->engram_layer_ids.back() >= c->decoder_start) {
    return bad("text_config.engram_layer_ids names layer {}; Engram layers lie before the decoder half (layer {})",
               c->engram_layer_ids.back(), c->decoder_start);
  }
  DI_RETURN_IF_ERROR(check_multiple("text_config.engram_head_dim", c->engram_head_dim, 32));
  if (c->engram_compressed_vocab_size > c->vocab_size) {
    return bad("text_config.engram_compressed_vocab_size ({}) is larger than vocab_size ({})",
               c->engram_compressed_vocab_size, c->vocab_size);
  }
  const int64_t layers = static_cast<int64_t>(c->engram_layer_ids.size());
  if (layers * c->engram_columns() > kMaxEngramPrimes) {
    return bad("text_config asks for {} Engram hash columns; at most {} are supported", layers * c->engram_columns(),
               kMaxEngramPrimes);
  }
  const auto primes = engram_primes(layers, c->engram_max_ngram_size - 1, c->engram_n_heads, c->engram_vocab_size);
  for (size_t i = 0; i < primes.size(); ++i) {
    EngramInfo info;
    info.layer = static_cast<int>(c->engram_layer_ids[i]);
    info.primes = primes[i];
    for (int64_t p : info.primes) {
      info.offsets.push_back(info.rows);
      info.rows += p;
    }
    if (info.rows > INT32_MAX)
      return bad("the Engram table of layer {} has {} rows; row numbers must fit 31 bits", info.layer, info.rows);
    if (info.rows != c->engram_num_embeddings[i]) {
      return bad("text_config.engram_num_embeddings[{}] is {}, but the primes from {} sum to {}", i,
                 c->engram_num_embeddings[i], c->engram_vocab_size, info.rows);
    }
    info.multipliers = engram_multipliers(info.layer, c->engram_compressed_vocab_size, c->engram_max_ngram_size);
    c->layers[static_cast<size_t>(info.layer)].engram = static_cast<int>(i);
    c->engram.push_back(std::move(info));
  }
  return {};
}

std::vector<int64_t> official_ratios() {
  std::vector<int64_t> r(43, 0);
  std::fill(r.begin() + 2, r.begin() + 20, 2);
  std::fill(r.begin() + 20, r.begin() + 40, 1);
  return r;
}

// Presets are right by construction; a failure here is a defect of this file.
ModelConfig completed(ModelConfig c) {
  if (!c.complete().ok()) std::abort();
  return c;
}

ModelConfig tiny_values() {
  ModelConfig c;
  c.image_token_id = 8186;
  c.vocab_size = 8192;
  c.hidden_size = 256;
  c.moe_intermediate_size = 128;
  c.num_hidden_layers = 8;
  c.num_attention_heads = 8;
  c.head_dim = 64;
  c.qk_rope_head_dim = 32;
  c.q_lora_rank = 64;
  c.o_lora_rank = 64;
  c.o_groups = 2;
  c.swiglu_limit = 1.5;
  c.max_position_embeddings = 65536;
  c.rope_scaling.original_max_position_embeddings = 64;
  c.n_routed_experts = 16;
  c.num_experts_per_tok = 4;
  c.sliding_window = 32;
  c.compress_ratios = {0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0};
  c.kv_source_layer_ids = {1, 3, 4};
  c.index_source_layer_ids = {1, 3, 4, 6};
  c.index_n_heads = 4;
  c.index_head_dim = 64;
  c.index_topk = 32;
  c.candidate_source_layer_id = 4;
  c.candidate_topk_blocks = 8;
  c.engram_layer_ids = {1, 3};
  c.engram_num_embeddings = {6126, 6332};
  c.engram_vocab_size = 1000;
  c.engram_n_heads = 2;
  c.engram_head_dim = 32;
  c.engram_compressed_vocab_size = 4096;
  c.dspark_noise_token_id = 9;
  c.dspark_target_layer_ids = {5, 6, 7};
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 8;
  c.dspark_num_experts_per_tok = 2;
  return c;
}

}  // namespace

std::string_view role_name(LayerRole role) {
  switch (role) {
    case LayerRole::kWindow: return "window";
    case LayerRole::kFull: return "full";
    case LayerRole::kReindex: return "reindex";
    case LayerRole::kReuse: return "reuse";
  }
  return "?";
}

double ModelConfig::attention_scale() const { return std::pow(static_cast<double>(head_dim), -0.5); }

double ModelConfig::index_scale() const {
  return std::pow(static_cast<double>(index_head_dim * index_n_heads), -0.5);
}

uint64_t ModelConfig::kv_bytes_per_block() const {
  const uint64_t entry = numeric::entry_record_bytes(static_cast<size_t>(head_dim)) +
                         numeric::key_record_bytes(static_cast<size_t>(index_head_dim));
  uint64_t bytes = 0;
  for (const LayerInfo& layer : layers) {
    if (layer.owns_kv()) bytes += entry * static_cast<uint64_t>(kBlockTokens / layer.ratio);
  }
  return bytes;
}

Status ModelConfig::complete() {
  if (compress_ratios.empty() && num_hidden_layers == 40) compress_ratios = official_ratios();
  DI_RETURN_IF_ERROR(check_shapes(*this));
  DI_RETURN_IF_ERROR(check_token_ids(*this));
  DI_RETURN_IF_ERROR(check_candidates(*this));
  DI_RETURN_IF_ERROR(finish_ratios(this));
  DI_RETURN_IF_ERROR(finish_layers(this));
  DI_RETURN_IF_ERROR(finish_drafter(this));
  return finish_engram(this);
}

Result<ModelConfig> first_layers(const ModelConfig& config, int64_t n) {
  if (n < 1 || n > config.num_hidden_layers) {
    return make_error(Code::kInvalidArgument, "cannot keep the first {} layers of a model with {} layers", n,
                      config.num_hidden_layers);
  }
  ModelConfig c = config;
  c.num_hidden_layers = n;
  c.compress_ratios.assign(config.compress_ratios.begin(), config.compress_ratios.begin() + n);
  c.compress_ratios.resize(static_cast<size_t>(n + c.num_nextn_predict_layers), 0);
  const auto beyond = [n](int64_t id) { return id >= n; };
  std::erase_if(c.kv_source_layer_ids, beyond);
  std::erase_if(c.index_source_layer_ids, beyond);
  while (c.engram_layer_ids.size() > 0 && c.engram_layer_ids.back() >= n) {
    c.engram_layer_ids.pop_back();
    c.engram_num_embeddings.pop_back();
  }
  if (n <= config.decoder_start) {
    return make_error(Code::kInvalidArgument,
                      "the first {} layers hold no compressed-KV source of ratio 1; keep at least {}", n,
                      config.decoder_start + 1);
  }
  const int64_t taps = static_cast<int64_t>(config.dspark_target_layer_ids.size());
  c.dspark_target_layer_ids.clear();
  for (int64_t l = n - taps; l < n; ++l) c.dspark_target_layer_ids.push_back(l);
  DI_RETURN_IF_ERROR(c.complete());
  return c;
}

ModelConfig tiny_config() { return completed(tiny_values()); }

ModelConfig tiny_wide_config() {
  ModelConfig c = tiny_values();
  c.hidden_size = 384;
  c.num_attention_heads = 16;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 128;
  c.o_groups = 4;
  c.o_lora_rank = 128;
  c.sliding_window = 128;
  c.index_n_heads = 8;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_topk_blocks = 128;
  c.num_experts_per_tok = 6;
  c.moe_intermediate_size = 256;
  c.engram_head_dim = 256;
  c.engram_n_heads = 8;
  c.engram_num_embeddings.clear();
  for (const auto& row : engram_primes(2, 3, 8, c.engram_vocab_size)) {
    int64_t sum = 0;
    for (int64_t p : row) sum += p;
    c.engram_num_embeddings.push_back(sum);
  }
  c.rope_scaling.original_max_position_embeddings = 256;
  return completed(std::move(c));
}

ModelConfig official_config() { return completed(ModelConfig{}); }

}  // namespace deepinfer::checkpoint
