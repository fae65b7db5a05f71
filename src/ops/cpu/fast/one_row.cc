// One row of a small model. Its stages are too short to be divided, but what does not follow each other runs side by
// side (ThreadPool::start): keys, compressor, mHC's mix, Engram's product and the shared expert beside queries,
// attention and router, and whole experts on either thread. Results are those of the stages one by one.
#include <algorithm>
#include <cstring>
#include <new>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/lanes.h"

namespace deepinfer::ops::cpu::fast {

bool FastBackend::has_narrow_attention() const {
  const int64_t D = c_.hidden_size, heads = c_.num_attention_heads * c_.head_dim,
                index_heads = c_.index_n_heads * c_.index_head_dim, out = c_.o_groups * c_.o_lora_rank;
  return std::max({D * (c_.q_lora_rank + c_.head_dim), D * 2 * c_.head_dim, c_.q_lora_rank * (heads + index_heads),
                   out * c_.group_input(), D * out}) <= kSmallWork;
}

bool FastBackend::reserve_beside() {
  const int64_t d = c_.head_dim;
  try {
    beside_floats_.resize(static_cast<size_t>(d + c_.index_head_dim));
    beside_words_.resize(static_cast<size_t>(packed_columns(std::max(c_.hidden_size, d))));
    window_floats_.resize(static_cast<size_t>(d));
    window_words_.resize(static_cast<size_t>(packed_columns(c_.hidden_size)));
    engram_floats_.resize(static_cast<size_t>(c_.engram_width()));
    engram_words_.resize(static_cast<size_t>(packed_columns(c_.engram_width())));
    beside_keys_.resize(static_cast<size_t>((window_places() + c_.index_topk) * d));
    if (c_.has_drafter()) {
      ring_floats_.resize(static_cast<size_t>(c_.hidden_size + d));
      ring_words_.resize(static_cast<size_t>(packed_columns(buffers_[static_cast<int>(Role::kTaps)].cols)));
      ring_records_.resize(static_cast<size_t>(c_.num_nextn_predict_layers * d) * sizeof(float));
    }
    engram_kv_.resize(std::max<size_t>(engram_kv_.size(), (c_.hc_mult + 1) * c_.hidden_size));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void FastBackend::start_beside(Beside which, void (FastBackend::*run)(int64_t), int64_t argument) {
  Piece& p = beside_[which];
  pool_.finish(p.id);
  p.backend = this;
  p.run = run;
  const auto call = [](void* self, int64_t value) {
    const auto* piece = static_cast<const Piece*>(self);
    (piece->backend->*piece->run)(value);
  };
  p.id = pool_.start({call, &p, argument});
}

void FastBackend::finish_beside(int which) {
  if (beside_[which].id == 0) return;
  pool_.finish(beside_[which].id);
  beside_[which].id = 0;
}

// ---- mHC's mix --------------------------------------------------------------------------------------------------

void FastBackend::start_mix() {
  if (late_mix_ == nullptr) return;
  mix_beside_ = late_mix_;
  late_mix_ = nullptr;
  start_beside(kMix, &FastBackend::mix_one);
}

void FastBackend::mix_one(int64_t) {
  const MixOut out{at<float>(Role::kPre), at<float>(Role::kPost), at<float>(Role::kComb)};
  mix_rows(at<float>(Role::kResidual), 1, *mix_beside_, &out);
}

// ---- Attention --------------------------------------------------------------------------------------------------

void FastBackend::project_beside(At where, uint32_t parts) {
  window_keys_ = kNotGathered;
  if ((parts & (kProjectQueries | kProjectWindow)) != (kProjectQueries | kProjectWindow))
    return project_rows({.at = where, .parts = parts}, 0, 1);
  others_ = {.at = where, .parts = parts};
  if (parts & (kProjectIndexQueries | kProjectCompressor)) start_beside(kOthers, &FastBackend::project_others);
  window_waits_ = (parts & kProjectCompressor) != 0;  // until the entries are on their way
  if (!window_waits_) start_beside(kKeys, &FastBackend::project_window);
  if ((parts & kProjectIndexQueries) == 0) start_mix();  // else behind the scores
  project_queries(where, parts);
}

void FastBackend::project_queries(At where, uint32_t parts) {
  const LayerWeights& w = w_.layers[where.layer];
  const AttentionWeights& a = w.attention;
  const auto pack_for = [&](const Matrix& m, const float* x) {
    return pack_area(kFirst, 0, m, x, m.cols, 1, order_of(m.format) != Order::kNatural);
  };
  float* qr = at<float>(Role::kQueryLow);
  multiply_area(a.wq_a, pack_for(a.wq_a, at<float>(Role::kSublayerIn)), qr, a.wq_a.rows, &a.wq_b);
  finish_low(where, kProjectQueries, nullptr, 0, 1);
  const PackedRows p = pack_for(a.wq_b, qr);
  multiply_area(a.wq_b, p, at<float>(Role::kQuery), a.wq_b.rows, &w.indexer.wq_b);
  if (parts & kProjectIndexQueries)
    multiply_area(w.indexer.wq_b, p, at<float>(Role::kIndexQuery), w.indexer.wq_b.rows, nullptr);
  finish_high(where, parts, 0, 1);
}

// What indexer and compressor want but queries.
void FastBackend::project_others(int64_t) {
  const At where = others_.at;
  const uint32_t parts = others_.parts;
  const LayerWeights& w = w_.layers[where.layer];
  const int64_t D = c_.hidden_size, d = c_.head_dim;
  float* compressed = at<float>(Role::kCompressorRows);
  const PackedRows p{beside_words_.data(), packed_columns(D), 1};
  k_.pack(at<float>(Role::kSublayerIn), D, Order::kNatural, false, p.row(0), p.step(0));
  if (parts & kProjectIndexQueries)
    multiply_area(w.indexer.weights_proj, p, at<float>(Role::kIndexWeights), c_.index_n_heads, nullptr);
  if (parts & kProjectCompressor) {
    const bool gated = ratio_of(where.layer) != 1;
    if (gated) multiply_area(w.compressor.wgate, p, compressed, 2 * d, &w.compressor.wkv, false);
    multiply_area(w.compressor.wkv, p, compressed + (gated ? d : 0), 2 * d, nullptr, !gated);
  }
}

// The row's own record, and the keys that are known by now.
void FastBackend::project_window(int64_t) {
  const At where = others_.at;
  const Matrix& w = w_.layers[where.layer].attention.wkv;
  const int64_t D = c_.hidden_size, d = c_.head_dim;
  const Order order = order_of(w.format);
  float* kv = window_floats_.data();
  const PackedRows p{window_words_.data(), packed_columns(D), 1};
  k_.pack(at<float>(Role::kSublayerIn), D, order, order != Order::kNatural, p.row(0), p.step(0));
  multiply_area(w, p, kv, d, nullptr);
  finish_low(where, kProjectWindow, kv, 0, 1);
  gather_window_beside(where);
  if ((others_.parts & kProjectIndexQueries) == 0) gather_entries_beside(where);
}

void FastBackend::gather_window_beside(At where) {
  const RowSet& set = set_of(where.rows);
  const auto [begin, end] = window_of(where, set, 0);
  window_keys_ = gather_window(where, set, 0, entry_words() - (end - begin) * c_.head_dim);  // right before the entries
}

// Layers that share a source and its choice share the words.
void FastBackend::gather_entries_beside(At where) {
  const int source = ratio_of(where.layer) == 0 ? -1 : c_.layers[where.layer].kv_source;
  if (source == entries_source_) return;
  entry_keys_ = gather_entries(where, set_of(where.rows), 0, entry_words());
  entries_source_ = source;
}

bool FastBackend::write_global_beside(At where) {
  if (beside_[kOthers].id == 0 || others_.at.layer != where.layer || others_.at.rows != where.rows) return false;
  start_beside(kEntries, &FastBackend::write_entries, static_cast<int64_t>(beside_[kOthers].id));
  window_waits_ = false;
  start_beside(kKeys, &FastBackend::project_window);
  return true;
}

void FastBackend::write_entries(int64_t after) {
  pool_.finish(static_cast<uint64_t>(after));
  const At where = others_.at;
  const Matrix& wk = w_.layers[where.layer].indexer.wk;
  find_complete_rows(where);
  if (!complete_rows_.empty()) {
    float *latents = beside_floats_.data(), *keys = latents + c_.head_dim;
    const PackedRows p{beside_words_.data(), packed_columns(wk.cols), 1};
    pool_latents(where, 0, 1, latents);
    k_.pack(latents, wk.cols, order_of(wk.format), order_of(wk.format) != Order::kNatural, p.row(0), p.step(0));
    multiply_area(wk, p, keys, c_.index_head_dim, nullptr);
    finish_entries(where, 0, 1, latents, keys);
  }
  store_compressor_rows(where);
}

void FastBackend::attend_beside(At where) {
  start_mix();
  start_engram(where.rows, where.layer + 1);
  start_rings(where.rows);
  if (window_keys_ == kNotGathered) gather_window_beside(where);
  gather_entries_beside(where);
  const int64_t d = c_.head_dim;
  attend_heads(k_, {at<float>(Role::kQuery), c_.num_attention_heads, d, entry_words() - window_keys_ * d,
                    window_keys_ + entry_keys_, vectors_[where.layer].sink.data(), at<float>(Role::kHeads)});
}

void FastBackend::output_beside(At where) {
  const AttentionWeights& w = w_.layers[where.layer].attention;
  const int64_t width = c_.group_input(), groups = c_.o_groups, rank = c_.o_lora_rank;
  float *turned = wide_area(0), *z = stage_area(0);
  others_ = {.at = where};
  rotate_back(where, turned, 0, 1);
  PackedRows p{packed_area(kFirst, 0), packed_columns(width), 1};
  for (int64_t g = 0; g < groups; ++g, p.words += p.ld)
    k_.pack(turned + g * width, width, order_of(w.wo_a.format), false, p.row(0), p.step(0));
  start_beside(kOutput, &FastBackend::output_groups, 1);
  output_groups(0);
  finish_beside(kOutput);
  fetch_mixed();
  pack_area(kSecond, 0, w.wo_b, z, groups * rank, 1, order_of(w.wo_b.format) != Order::kNatural);
  start_beside(kOutput, &FastBackend::output_channels, 1);
  output_channels(0);
  finish_beside(kOutput);
}

// What the other thread has mixed is wanted next.
void FastBackend::fetch_mixed() const {
  __builtin_prefetch(at<float>(Role::kPost));
  __builtin_prefetch(at<float>(Role::kComb));
}

void FastBackend::output_groups(int64_t half) {
  const AttentionWeights& w = w_.layers[others_.at.layer].attention;
  const int64_t groups = c_.o_groups, rank = c_.o_lora_rank, middle = (groups + 1) / 2,
                first = half == 0 ? 0 : middle, end = half == 0 ? middle : groups;
  PackedRows p{packed_area(kFirst, 0), packed_columns(c_.group_input()), 1};
  p.words += first * p.ld;
  for (int64_t g = first; g < end; ++g, p.words += p.ld) {
    const std::byte* next = g + 1 < end ? lanes_at(w.wo_a, (g + 1) * rank) : lanes_at(w.wo_b, half * half_output());
    k_.multiply({&w.wo_a, g * rank, rank, p, stage_area(0) + g * rank, groups * rank, true, next},
                kernel_scratch(w.wo_a.cols));
  }
}

void FastBackend::output_channels(int64_t half) {
  const Matrix& w = w_.layers[others_.at.layer].attention.wo_b;
  const int64_t first = half * half_output(), rows = half == 0 ? half_output() : w.rows - first;
  const PackedRows p{packed_area(kSecond, 0), packed_columns(w.cols), 1};
  k_.multiply({&w, first, rows, p, at<float>(Role::kSublayerOut) + first, w.rows, true}, kernel_scratch(w.cols));
}

// ---- The drafter's rings ----------------------------------------------------------------------------------------

// They need nothing of a layer behind the last tap, and the other thread has time beside its attention.
void FastBackend::start_rings(Rows set) {
  if (!taps_wait_) return;
  taps_wait_ = false;
  rings_early_ = true;
  rings_set_ = set;
  start_beside(kRings, &FastBackend::form_rings);
}

void FastBackend::form_rings(int64_t) {
  float* main = ring_floats_.data();
  form_ring_records(rings_set_, 0, 1, {main, main + c_.hidden_size, ring_words_.data(), ring_records_.data()});
}

void FastBackend::store_rings() {
  finish_beside(kRings);
  rings_early_ = false;
  const RowSet& set = set_of(rings_set_);
  const std::byte* record = ring_records_.data();
  for (int64_t j = 0; j < c_.num_nextn_predict_layers; ++j, record += layout_.window_bytes) {
    const int layer = static_cast<int>(c_.num_hidden_layers + j);
    std::memcpy(ring_record(set.of(0), layer, set.positions[0]), record, layout_.window_bytes);
  }
}

// The taps, or the row's position, may be others from now on.
void FastBackend::forget_rings() {
  finish_beside(kRings);
  taps_wait_ = rings_early_ = false;
}

// ---- Engram -----------------------------------------------------------------------------------------------------

// The product of the next Engram layer of the set needs nothing but token ids.
void FastBackend::start_engram(Rows set, int layer) {
  const int end = set == Rows::kEncoder ? c_.decoder_start : static_cast<int>(c_.num_hidden_layers);
  while (layer < end && c_.layers[layer].engram < 0) ++layer;
  if (layer >= end || engram_layer_ >= layer) return;
  engram_layer_ = layer;
  start_beside(kEngram, &FastBackend::multiply_engram, layer);
}

void FastBackend::multiply_engram(int64_t layer) {
  const Matrix& w = w_.layers[static_cast<size_t>(layer)].engram.wkv;
  float* e = engram_floats_.data();
  const PackedRows p{engram_words_.data(), packed_columns(w.cols), 1};
  gather_engram_rows(static_cast<int>(layer), 0, 1, e);
  k_.pack(e, w.cols, order_of(w.format), order_of(w.format) != Order::kNatural, p.row(0), p.step(0));
  multiply_area(w, p, engram_kv_.data(), w.rows, nullptr);
}

void FastBackend::add_engram_beside(At where) {
  others_ = {.at = where};
  start_beside(kEngram, &FastBackend::add_some_streams, 1);
  add_some_streams(0);
  finish_beside(kEngram);
}

void FastBackend::add_some_streams(int64_t half) {
  const At where = others_.at;
  const int64_t middle = c_.hc_mult / 2;
  add_engram_streams(where.layer, set_of(where.rows).image(0), engram_kv_.data(), at<float>(Role::kResidual),
                     at<float>(Role::kEngramGate), half == 0 ? 0 : middle, half == 0 ? middle : c_.hc_mult);
}

// ---- Router and experts -----------------------------------------------------------------------------------------

void FastBackend::route_beside(At where) {
  const RowSet& set = set_of(where.rows);
  const MoeWeights& moe = w_.layers[where.layer].moe;
  const int64_t D = c_.hidden_size;
  const float* x = at<float>(Role::kSublayerIn);
  const Order order = order_of(moe.shared.gate.format);
  const PackedRows p{expert_words_[1].as<uint16_t>(), packed_columns(D), 1};
  // Its hidden row lies behind those of the experts.
  shared_task_ = {&moe.shared, p, experts_per_row(where.layer), true};
  shared_order_ = order;
  start_beside(kShared, &FastBackend::run_shared);
  start_mix();
  shared_done_ = where.layer;
  float* scores = stage_area(0);
  multiply_area(moe.gate, pack_area(kFirst, 0, moe.gate, x, D, 1, false), scores, moe.gate.rows, nullptr, false);
  choose_experts(set, where.layer, 0, scores);
  k_.pack(x, D, Order::kFp4, true, expert_words_[0].as<uint16_t>(), kStep);
  packed_layer_ = where.layer;
}

void FastBackend::run_shared(int64_t) {
  const PackedRows& p = shared_task_.x;
  k_.pack(at<float>(Role::kSublayerIn), c_.hidden_size, shared_order_, shared_order_ != Order::kNatural, p.words,
          kStep);
  ffn_whole(shared_task_, nullptr, nullptr);
}

void FastBackend::run_routed(int64_t task) {
  const FfnTask* t = routed_tasks_.data() + task;
  ffn_whole(*t, routed_rows_, task > 0 ? lanes_at(t[-1].weights->gate, 0) : nullptr);
}

// The other thread takes them from the front on.
void FastBackend::run_experts_beside(std::span<const FfnTask> tasks, const ExpertRows* routed) {
  routed_tasks_ = tasks;
  routed_rows_ = routed;
  const auto n = static_cast<int>(tasks.size());
  for (int t = 0; t + 1 < n; ++t) start_beside(static_cast<Beside>(kRouted + t), &FastBackend::run_routed, t);
  run_routed(n - 1);
  for (int t = n - 2; t >= 0; --t) {
    fetch_mixed();
    finish_beside(kRouted + t);
  }
}

}  // namespace deepinfer::ops::cpu::fast
