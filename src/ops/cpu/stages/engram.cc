// Token embedding and Engram (spec/model.md 5.1, 10).
#include <cmath>

#include "checkpoint/store/weight_store.h"
#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {

double engram_gate(double dot) {
  const double z = std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot);
  return 1 / (1 + std::exp(-z));
}

template <class T>
void Backend<T>::embed(Rows which) {
  const RowSet& set = set_of(which);
  Matrix read = w_.embed;  // with a store: the set's rows in order
  const int table = w_.store != nullptr ? w_.store->embedding_table() : -1;
  if (table >= 0) read.data = w_.store->rows().wait(table);
  auto body = [&](int64_t begin, int64_t end) { embed_rows(set, read, table >= 0, begin, end); };
  parallel(set.rows, body, 16);
}

// in_order: row i of `read` is the embedding of row i's token.
template <class T>
void Backend<T>::embed_rows(const RowSet& set, const Matrix& read, bool in_order, int64_t begin, int64_t end) {
  const int64_t D = c_.hidden_size, C = c_.hc_mult;
  for (int64_t i = begin; i < end; ++i) {
    float* x = at<float>(Role::kResidual, i);
    if (set.image(static_cast<int>(i))) {
      std::copy_n(at<float>(Role::kImageRows, set.image_row[i]), D, x);
    } else {
      expand_row(read, in_order ? i : set.tokens[i], x);
    }
    for (int64_t s = 1; s < C; ++s) std::copy_n(x, D, x + s * D);
    T* pre = at<T>(Role::kPre, i);
    std::fill(pre, pre + C, T{0});
    pre[0] = 1;
  }
}

template <class T>
void Backend<T>::engram_lookup(Rows which) {
  if (c_.engram.empty()) return;
  hash_engram(which);
  engram_unasked_ = which;
  ask_engram();
}

// Which table rows the set needs.
template <class T>
void Backend<T>::hash_engram(Rows which) {
  const RowSet& set = set_of(which);
  const int64_t ngram = c_.engram_max_ngram_size, heads = c_.engram_n_heads, columns = c_.engram_columns();
  const int64_t pad = w_.token_classes[c_.engram_pad_token_id];
  for (int i = 0; i < set.rows; ++i) {
    const SequenceRows& s = set.of(i);
    const int back = i - s.first_row;  // rows of this step before it
    const int32_t* history = set.history.data() + set.sequence[i] * (ngram - 1);
    // The token k places back, or kNoToken; an image position or the start blocks everything behind it.
    const auto token = [&](int k) {
      return k > back ? history[k - back - 1] : set.image(i - k) ? kNoToken : set.tokens[i - k];
    };
    for (size_t e = 0; e < c_.engram.size(); ++e) {
      const checkpoint::EngramInfo& info = c_.engram[e];
      int32_t* rows = at<int32_t>(Role::kEngramRows, i) + e * columns;
      bool blocked = false;
      int64_t hash = 0;
      for (int k = 0; k < ngram; ++k) {
        const int32_t t = blocked ? kNoToken : token(k);
        blocked = t == kNoToken;
        hash ^= (blocked ? pad : w_.token_classes[t]) * info.multipliers[k];
        for (int64_t a = 0; k > 0 && a < heads; ++a) {
          const int64_t column = (k - 1) * heads + a;
          rows[column] = static_cast<int32_t>(hash % info.primes[column] + info.offsets[column]);
        }
      }
    }
  }
}

// Has them read, where a table is on the SSD and that was not done yet.
template <class T>
void Backend<T>::ask_engram() {
  if (!engram_unasked_) return;
  const RowSet& set = set_of(*engram_unasked_);
  engram_unasked_.reset();
  const int64_t columns = c_.engram_columns();
  for (size_t e = 0; w_.store != nullptr && e < c_.engram.size(); ++e) {
    if (w_.store->engram_table(e) < 0) continue;
    engram_ids_.clear();
    for (int i = 0; i < set.rows; ++i) {
      const int32_t* rows = at<int32_t>(Role::kEngramRows, i) + e * columns;
      engram_ids_.insert(engram_ids_.end(), rows, rows + columns);
    }
    w_.store->rows().request(w_.store->engram_table(e), engram_ids_);
  }
}

// Table rows of every row's n-grams side by side: e [rows, engram_width].
template <class T>
void Backend<T>::gather_engram(Rows which, int layer, float* e) {
  ask_engram();
  auto gather = [&](int64_t begin, int64_t end) {
    gather_engram_rows(layer, begin, end, e + begin * c_.engram_width());
  };
  parallel(row_count(which), gather, 8);
}

// e: row `begin` first.
template <class T>
void Backend<T>::gather_engram_rows(int layer, int64_t begin, int64_t end, float* e) const {
  const Matrix& codes = w_.layers[layer].engram.table;
  const int64_t index = c_.layers[layer].engram, columns = c_.engram_columns(), width = c_.engram_width();
  const int table = w_.store != nullptr ? w_.store->engram_table(static_cast<size_t>(index)) : -1;
  const std::byte* read = table >= 0 ? w_.store->rows().wait(table) : nullptr;
  const auto expand = [&](int64_t place, int32_t row, float* out) {
    if (table < 0) return expand_row(codes, row, out);
    Matrix one = codes;
    one.data = read + static_cast<size_t>(place) * w_.store->rows().stride(table);
    one.scale = one.data + one.cols;
    expand_row(one, 0, out);
  };
  for (int64_t i = begin; i < end; ++i) {
    const int32_t* rows = at<int32_t>(Role::kEngramRows, i) + index * columns;
    for (int64_t j = 0; j < columns; ++j)
      expand(i * columns + j, rows[j], e + (i - begin) * width + j * c_.engram_head_dim);
  }
}

// Adds the value in kv [C + 1, D] to a row's streams, each by its gate. The gate takes the root of a dot product that
// nearly cancels, and one gate scales D values: in double for every T (ORDER.md).
template <class T>
void Backend<T>::add_engram(int layer, bool image, const float* kv, float* streams, T* gates) const {
  const int64_t D = c_.hidden_size, C = c_.hc_mult;
  const double *qk = vectors_[layer].engram_qk.data(), root = std::sqrt(static_cast<double>(D)), eps = c_.rms_norm_eps;
  const float* value = kv + C * D;
  for (int64_t s = 0; s < C; ++s) {
    float* x = streams + s * D;
    const float* k = kv + s * D;
    std::array<double, kLanes> lanes{};
    for (int64_t j = 0; j < D; ++j) lanes[j % kLanes] += x[j] * qk[s * D + j] * k[j];
    double dot = 0;
    for (double v : lanes) dot += v;
    dot *= 1 / std::sqrt(sum_squares<double>(x, D) / static_cast<double>(D) + eps);
    dot *= 1 / std::sqrt(sum_squares<double>(k, D) / static_cast<double>(D) + eps);
    dot /= root;
    gates[s] = image ? T{0} : static_cast<T>(engram_gate(dot));
    for (int64_t j = 0; j < D; ++j) x[j] = round(static_cast<T>(x[j]) + gates[s] * static_cast<T>(value[j]));
  }
}

template <class T>
void Backend<T>::add_engram_rows(At where, const float* kv) {
  const RowSet& set = set_of(where.rows);
  const int64_t width = (c_.hc_mult + 1) * c_.hidden_size;
  auto add = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      add_engram(where.layer, set.image(static_cast<int>(i)), kv + i * width, at<float>(Role::kResidual, i),
                 at<T>(Role::kEngramGate, i));
  };
  parallel(set.rows, add, 4);
}

template <class T>
void Backend<T>::engram_apply(At where) {
  float *e = stage_rows_.data(), *kv = wide_rows_.data();
  gather_engram(where.rows, where.layer, e);
  linear(w_.layers[where.layer].engram.wkv, e, c_.engram_width(), row_count(where.rows), kv,
         (c_.hc_mult + 1) * c_.hidden_size);
  add_engram_rows(where, kv);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
