// A model of the official width with few layers and no drafter or Engram tables, of which the second layer makes the
// global KV and the first has a window only.
#pragma once

#include "bench/must.h"
#include "checkpoint/config.h"

namespace bench {

inline deepinfer::checkpoint::ModelConfig full_width(int layers, int experts) {
  deepinfer::checkpoint::ModelConfig c;
  c.vocab_size = 16384;
  c.image_token_id = 5;
  c.dspark_noise_token_id = 6;
  c.num_hidden_layers = layers;
  c.compress_ratios.assign(static_cast<size_t>(layers), 1);
  c.compress_ratios[0] = 0;
  c.kv_source_layer_ids = c.index_source_layer_ids = {1};
  c.candidate_source_layer_id = 1;
  c.engram_layer_ids.clear();
  c.engram_num_embeddings.clear();
  c.num_nextn_predict_layers = 0;
  c.dspark_target_layer_ids.clear();
  c.n_routed_experts = experts;
  must(c.complete());
  return c;
}

}  // namespace bench
