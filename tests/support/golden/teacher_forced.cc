#include "tests/support/golden/teacher_forced.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "checkpoint/config.h"
#include "numeric/quantize.h"

namespace deepinfer::testing {

using ops::At;
using ops::Role;
using ops::Rows;
using ops::Sublayer;

void StageDifference::add(const StageDifference& o) {
  values += o.values;
  different += o.different;
  far += o.far;
  worst = std::max(worst, o.worst);
}

TeacherForced::TeacherForced(const GoldenFile& golden, model::Model& model, model::Model& oracle)
    : golden_(golden),
      model_(model),
      ops_(model.ops()),
      oracle_(oracle.ops()),
      oracle_pages_(oracle.kv_memory().pages) {
  if (const GoldenTensor* t = golden.find("exact.short.embedding")) rows_ = static_cast<int>(t->rows());
}

const GoldenTensor* TeacherForced::stored(int layer, const std::string& stage) const {
  return golden_.find(layer < 0 ? "exact.short." + stage : "exact.short.layer" + std::to_string(layer) + "." + stage);
}

std::vector<double> TeacherForced::read(ops::Ops& ops, Role role, int64_t rows, int64_t cols) {
  const int64_t stride = ops.buffer(role).cols;
  std::vector<double> all(rows * stride);
  if (!ops.read(role, 0, rows, all).ok()) return {};
  if (cols == 0 || cols == stride) return all;
  std::vector<double> out;
  for (int64_t i = 0; i < rows; ++i) out.insert(out.end(), all.begin() + i * stride, all.begin() + i * stride + cols);
  return out;
}

void TeacherForced::put(Role role, std::span<const double> values) {
  each([&](ops::Ops& ops) {
    const int64_t stride = ops.buffer(role).cols, cols = static_cast<int64_t>(values.size()) / rows_;
    std::vector<double> all = read(ops, role, rows_);
    for (int64_t i = 0; i < rows_; ++i) std::copy_n(values.begin() + i * cols, cols, all.begin() + i * stride);
    (void)ops.write(role, 0, rows_, all).ok();
  });
}

void TeacherForced::compare_with_oracle(const std::string& stage, Role role, bool wide) {
  GoldenTensor want;
  want.type = wide ? GoldenType::kF32 : GoldenType::kBf16;
  want.shape = {rows_, oracle_.buffer(role).cols};
  want.values = read(oracle_, role, rows_);
  compare(stage, &want, read(role, rows_));
  put(role, want.values);
}

void TeacherForced::compare(const std::string& stage, const GoldenTensor* want, std::span<const double> got,
                            bool codes) {
  if (want == nullptr) return;
  StageDifference& s = stages_[stage];
  const int64_t cols = want->cols();
  for (int64_t i = 0; i < want->rows(); ++i) {
    double top = 0;
    for (int64_t j = 0; j < cols; ++j) {
      if (std::isfinite(want->values[i * cols + j])) top = std::max(top, std::abs(want->values[i * cols + j]));
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double w = want->values[i * cols + j];
      const double g = i * cols + j < static_cast<int64_t>(got.size()) ? got[i * cols + j] : NAN;
      ++s.values;
      if (want->type == GoldenType::kF32 ? static_cast<float>(g) == static_cast<float>(w) : g == w) continue;
      ++s.different;
      const double off = std::isfinite(w) && std::isfinite(g) ? std::abs(g - w) / std::max(top, 1e-30) : INFINITY;
      s.worst = std::max(s.worst, off);
      const double step = std::ldexp(1.0, std::ilogb(std::max(std::abs(w), 1e-30)) - 7);
      if (codes ? off > 1.0 / 3 + 1e-9 : std::abs(g - w) > 2 * step) ++s.far;
    }
  }
}

Status TeacherForced::begin() {
  const checkpoint::ModelConfig& c = model_.config();
  if (rows_ == 0) return make_error(Code::kInvalidArgument, "the golden file has no group exact.short");
  if (rows_ > ops::kPageTokens) return make_error(Code::kUnsupported, "group exact.short has more rows than a page");
  const std::vector<double>& ids = golden_.find("ids")->values;
  std::vector<int32_t> tokens(ids.begin(), ids.begin() + rows_), positions(rows_), sequence(rows_, 0), source(rows_);
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(source.begin(), source.end(), 0);
  const std::vector<int32_t> history(c.engram_max_ngram_size - 1, ops::kNoToken), blocks = {0};
  ops::SequenceRows rows;
  rows.rows = rows_;
  rows.block_count = 1;
  ops::RowBatch batch;
  batch.rows = rows_;
  batch.sequences = std::span(&rows, 1);
  batch.blocks = blocks;
  batch.tokens = tokens;
  batch.positions = positions;
  batch.sequence = sequence;
  batch.history = history;
  DI_RETURN_IF_ERROR(ops_.begin(Rows::kEncoder, batch));
  DI_RETURN_IF_ERROR(oracle_.begin(Rows::kEncoder, batch));
  batch.history = {};
  batch.source = source;
  batch.outputs = source;
  DI_RETURN_IF_ERROR(oracle_.begin(Rows::kDecoder, batch));
  return ops_.begin(Rows::kDecoder, batch);
}

Status TeacherForced::run() {
  DI_RETURN_IF_ERROR(begin());
  const checkpoint::ModelConfig& c = model_.config();
  each([&](ops::Ops& o) { o.embed(Rows::kEncoder); });
  compare("embedding", stored(-1, "embedding"), read(Role::kResidual, rows_, c.hidden_size));
  each([&](ops::Ops& o) { o.engram_lookup(Rows::kEncoder); });
  for (int l = 0; l < c.num_hidden_layers; ++l) run_layer(l);
  run_end();
  return ops_.synchronize();
}

void TeacherForced::run_layer(int l) {
  const checkpoint::LayerInfo& info = model_.config().layers[l];
  const At at{l, l < model_.config().decoder_start ? Rows::kEncoder : Rows::kDecoder};
  if (l > 0) {
    put(Role::kResidual, stored(l - 1, "residual")->values);
    put(Role::kPre, stored(l - 1, "pre")->values);
  }
  if (info.engram >= 0) {
    each([&](ops::Ops& o) { o.engram_apply(at); });
    compare("engram_gate", stored(l, "engram_gate"), read(Role::kEngramGate, rows_));
    compare_with_oracle("engram_out", Role::kResidual);
  }
  if (info.dspark_tap >= 0) each([&](ops::Ops& o) { o.tap(at, info.dspark_tap); });
  each([&](ops::Ops& o) { o.hc_enter(at, Sublayer::kAttention); });
  compare("attention_in", stored(l, "attention_in"), read(Role::kSublayerIn, rows_));
  for (const Role role : {Role::kPre, Role::kPost, Role::kComb}) compare_with_oracle("mix", role, true);
  run_attention(at);
  put(Role::kSublayerOut, stored(l, "attention_out")->values);
  each([&](ops::Ops& o) { o.hc_leave(at, Sublayer::kAttention); });
  compare_with_oracle("residual", Role::kResidual);
  each([&](ops::Ops& o) { o.hc_enter(at, Sublayer::kFfn); });
  for (const Role role : {Role::kPre, Role::kPost, Role::kComb}) compare_with_oracle("mix", role, true);
  compare("moe_in", stored(l, "moe_in"), read(Role::kSublayerIn, rows_));
  run_moe(at);
  put(Role::kSublayerOut, stored(l, "moe_out")->values);
  each([&](ops::Ops& o) { o.hc_leave(at, Sublayer::kFfn); });
  compare("residual", stored(l, "residual"), read(Role::kResidual, rows_));
}

std::vector<double> TeacherForced::window_values() {
  const size_t bytes = model_.kv_layout().window_bytes;
  const std::vector<double> records = read(Role::kWindowRecords, rows_);
  std::vector<float> x(model_.config().head_dim);
  std::vector<uint8_t> record(bytes);
  std::vector<double> out;
  for (int i = 0; i < rows_; ++i) {
    for (size_t b = 0; b < bytes; ++b) record[b] = static_cast<uint8_t>(records[i * bytes + b]);
    numeric::decode_window_record(record.data(), std::span<float>(x));
    out.insert(out.end(), x.begin(), x.end());
  }
  return out;
}

void TeacherForced::run_attention(At at) {
  const checkpoint::LayerInfo& info = model_.config().layers[at.layer];
  put(Role::kSublayerIn, stored(at.layer, "attention_in")->values);
  uint32_t parts = ops::kProjectQueries | ops::kProjectWindow;
  if (info.owns_kv()) parts |= ops::kProjectCompressor;
  each([&](ops::Ops& o) { o.attention_project(at, parts); });
  compare("qr", stored(at.layer, "qr"), read(Role::kQueryLow, rows_));
  compare_with_oracle("query", Role::kQuery);
  const GoldenTensor& window = *stored(at.layer, "window_entry");
  compare("window_entry", &window, window_values(), true);
  std::vector<double> records;
  for (int64_t i = 0; i < window.rows(); ++i) {
    const std::vector<float> x(window.values.begin() + i * window.cols(),
                               window.values.begin() + (i + 1) * window.cols());
    std::vector<uint8_t> record(model_.kv_layout().window_bytes);
    numeric::encode_window_record(std::span(x), record.data());
    records.insert(records.end(), record.begin(), record.end());
  }
  put(Role::kWindowRecords, records);
  if (info.owns_kv()) run_global(at);
  if (info.owns_index()) run_select(at);
  each([&](ops::Ops& o) { o.attend(at); });
  compare_with_oracle("attention_heads", Role::kHeads);
  each([&](ops::Ops& o) { o.store_window(at); });
  each([&](ops::Ops& o) { o.attention_output(at); });
  compare("attention_out", stored(at.layer, "attention_out"), read(Role::kSublayerOut, rows_));
}

void TeacherForced::run_global(At at) {
  const checkpoint::ModelConfig& c = model_.config();
  each([&](ops::Ops& o) { o.write_global(at); });
  const int source = model_.kv_layout().source_at(at.layer), ratio = c.layers[at.layer].ratio;
  const ops::KvLayout& k = model_.kv_layout();
  const ops::KvSource& s = k.sources[source];
  const std::vector<double> all = read(Role::kLatent, rows_);
  std::vector<double> latents, entries, keys;
  std::vector<std::byte> bytes(k.page_stride);
  (void)ops_.kv_read(model_.kv_memory().pages, bytes).ok();
  const auto* page = reinterpret_cast<const uint8_t*>(bytes.data());
  std::vector<float> entry(c.head_dim), key(c.index_head_dim);
  for (int g = 0; g < rows_ / ratio; ++g) {
    const auto row = all.begin() + (g * ratio + ratio - 1) * c.head_dim;
    latents.insert(latents.end(), row, row + c.head_dim);
    numeric::decode_entry_record(page + s.entry_offset + g * k.entry_bytes, std::span<float>(entry));
    entries.insert(entries.end(), entry.begin(), entry.end());
    numeric::fq4i_decode(page + s.key_offset + g * k.key_data_bytes, page + s.key_scale_offset + g * k.key_scale_bytes,
                         std::span<float>(key));
    keys.insert(keys.end(), key.begin(), key.end());
  }
  compare("latent", stored(at.layer, "latent"), latents);
  compare("entries", stored(at.layer, "entries"), entries, true);
  compare("index_keys", stored(at.layer, "index_keys"), keys, true);
  store_entries(source, *stored(at.layer, "entries"), *stored(at.layer, "index_keys"));
}

void TeacherForced::store_entries(int source, const GoldenTensor& entries, const GoldenTensor& keys) {
  const ops::KvLayout& k = model_.kv_layout();
  const ops::KvSource& s = k.sources[source];
  std::vector<std::byte> bytes(k.page_stride);
  (void)ops_.kv_read(model_.kv_memory().pages, bytes).ok();
  auto* page = reinterpret_cast<uint8_t*>(bytes.data());
  for (int64_t g = 0; g < entries.rows(); ++g) {
    const std::vector<float> entry(entries.values.begin() + g * entries.cols(),
                                   entries.values.begin() + (g + 1) * entries.cols());
    const std::vector<float> key(keys.values.begin() + g * keys.cols(), keys.values.begin() + (g + 1) * keys.cols());
    numeric::encode_entry_record(std::span(entry), page + s.entry_offset + g * k.entry_bytes);
    numeric::fq4i_encode(std::span(key), page + s.key_offset + g * k.key_data_bytes,
                         page + s.key_scale_offset + g * k.key_scale_bytes);
  }
  (void)ops_.kv_write(model_.kv_memory().pages, bytes).ok();
  (void)oracle_.kv_write(oracle_pages_, bytes).ok();
}

void TeacherForced::run_select(At at) {
  const checkpoint::ModelConfig& c = model_.config();
  put(Role::kQueryLow, stored(at.layer, "qr")->values);
  each([&](ops::Ops& o) { o.attention_project(at, ops::kProjectIndexQueries); });
  compare("index_queries", stored(at.layer, "index_queries"), read(Role::kIndexQuery, rows_), true);
  compare("index_weights", stored(at.layer, "index_weights"), read(Role::kIndexWeights, rows_));
  put(Role::kIndexQuery, stored(at.layer, "index_queries")->values);
  put(Role::kIndexWeights, stored(at.layer, "index_weights")->values);
  each([&](ops::Ops& o) { o.select(at); });
  const GoldenTensor &scores = *stored(at.layer, "index_scores"), &selected = *stored(at.layer, "selected");
  if (ops_.buffer(Role::kIndexScores).rows > 0)
    compare("index_scores", &scores, read(Role::kIndexScores, rows_, scores.cols()));
  const std::vector<double> list = read(Role::kSelected, rows_);
  std::vector<double> mask(selected.values.size(), 0.0), wanted(list.size(), -1.0);
  for (int64_t i = 0; i < rows_; ++i) {
    int64_t next = i * c.index_topk;
    for (int64_t g = 0; g < selected.cols(); ++g) {
      if (selected.values[i * selected.cols() + g] != 0) wanted[next++] = static_cast<double>(g);
    }
    for (int64_t j = i * c.index_topk; j < (i + 1) * c.index_topk && list[j] >= 0; ++j)
      mask[i * selected.cols() + static_cast<int64_t>(list[j])] = 1;
  }
  compare("selected", &selected, mask);
  put(Role::kSelected, wanted);
}

void TeacherForced::run_moe(At at) {
  put(Role::kSublayerIn, stored(at.layer, "moe_in")->values);
  each([&](ops::Ops& o) { o.route(at); });
  const GoldenTensor &experts = *stored(at.layer, "experts"), &weights = *stored(at.layer, "expert_weights");
  const int64_t k = experts.cols();
  const std::vector<double> ids = read(Role::kExpertIds, rows_, k), w = read(Role::kExpertWeights, rows_, k);
  std::vector<double> sorted_ids, sorted_weights;
  for (int64_t i = 0; i < rows_; ++i) {
    std::vector<std::pair<double, double>> row;
    for (int64_t e = i * k; e < (i + 1) * k; ++e) row.emplace_back(ids[e], w[e]);
    std::sort(row.begin(), row.end());
    for (const auto& [id, weight] : row) {
      sorted_ids.push_back(id);
      sorted_weights.push_back(weight);
    }
  }
  compare("experts", &experts, sorted_ids);
  compare("expert_weights", &weights, sorted_weights);
  put(Role::kExpertIds, experts.values);
  put(Role::kExpertWeights, weights.values);
  each([&](ops::Ops& o) { o.experts(at, o.local_expert_rows(at)); });
  each([&](ops::Ops& o) { o.shared_expert(at); });
  each([&](ops::Ops& o) { o.combine(at); });
  compare("moe_out", stored(at.layer, "moe_out"), read(Role::kSublayerOut, rows_));
}

void TeacherForced::run_end() {
  const checkpoint::ModelConfig& c = model_.config();
  const auto last = static_cast<int>(c.num_hidden_layers) - 1;
  compare("main_hidden", stored(-1, "main_hidden"), read(Role::kTaps, rows_));
  put(Role::kResidual, stored(last, "residual")->values);
  put(Role::kPre, stored(last, "pre")->values);
  each([&](ops::Ops& o) { o.head(); });
  compare("final_hidden", stored(-1, "final_hidden"), read(Role::kFinalHidden, rows_));
  const GoldenTensor* logits = golden_.find("exact.last_logits");
  if (logits == nullptr) return;
  const std::vector<double> got = read(Role::kLogits, rows_);
  for (size_t i = 0; i < golden_.lengths.size(); ++i) {
    const int64_t row = golden_.lengths[i] - 1, v = logits->cols();
    if (row >= rows_) continue;
    GoldenTensor want{GoldenType::kF32, {1, v}, {logits->values.begin() + i * v, logits->values.begin() + (i + 1) * v}};
    compare("logits", &want, std::span(got).subspan(row * v, v));
  }
}

}  // namespace deepinfer::testing
