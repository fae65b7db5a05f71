#include "model/work.h"

#include <algorithm>
#include <limits>

#include "checkpoint/tensors.h"

namespace deepinfer::model {
namespace {

using checkpoint::Group;

// Sum over u = 1 .. n of min(floor(u / ratio), cap).
double sum_of_entries(int64_t n, int64_t ratio, int64_t cap) {
  const bool capped = cap < n / ratio;
  const int64_t whole = capped ? ratio * cap : n, quotient = whole / ratio;
  const double below =
      static_cast<double>(ratio) * static_cast<double>(quotient) * static_cast<double>(quotient - 1) / 2 +
      static_cast<double>(quotient) * static_cast<double>(whole - ratio * quotient + 1);
  return below + static_cast<double>(n - whole) * static_cast<double>(capped ? cap : 0);
}

// Of the rows at positions first .. last - 1, which see floor((position + 1) / ratio) entries, but at most cap.
double entries_of(int64_t first, int64_t last, int64_t ratio, int64_t cap) {
  return sum_of_entries(last, ratio, cap) - sum_of_entries(first, ratio, cap);
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  linear += other.linear;
  attention += other.attention;
  index += other.index;
  return *this;
}

WorkCounter::WorkCounter(const checkpoint::ModelConfig& config)
    : layers_(static_cast<size_t>(config.num_hidden_layers)),
      per_key_(4.0 * static_cast<double>(config.num_attention_heads * config.head_dim)),
      per_scored_(2.0 * static_cast<double>(config.index_n_heads * config.index_head_dim)),
      window_(config.sliding_window),
      selected_max_(config.index_topk) {
  for (const checkpoint::TensorSpec& t : checkpoint::expected_tensors(config)) {
    if (t.shape.size() < 2) continue;
    double work = 2.0 * static_cast<double>(checkpoint::parameters(t));
    if (t.group == Group::kHead) head_ += work;
    const bool of_layer = t.group == Group::kAttention || t.group == Group::kSharedExperts ||
                          t.group == Group::kRoutedExperts ||
                          (t.group == Group::kEngramDense && t.name.ends_with("wkv.weight"));
    if (!of_layer || t.layer < 0) continue;
    if (t.group == Group::kRoutedExperts) {
      work *= static_cast<double>(config.num_experts_per_tok) / static_cast<double>(config.n_routed_experts);
    }
    layers_[static_cast<size_t>(t.layer)].linear += work;
    const bool kv = t.name.find("attn.compressor.") != std::string::npos || t.name.ends_with("indexer.wk.weight");
    if (kv && t.layer == config.decoder_start) decoder_kv_ += work;
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const checkpoint::LayerInfo& info = config.layers[l];
    Layer& layer = layers_[l];
    layer.decoder = info.decoder_half;
    layer.attends_entries = info.kv_source >= 0;
    layer.scores = info.owns_index();
    layer.ratio = info.kv_source >= 0 ? config.layers[static_cast<size_t>(info.kv_source)].ratio : 1;
    layer.scored_max = info.uses_candidates ? config.candidate_topk_blocks * config.candidate_block_size
                                            : std::numeric_limits<int64_t>::max();
  }
}

void WorkCounter::add_layer(const Layer& layer, int64_t first, int64_t last, int64_t window_begin, Work* out) const {
  if (first >= last) return;
  out->linear += layer.linear * static_cast<double>(last - first);
  const int64_t begin = std::min(window_begin, first);  // windows hold nothing below
  double keys = entries_of(first - begin, last - begin, 1, window_);
  if (layer.attends_entries) keys += entries_of(first, last, layer.ratio, selected_max_);
  out->attention += per_key_ * keys;
  if (layer.scores) out->index += per_scored_ * entries_of(first, last, layer.ratio, layer.scored_max);
}

Work WorkCounter::of(const StepSequence& s) const {
  Work out;
  const int64_t first = s.first_position, last = first + s.count,
                tail = std::clamp<int64_t>(s.decoder_begin, first, last);
  for (const Layer& layer : layers_) {
    if (layer.decoder) {
      add_layer(layer, tail, last, s.decoder_begin, &out);
    } else {
      add_layer(layer, first, last, s.window_begin, &out);
    }
  }
  out.linear += decoder_kv_ * static_cast<double>(tail - first) + head_ * s.outputs;
  return out;
}

}  // namespace deepinfer::model
