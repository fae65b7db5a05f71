// Mixture of experts (spec/model.md 9).
#include <cmath>
#include <limits>

#include "checkpoint/store/weight_store.h"
#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {

template <class T>
void Backend<T>::choose_experts(const RowSet& set, int layer, int64_t row, T* score) {
  const LayerVectors& v = vectors_[layer];
  const int64_t experts = w_.layers[layer].moe.gate.rows, k = experts_per_row(layer);
  T* biased = scratch<T>(Slot::kProbabilities, experts);
  int32_t* order = scratch<int32_t>(Slot::kOrder, experts);
  const std::vector<float>& bias = set.image(static_cast<int>(row)) ? v.bias_vl : v.bias;
  for (int64_t e = 0; e < experts; ++e) {
    const T z = score[e];
    score[e] = std::sqrt(z > T{20} ? z : std::log1p(std::exp(z)));
    const T b = score[e] + static_cast<T>(bias[e]);
    biased[e] =
        std::isnan(b) ? -std::numeric_limits<T>::infinity() : b;  // damaged weights: NaN has no place in an order
    order[e] = static_cast<int32_t>(e);
  }
  std::partial_sort(order, order + k, order + experts, [biased](int32_t a, int32_t b) {
    return biased[a] != biased[b] ? biased[a] > biased[b] : a < b;
  });
  int32_t* ids = at<int32_t>(Role::kExpertIds, row);
  T* weights = at<T>(Role::kExpertWeights, row);
  T sum = 0;
  for (int64_t e = 0; e < k; ++e) sum += score[order[e]];
  for (int64_t e = 0; e < k; ++e) {
    ids[e] = order[e];
    weights[e] = score[order[e]] / (sum + static_cast<T>(1e-20)) * static_cast<T>(c_.routed_scaling_factor);
  }
  std::fill(ids + k, ids + buffer(Role::kExpertIds).cols, -1);
}

template <class T>
void Backend<T>::route(At where) {
  const RowSet& set = set_of(where.rows);
  const MoeWeights& w = w_.layers[where.layer].moe;
  const int64_t experts = w.gate.rows;
  auto body = [&](int64_t begin, int64_t end) {
    T* s = scratch<T>(Slot::kScores, kMixRows * experts);
    for (int64_t i0 = begin; i0 < end; i0 += kMixRows) {
      const int64_t n = std::min<int64_t>(kMixRows, end - i0);
      multiply_rows<T>(w.gate, 0, experts, at<float>(Role::kSublayerIn, i0), c_.hidden_size, n, s, experts);
      for (int64_t i = 0; i < n; ++i) {
        choose_experts(set, where.layer, i0 + i, s + i * experts);
      }
    }
  };
  parallel(set.rows, body, kMixRows);
}

// n <= kExpertRows rows through one expert; weight is null for the shared one. x is already quantised.
template <class T>
void Backend<T>::ffn_rows(const ExpertWeights& w, const float* x, int64_t n, const T* weight, float* out) {
  const int64_t inter = w.gate.rows, D = w.gate.cols;
  const T limit = static_cast<T>(c_.swiglu_limit);
  float* hidden = scratch<float>(Slot::kGate, n * inter);
  T* up = scratch<T>(Slot::kUp, n * kLanes);
  T* gate = scratch<T>(Slot::kTile, n * kLanes);
  for (int64_t j = 0; j < inter; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, inter - j);
    multiply_rows<T>(w.gate, j, count, x, D, n, gate, kLanes);
    multiply_rows<T>(w.up, j, count, x, D, n, up, kLanes);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t l = 0; l < count; ++l) {
        const T g = std::min<T>(round(gate[i * kLanes + l]), limit);
        const T u = std::clamp<T>(round(up[i * kLanes + l]), -limit, limit);
        const T h = g / (T{1} + std::exp(-g)) * u;
        hidden[i * inter + j + l] = round(weight != nullptr ? h * weight[i] : h);
      }
    }
  }
  if (rounding_) numeric::fq8(std::span<float>(hidden, n * inter));
  for (int64_t j = 0; j < D; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, D - j);
    multiply_rows<T>(w.down, j, count, hidden, inter, n, gate, kLanes);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t l = 0; l < count; ++l) out[i * D + j + l] = round(gate[i * kLanes + l]);
    }
  }
}

template <class T>
void Backend<T>::group_by_expert(const ExpertRows& rows, size_t experts, int rows_max) {
  const auto* ids = static_cast<const int32_t*>(rows.ids.data);
  const int64_t columns = rows.ids.cols;
  expert_begin_.assign(experts + 1, 0);
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int k = 0; k < rows.per_row; ++k) {
      if (const int32_t e = ids[i * columns + k]; e >= 0) ++expert_begin_[e + 1];
    }
  }
  expert_tasks_.clear();
  for (size_t e = 0; e < experts; ++e) {
    const int count = expert_begin_[e + 1];
    expert_begin_[e + 1] += expert_begin_[e];
    for (int first = 0; first < count; first += rows_max)
      expert_tasks_.push_back({static_cast<int>(e), expert_begin_[e] + first, std::min(rows_max, count - first)});
  }
  expert_order_.resize(expert_begin_.back());
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int k = 0; k < rows.per_row; ++k) {
      if (const int32_t e = ids[i * columns + k]; e >= 0)
        expert_order_[expert_begin_[e]++] = static_cast<int32_t>(i * columns + k);
    }
  }
}

template <class T>
void Backend<T>::begin_experts(int layer) {
  experts_layer_ = layer;
  ready_experts_ = w_.layers[layer].moe.experts.data();
  if (w_.store == nullptr) return;
  needed_experts_.clear();
  for (const ExpertTask& t : expert_tasks_) {
    if (needed_experts_.empty() || needed_experts_.back() != t.expert) needed_experts_.push_back(t.expert);
  }
  w_.store->experts().begin(layer, needed_experts_);
}

template <class T>
bool Backend<T>::next_experts(const ExpertRows& rows) {
  if (experts_layer_ < 0) return false;
  ready_tasks_.clear();
  if (w_.store == nullptr) {
    for (size_t t = 0; t < expert_tasks_.size(); ++t) ready_tasks_.push_back(static_cast<int32_t>(t));
    experts_layer_ = -1;
    return !ready_tasks_.empty();
  }
  const std::span<const checkpoint::ExpertCache::Arrived> arrived = w_.store->experts().next();
  for (const checkpoint::ExpertCache::Arrived& a : arrived) {
    ExpertWeights& e = read_experts_[a.expert] = w_.layers[experts_layer_].moe.experts[a.expert];
    for (int i = 0; Matrix* m : {&e.gate, &e.up, &e.down}) {
      m->data = a.at.part[i++];
      m->scale = a.at.part[i++];
    }
    const auto first = std::lower_bound(expert_tasks_.begin(), expert_tasks_.end(), a.expert,
                                        [](const ExpertTask& t, int32_t expert) { return t.expert < expert; });
    for (auto t = first; t != expert_tasks_.end() && t->expert == a.expert; ++t) {
      if (!a.failed) {
        ready_tasks_.push_back(static_cast<int32_t>(t - expert_tasks_.begin()));
        continue;
      }
      auto* output = static_cast<float*>(rows.output.data);
      for (int i = 0; i < t->count; ++i)
        std::fill_n(output + expert_order_[t->first + i] * c_.hidden_size, c_.hidden_size, 0.0f);
    }
  }
  ready_experts_ = read_experts_.data();
  if (arrived.empty()) experts_layer_ = -1;
  return !arrived.empty();
}

template <class T>
void Backend<T>::experts(At where, const ExpertRows& rows) {
  const std::vector<ExpertWeights>& experts = w_.layers[where.layer].moe.experts;
  const auto* weights = static_cast<const T*>(rows.weights.data);
  const auto* input = static_cast<const float*>(rows.input.data);
  auto* output = static_cast<float*>(rows.output.data);
  const int64_t columns = rows.ids.cols, D = c_.hidden_size;
  group_by_expert(rows, experts.size(), kExpertRows);
  auto body = [&](int64_t begin, int64_t end) {
    float* x = scratch<float>(Slot::kInput, kExpertRows * D);
    float* out = scratch<float>(Slot::kKeys, kExpertRows * D);
    T weight[kExpertRows];
    for (int64_t t = begin; t < end; ++t) {
      const ExpertTask& task = expert_tasks_[ready_tasks_[t]];
      for (int i = 0; i < task.count; ++i) {
        const int32_t pair = expert_order_[task.first + i];
        std::copy_n(input + pair / columns * D, D, x + i * D);
        weight[i] = weights[pair];
      }
      if (rounding_) numeric::fq8(std::span<float>(x, task.count * D));
      ffn_rows(ready_experts_[task.expert], x, task.count, weight, out);
      for (int i = 0; i < task.count; ++i) std::copy_n(out + i * D, D, output + expert_order_[task.first + i] * D);
    }
  };
  begin_experts(where.layer);
  while (next_experts(rows)) parallel(static_cast<int64_t>(ready_tasks_.size()), body);
}

template <class T>
void Backend<T>::shared_expert(At where) {
  const ExpertWeights& shared = w_.layers[where.layer].moe.shared;
  const int64_t n = row_count(where.rows), D = c_.hidden_size;
  auto body = [&](int64_t begin, int64_t end) {
    float* x = scratch<float>(Slot::kInput, kExpertRows * D);
    for (int64_t i0 = begin; i0 < end; i0 += kExpertRows) {
      const int64_t m = std::min<int64_t>(kExpertRows, end - i0);
      std::copy_n(at<float>(Role::kSublayerIn, i0), m * D, x);
      if (rounding_) numeric::fq8(std::span<float>(x, m * D));
      ffn_rows(shared, x, m, nullptr, at<float>(Role::kSharedOut, i0));
    }
  };
  parallel(n, body, kExpertRows);
}

template <class T>
void Backend<T>::combine(At where) {
  const int64_t D = c_.hidden_size, k = experts_per_row(where.layer);
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *shared = at<float>(Role::kSharedOut, i), *routed = at<float>(Role::kExpertOut, i);
      float* out = at<float>(Role::kSublayerOut, i);
      for (int64_t e = 0; e < D; ++e) {
        T sum = shared[e];
        for (int64_t j = 0; j < k; ++j) sum += static_cast<T>(routed[j * D + e]);
        out[e] = round(sum);
      }
    }
  };
  parallel(row_count(where.rows), body, 16);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
