#include "model/weights.h"

#include <map>
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/store/weight_store.h"

namespace deepinfer::model {
namespace {

using ops::Matrix;
using ops::WeightFormat;

WeightFormat weight_format(checkpoint::Format f) {
  switch (f) {
    case checkpoint::Format::kF32: return WeightFormat::kF32;
    case checkpoint::Format::kBF16: return WeightFormat::kBf16;
    case checkpoint::Format::kFp8: return WeightFormat::kFp8;
    case checkpoint::Format::kFp8Rows: return WeightFormat::kFp8Rows;
    case checkpoint::Format::kFp4: return WeightFormat::kFp4;
  }
  return WeightFormat::kF32;
}

class Collector {
 public:
  Collector(const checkpoint::Checkpoint& c, const checkpoint::WeightStore* store) {
    const auto address = [&](const std::string& name) {
      return store != nullptr ? store->find(name) : c.tensor(name).data;
    };
    for (const checkpoint::TensorSpec& spec : c.specs()) {
      Matrix m;
      m.format = weight_format(spec.format);
      m.cols = spec.shape.back();
      m.rows = spec.shape.size() > 1 ? spec.shape[0] : 1;
      m.data = address(spec.name);
      if (checkpoint::has_scale(spec.format)) m.scale = address(checkpoint::scale_name(spec.name));
      matrices_.emplace(spec.name, m);
    }
  }

  // Empty where the model has no such tensor.
  Matrix get(const std::string& name) const {
    const auto it = matrices_.find(name);
    return it == matrices_.end() ? Matrix{} : it->second;
  }

  ops::ExpertWeights expert(const std::string& p) const {
    return {get(p + "w1.weight"), get(p + "w3.weight"), get(p + "w2.weight")};
  }

  ops::HyperWeights hyper(const std::string& p) const { return {get(p + "_fn"), get(p + "_base"), get(p + "_scale")}; }

  ops::LayerWeights layer(const std::string& p, int64_t experts) const {
    ops::LayerWeights w;
    w.attn_norm = get(p + "attn_norm.weight");
    w.ffn_norm = get(p + "ffn_norm.weight");
    w.hc_attn = hyper(p + "hc_attn");
    w.hc_ffn = hyper(p + "hc_ffn");
    const std::string a = p + "attn.", f = p + "ffn.", e = p + "engram.";
    w.attention = {get(a + "attn_sink"),  get(a + "wq_a.weight"),    get(a + "q_norm.weight"), get(a + "wq_b.weight"),
                   get(a + "wkv.weight"), get(a + "kv_norm.weight"), get(a + "wo_a.weight"),   get(a + "wo_b.weight")};
    w.compressor = {get(a + "compressor.wkv.weight"), get(a + "compressor.wgate.weight"),
                    get(a + "compressor.norm.weight")};
    w.indexer = {get(a + "indexer.wk.weight"), get(a + "indexer.k_norm.weight"), get(a + "indexer.wq_b.weight"),
                 get(a + "indexer.weights_proj.weight")};
    w.moe.gate = get(f + "gate.weight");
    w.moe.bias = get(f + "gate.bias");
    w.moe.bias_vl = get(f + "gate.bias_vl");
    w.moe.shared = expert(f + "shared_experts.");
    for (int64_t i = 0; i < experts; ++i) w.moe.experts.push_back(expert(f + "experts." + std::to_string(i) + "."));
    w.engram = {get(e + "embed.weight"), get(e + "wkv.weight"), get(e + "q_weight"), get(e + "k_weight")};
    return w;
  }

 private:
  std::map<std::string, Matrix> matrices_;
};

}  // namespace

ops::ModelWeights collect_weights(const checkpoint::Checkpoint& checkpoint,
                                  std::shared_ptr<checkpoint::WeightStore> store) {
  const checkpoint::ModelConfig& c = checkpoint.config();
  const Collector from(checkpoint, store.get());
  ops::ModelWeights w;
  w.embed = from.get("embed.weight");
  w.norm = from.get("norm.weight");
  w.head = from.get("head.weight");
  w.image_start = from.get("image_start");
  w.image_newline = from.get("image_newline");
  w.image_end = from.get("image_end");
  for (int64_t l = 0; l < c.num_hidden_layers; ++l)
    w.layers.push_back(from.layer("layers." + std::to_string(l) + ".", c.n_routed_experts));
  for (int64_t j = 0; j < c.num_nextn_predict_layers; ++j)
    w.layers.push_back(from.layer("mtp." + std::to_string(j) + ".", c.dspark_n_routed_experts));
  const std::string last = "mtp." + std::to_string(c.num_nextn_predict_layers - 1) + ".";
  w.main_proj = from.get("mtp.0.main_proj.weight");
  w.main_norm = from.get("mtp.0.main_norm.weight");
  w.draft_norm = from.get(last + "norm.weight");
  w.markov_embed = from.get(last + "markov_head.embed.weight");
  w.markov_head = from.get(last + "markov_head.head.weight");
  w.confidence = from.get(last + "confidence_head.proj.weight");
  w.token_classes.assign(checkpoint.engram_token_classes().begin(), checkpoint.engram_token_classes().end());
  w.store = std::move(store);
  return w;
}

}  // namespace deepinfer::model
