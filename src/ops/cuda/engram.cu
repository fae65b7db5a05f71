// Token embedding, Engram and the drafter's own parts (spec/model.md 5.1, 10, 11.3).
#include "checkpoint/store/weight_store.h"
#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256, kStreams = 4;

// in_order: the table holds the rows of this step one after the other.
__global__ __launch_bounds__(kThreads) void embed_kernel(RowView v, const bf16* table, bool in_order,
                                                         const bf16* images, int d, bf16* x, float* pre) {
  const int64_t row = blockIdx.x;
  const bf16* from = v.image(row) ? images + static_cast<int64_t>(v.image_row[row]) * d
                                  : table + (in_order ? row : static_cast<int64_t>(v.token(v.tokens[row]))) * d;
  for (int i = threadIdx.x; i < d; i += kThreads) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) x[(row * kStreams + s) * d + i] = from[i];
  }
  if (threadIdx.x < kStreams) pre[row * kStreams + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

struct LookupArguments {
  RowView v;
  const int32_t* classes;
  const int64_t* constants;  // per layer: multipliers[ngram], primes[columns], offsets[columns]
  int rows, ngram, heads, layers, pad_token;
  int32_t* out;
};

// A thread a row and Engram layer.
__global__ void lookup_kernel(LookupArguments a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / a.layers, layer = i % a.layers;
  if (row >= a.rows) return;
  const SequenceRows& s = a.v.sequences[a.v.sequence[row]];
  const int back = row - s.first_row, columns = (a.ngram - 1) * a.heads;
  const int32_t* history = a.v.history + a.v.sequence[row] * (a.ngram - 1);
  const int64_t *multipliers = a.constants + layer * (a.ngram + 2 * columns), *primes = multipliers + a.ngram,
                *offsets = primes + columns;
  const int64_t pad = a.classes[a.pad_token];
  int32_t* out = a.out + (static_cast<int64_t>(row) * a.layers + layer) * columns;
  bool blocked = false;
  int64_t hash = 0;
  for (int k = 0; k < a.ngram; ++k) {
    int32_t t = kNoToken;
    if (!blocked)
      t = k > back ? a.v.token(history[k - back - 1]) : a.v.image(row - k) ? kNoToken : a.v.token(a.v.tokens[row - k]);
    blocked = t == kNoToken;
    hash ^= (blocked ? pad : a.classes[t]) * multipliers[k];
    for (int h = 0; k > 0 && h < a.heads; ++h) {
      const int c = (k - 1) * a.heads + h;
      out[c] = static_cast<int32_t>(hash % primes[c] + offsets[c]);
    }
  }
}

// Table row r: codes at r * code_stride, scales at r * scale_stride. in_order: the table holds the rows of this step,
// one after the other.
struct EngramTable {
  const uint8_t *codes, *scales;
  int64_t code_stride, scale_stride;
  bool in_order;
};
__global__ __launch_bounds__(kThreads) void gather_kernel(const int32_t* rows, int layers, int layer, int columns,
                                                          int d, EngramTable table, bf16* out) {
  const int64_t row = blockIdx.x;
  const int32_t* mine = rows + (row * layers + layer) * columns;
  for (int i = threadIdx.x; i < columns * d; i += kThreads) {
    const int64_t from = table.in_order ? row * columns + i / d : mine[i / d];
    const int c = i % d;
    const uint8_t code = table.codes[from * table.code_stride + c],
                  scale = table.scales[from * table.scale_stride + c / 32];
    out[row * columns * d + i] = rounded(e4m3_value(code) * ue8m0_value(scale));
  }
}

// One CTA a row and stream.
__global__ __launch_bounds__(kThreads) void apply_kernel(RowView v, const bf16* kv, const float* qk, int d, float eps,
                                                         bf16* residual, float* gates) {
  __shared__ float shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  const int stream = blockIdx.y;
  const bf16 *key = kv + row * (kStreams + 1) * d + stream * d, *val = kv + (row * (kStreams + 1) + kStreams) * d;
  bf16* x = residual + (row * kStreams + stream) * d;
  float dot = 0, xx = 0, kk = 0;
  for (int i = threadIdx.x; i < d; i += kThreads) {
    const float a = value(x[i]), b = value(key[i]);
    dot += a * qk[stream * d + i] * b;
    xx += a * a;
    kk += b * b;
  }
  dot = block_sum<kThreads>(dot, shared);
  xx = block_sum<kThreads>(xx, shared);
  kk = block_sum<kThreads>(kk, shared);
  const float n = static_cast<float>(d);
  dot = dot * rsqrtf(xx / n + eps) * rsqrtf(kk / n + eps) / sqrtf(n);
  const float gate = v.image(row) ? 0.0f : sigmoid(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
  if (threadIdx.x == 0) gates[row * kStreams + stream] = gate;
  for (int i = threadIdx.x; i < d; i += kThreads) x[i] = rounded(value(x[i]) + gate * value(val[i]));
}

__global__ void start_drafts_kernel(RowView v, int columns, int32_t* tokens) {
  const int s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s < v.counts[0]) tokens[s * columns] = v.token(v.tokens[v.sequences[s].first_row]);
}

// Markov embedding of the token fed to this step, and the confidence logit.
__global__ __launch_bounds__(kThreads) void markov_kernel(RowView v, const int32_t* tokens, int columns, int index,
                                                          const bf16* table, int rank, const bf16* hidden, int d,
                                                          const float* proj, bf16* embedding, float* confidence,
                                                          int confidence_columns) {
  __shared__ float shared[kThreads / 32];
  const int64_t s = blockIdx.x;
  if (s >= v.counts[0]) return;
  const bf16 *e = table + static_cast<int64_t>(tokens[s * columns + index]) * rank,
             *x = hidden + (static_cast<int64_t>(v.sequences[s].first_row) + index) * d;
  float sum = 0;
  for (int i = threadIdx.x; i < d; i += kThreads) sum += proj[i] * value(x[i]);
  for (int i = threadIdx.x; i < rank; i += kThreads) {
    sum += proj[d + i] * value(e[i]);
    embedding[s * rank + i] = e[i];
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) confidence[s * confidence_columns + index] = sum;
}

__global__ void add_base_kernel(RowView v, const float* base, const float* markov, int vocabulary, int index,
                                float* logits) {
  const int64_t s = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= v.counts[0] || i >= vocabulary) return;
  logits[s * vocabulary + i] =
      base[(static_cast<int64_t>(v.sequences[s].first_row) + index) * vocabulary + i] + markov[s * vocabulary + i];
}

__global__ __launch_bounds__(kThreads) void argmax_kernel(RowView v, const float* logits, int vocabulary, int columns,
                                                          int index, int32_t* tokens) {
  __shared__ float top_shared[kThreads];
  __shared__ int id_shared[kThreads];
  const int64_t s = blockIdx.x;
  if (s >= v.counts[0]) return;
  float top = -INFINITY;
  int id = vocabulary;
  for (int i = threadIdx.x; i < vocabulary; i += kThreads) {
    const float x = logits[s * vocabulary + i];
    if (x > top) top = x, id = i;
  }
  top_shared[threadIdx.x] = top, id_shared[threadIdx.x] = id;
  __syncthreads();
  for (int o = kThreads / 2; o > 0; o /= 2) {
    if (threadIdx.x < o) {
      const float other = top_shared[threadIdx.x + o];
      const int other_id = id_shared[threadIdx.x + o];
      if (other > top_shared[threadIdx.x] || (other == top_shared[threadIdx.x] && other_id < id_shared[threadIdx.x]))
        top_shared[threadIdx.x] = other, id_shared[threadIdx.x] = other_id;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) tokens[s * columns + index + 1] = id_shared[0];
}

}  // namespace

void Backend::embed(Rows which) {
  const RowSet& set = set_of(which);
  if (set.rows == 0) return;
  const int table = offload_.store != nullptr ? offload_.store->embedding_table() : -1;
  const bf16* rows = table >= 0 ? reinterpret_cast<const bf16*>(read_rows(table, set.rows)) : embed_;
  embed_kernel<<<set.rows, kThreads, 0, stream_>>>(set.view, rows, table >= 0, at<bf16>(Role::kImageRows),
                                                   static_cast<int>(c_.hidden_size), at<bf16>(Role::kResidual),
                                                   at<float>(Role::kPre));
}

void Backend::engram_lookup(Rows which) {
  const RowSet& set = set_of(which);
  const int layers = static_cast<int>(c_.engram.size());
  if (set.rows == 0 || layers == 0) return;
  const LookupArguments a{set.view,
                          classes_,
                          engram_constants_,
                          set.rows,
                          static_cast<int>(c_.engram_max_ngram_size),
                          static_cast<int>(c_.engram_n_heads),
                          layers,
                          static_cast<int>(c_.engram_pad_token_id),
                          at<int32_t>(Role::kEngramRows)};
  lookup_kernel<<<(set.rows * layers + 127) / 128, 128, 0, stream_>>>(a);
  request_engram_rows(set.rows);
}

void Backend::engram_apply(At where) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  const Layer& l = layers_[where.layer];
  const int d = static_cast<int>(c_.hidden_size), columns = static_cast<int>(c_.engram_columns()),
            width = static_cast<int>(c_.engram_width());
  const int index = c_.layers[where.layer].engram, dim = static_cast<int>(c_.engram_head_dim);
  const int read = offload_.store != nullptr ? offload_.store->engram_table(static_cast<size_t>(index)) : -1;
  EngramTable table{l.engram_codes, l.engram_scales, dim, dim / 32, false};
  if (read >= 0) {
    const uint8_t* from = read_rows(read, static_cast<int64_t>(set.rows) * columns);
    const auto stride = static_cast<int64_t>(offload_.store->rows().stride(read));
    table = {from, from + dim, stride, stride, true};
  }
  gather_kernel<<<set.rows, kThreads, 0, stream_>>>(at<int32_t>(Role::kEngramRows), static_cast<int>(c_.engram.size()),
                                                    index, columns, dim, table, narrow_);
  project(l.engram_wkv, narrow_, width, set.rows, {wide_, Output::kBf16, (kStreams + 1) * d});
  apply_kernel<<<dim3(set.rows, kStreams), kThreads, 0, stream_>>>(
      set.view, wide_, l.engram_qk, d, eps(), at<bf16>(Role::kResidual), at<float>(Role::kEngramGate));
}

void Backend::start_drafts() {
  const RowSet& set = set_of(Rows::kDraft);
  start_drafts_kernel<<<(limits_.sequences_max + 127) / 128, 128, 0, stream_>>>(
      set.view, static_cast<int>(buffer(Role::kDraftTokens).cols), at<int32_t>(Role::kDraftTokens));
}

void Backend::draft_logits(int index) {
  const RowSet& set = set_of(Rows::kDraft);
  const int n = set.sequences, rank = static_cast<int>(c_.dspark_markov_rank),
            vocabulary = static_cast<int>(c_.vocab_size);
  if (n == 0) return;
  markov_kernel<<<n, kThreads, 0, stream_>>>(
      set.view, at<int32_t>(Role::kDraftTokens), static_cast<int>(buffer(Role::kDraftTokens).cols), index,
      markov_embed_, rank, at<bf16>(Role::kDraftHidden), static_cast<int>(c_.hidden_size), confidence_, narrow_,
      at<float>(Role::kConfidence), static_cast<int>(buffer(Role::kConfidence).cols));
  project(markov_head_, narrow_, rank, n, {base_logits_, Output::kFp32, vocabulary});
  add_base_kernel<<<dim3((vocabulary + 255) / 256, n), 256, 0, stream_>>>(
      set.view, at<float>(Role::kDraftBase), base_logits_, vocabulary, index, at<float>(Role::kLogits));
}

void Backend::draft_argmax(int index) {
  const RowSet& set = set_of(Rows::kDraft);
  if (set.sequences == 0) return;
  argmax_kernel<<<set.sequences, kThreads, 0, stream_>>>(
      set.view, at<float>(Role::kLogits), static_cast<int>(c_.vocab_size),
      static_cast<int>(buffer(Role::kDraftTokens).cols), index, at<int32_t>(Role::kDraftTokens));
}

}  // namespace deepinfer::ops::cuda
