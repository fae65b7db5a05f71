// Few rows of a small model (a verification, a draft block, a small batch): stages that read no other row of their set
// wait, and a thread then takes its share of the rows through all of them. A step of six rows meets its threads some
// forty times instead of a hundred and fifty times. Results are those of the stages one by one.
#include <algorithm>
#include <cstring>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/lanes.h"

namespace deepinfer::ops::cpu::fast {

bool FastBackend::by_rows(Rows set) const {
  const int64_t n = row_count(set);
  return small_ && pool_.threads() > 1 && n >= pool_.threads() && n <= 2 * kStreamRows;  // of a thread kStreamRows
}

void FastBackend::later(const RowStage& stage) {
  do_late_mix();
  if (waiting_count_ > 0 && (row_count(waiting_set_) != row_count(stage.at.rows) ||
                             waiting_count_ == static_cast<int>(waiting_.size())))
    run_waiting();
  waiting_set_ = stage.at.rows;
  waiting_[static_cast<size_t>(waiting_count_++)] = stage;
}

void FastBackend::run_waiting() {
  finish_beside(kOthers);
  finish_beside(kEntries);
  if (window_waits_) {  // somebody looks before the entries were asked for
    window_waits_ = false;
    project_window(0);
  }
  finish_beside(kKeys);
  if (waiting_count_ == 0) return;
  const std::span<const RowStage> stages(waiting_.data(), static_cast<size_t>(waiting_count_));
  waiting_count_ = 0;  // the stages ask for buffers
  auto body = [&](int64_t begin, int64_t end) {
    for (const RowStage& s : stages) (this->*s.run)(s, begin, end);
  };
  const int64_t n = row_count(waiting_set_), threads = pool_.threads();
  parallel(n, body, (n + threads - 1) / threads);
}

// ---- What the stages' results are for ---------------------------------------------------------------------------

Buffer FastBackend::buffer(Role role) const {
  auto* self = const_cast<FastBackend*>(this);
  self->run_waiting();
  if (role == Role::kWindowRecords) self->window_keys_ = kNotGathered;  // they may be replaced
  if (role == Role::kTaps) self->forget_rings();
  return Backend<float>::buffer(role);
}
void FastBackend::kv_copy(std::byte* to, const std::byte* from, size_t bytes) {
  run_waiting();
  Backend<float>::kv_copy(to, from, bytes);
}
Status FastBackend::kv_read(const std::byte* from, std::span<std::byte> to) {
  run_waiting();
  return Backend<float>::kv_read(from, to);
}
Status FastBackend::kv_write(std::byte* to, std::span<const std::byte> from) {
  run_waiting();
  return Backend<float>::kv_write(to, from);
}
Status FastBackend::begin(Rows set, const RowBatch& batch) {
  run_waiting();
  forget_rings();
  entries_source_ = kNoSource;
  return Backend<float>::begin(set, batch);
}
Status FastBackend::synchronize() {
  run_waiting();
  return Backend<float>::synchronize();
}
void FastBackend::drop_rows(std::span<const SequenceRows> sequences, std::span<const int32_t> source) {
  run_waiting();
  do_late_mix();
  Backend<float>::drop_rows(sequences, source);
}
void FastBackend::keep_decoder_rows() {
  run_waiting();
  Backend<float>::keep_decoder_rows();
}

// A row needs those before it, which all have been formed; then each thread takes some of the groups.
void FastBackend::write_global(At where) {
  if (write_global_beside(where)) return;
  run_waiting();
  if (!by_rows(where.rows)) return Backend<float>::write_global(where);
  const Matrix& wk = w_.layers[where.layer].indexer.wk;
  find_complete_rows(where);
  auto body = [&](int64_t begin, int64_t end) {
    float *latents = stage_area(begin), *keys = wide_area(begin);
    pool_latents(where, begin, end, latents);
    multiply_area(wk,
                  pack_area(kFirst, begin, wk, latents, c_.head_dim, end - begin,
                            order_of(wk.format) != Order::kNatural),
                  keys, c_.index_head_dim, nullptr);
    finish_entries(where, begin, end, latents, keys);
  };
  const auto count = static_cast<int64_t>(complete_rows_.size()), threads = int64_t{pool_.threads()};
  parallel(count, body, (count + threads - 1) / threads);
  store_compressor_rows(where);
}

// ---- Stages -----------------------------------------------------------------------------------------------------

PackedRows FastBackend::pack_area(Buffers to, int64_t row, const Matrix& w, const float* x, int64_t ldx, int64_t n,
                                  bool quantise) {
  const PackedRows p{packed_area(to, row), packed_columns(w.cols), n};
  for (int64_t i = 0; i < n; ++i) k_.pack(x + i * ldx, w.cols, order_of(w.format), quantise, p.row(i), p.step(i));
  return p;
}

void FastBackend::multiply_area(const Matrix& w, const PackedRows& x, float* out, int64_t ldo, const Matrix* next,
                                bool round) {
  k_.multiply({&w, 0, w.rows, x, out, ldo, round, next != nullptr ? lanes_at(*next, 0) : nullptr},
              kernel_scratch(w.cols));
}

void FastBackend::embed(Rows set) {
  if (by_rows(set)) return later({.run = &FastBackend::embed_rows, .at = {0, set}});
  run_waiting();
  Backend<float>::embed(set);
}

void FastBackend::embed_rows(const RowStage& stage, int64_t begin, int64_t end) {
  Backend<float>::embed_rows(set_of(stage.at.rows), w_.embed, false, begin, end);
}

void FastBackend::engram_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const RowSet& set = set_of(stage.at.rows);
  const Matrix& w = w_.layers[stage.at.layer].engram.wkv;
  const int64_t n = end - begin, width = (c_.hc_mult + 1) * c_.hidden_size;
  float *e = stage_area(begin), *kv = wide_area(begin);
  gather_engram_rows(stage.at.layer, begin, end, e);
  multiply_area(w, pack_area(kFirst, begin, w, e, c_.engram_width(), n, order_of(w.format) != Order::kNatural), kv,
                width, nullptr);
  for (int64_t i = begin; i < end; ++i)
    add_engram(stage.at.layer, set.image(static_cast<int>(i)), kv + (i - begin) * width,
               at<float>(Role::kResidual, i), at<float>(Role::kEngramGate, i));
}

void FastBackend::tap(At where, int index) {
  const RowStage stage{.run = &FastBackend::tap_rows, .at = where, .parts = static_cast<uint32_t>(index)};
  if (by_rows(where.rows)) return later(stage);
  run_waiting();
  forget_rings();
  auto body = [&](int64_t begin, int64_t end) { tap_rows(stage, begin, end); };
  parallel(row_count(where.rows), body, 16);
  taps_wait_ =
      alone(where.rows) && c_.has_drafter() && index + 1 == static_cast<int>(c_.dspark_target_layer_ids.size());
}

void FastBackend::tap_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const int64_t D = c_.hidden_size;
  for (int64_t i = begin; i < end; ++i)
    k_.mean(at<float>(Role::kResidual, i), c_.hc_mult, D, at<float>(Role::kTaps, i) + stage.parts * D);
}

void FastBackend::project_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const uint32_t parts = stage.parts;
  const LayerWeights& w = w_.layers[stage.at.layer];
  const AttentionWeights& a = w.attention;
  const int64_t n = end - begin, D = c_.hidden_size, d = c_.head_dim, low = c_.q_lora_rank;
  const float* x = at<float>(Role::kSublayerIn, begin);
  float *qr = at<float>(Role::kQueryLow, begin), *kv = stage_area(begin),
        *compressed = at<float>(Role::kCompressorRows, begin);
  const auto pack_for = [&](Buffers to, const Matrix& m, const float* from, int64_t ld) {
    return pack_area(to, begin, m, from, ld, n, order_of(m.format) != Order::kNatural);
  };
  if (parts & (kProjectQueries | kProjectWindow)) {
    const PackedRows p = pack_for(kFirst, a.wq_a, x, D);
    if (parts & kProjectQueries) multiply_area(a.wq_a, p, qr, low, &a.wkv);
    if (parts & kProjectWindow) multiply_area(a.wkv, p, kv, d, &a.wq_b);
  }
  if (parts & (kProjectIndexQueries | kProjectCompressor)) {
    const PackedRows p{packed_area(kSecond, begin), packed_columns(D), n};
    for (int64_t i = 0; i < n; ++i) k_.pack(x + i * D, D, Order::kNatural, false, p.row(i), p.step(i));
    if (parts & kProjectIndexQueries)
      multiply_area(w.indexer.weights_proj, p, at<float>(Role::kIndexWeights, begin), c_.index_n_heads, nullptr);
    if (parts & kProjectCompressor) {
      const bool gated = ratio_of(stage.at.layer) != 1;
      if (gated) multiply_area(w.compressor.wgate, p, compressed, 2 * d, nullptr, false);
      multiply_area(w.compressor.wkv, p, compressed + (gated ? d : 0), 2 * d, nullptr, !gated);
    }
  }
  finish_low(stage.at, parts, kv, begin, end);
  if ((parts & (kProjectQueries | kProjectIndexQueries)) == 0) return;
  const PackedRows p = pack_for(kFirst, a.wq_b, qr, low);
  if (parts & kProjectQueries)
    multiply_area(a.wq_b, p, at<float>(Role::kQuery, begin), c_.num_attention_heads * d, &w.indexer.wq_b);
  if (parts & kProjectIndexQueries)
    multiply_area(w.indexer.wq_b, p, at<float>(Role::kIndexQuery, begin), c_.index_n_heads * c_.index_head_dim,
                  nullptr);
  finish_high(stage.at, parts, begin, end);
}

void FastBackend::store_window(At where) {
  // Rows of the set that still attend must not find their records replaced.
  if (by_rows(where.rows) && layout_.window_slots >= c_.sliding_window + row_count(where.rows) - 1)
    return later({.run = &FastBackend::store_rows, .at = where});
  run_waiting();
  Backend<float>::store_window(where);
}

void FastBackend::store_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const RowSet& set = set_of(stage.at.rows);
  for (int64_t i = begin; i < end; ++i)
    std::memcpy(ring_record(set.of(static_cast<int>(i)), stage.at.layer, set.positions[i]),
                at<uint8_t>(Role::kWindowRecords, i), layout_.window_bytes);
}

void FastBackend::output_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const AttentionWeights& w = w_.layers[stage.at.layer].attention;
  const int64_t n = end - begin, width = c_.group_input(), groups = c_.o_groups, rank = c_.o_lora_rank,
                ldx = c_.num_attention_heads * c_.head_dim, ld = packed_columns(width);
  float *turned = wide_area(begin), *z = stage_area(begin);
  rotate_back(stage.at, turned, begin, end);
  PackedRows p{packed_area(kFirst, begin), ld, n};
  for (int64_t g = 0; g < groups; ++g, p.words += n * ld) {
    for (int64_t i = 0; i < n; ++i)
      k_.pack(turned + i * ldx + g * width, width, order_of(w.wo_a.format), false, p.row(i), p.step(i));
    k_.multiply({&w.wo_a, g * rank, rank, p, z + g * rank, groups * rank, true,
                 g + 1 < groups ? lanes_at(w.wo_a, (g + 1) * rank) : lanes_at(w.wo_b, 0)},
                kernel_scratch(w.wo_a.cols));
  }
  multiply_area(w.wo_b,
                pack_area(kSecond, begin, w.wo_b, z, groups * rank, n, order_of(w.wo_b.format) != Order::kNatural),
                at<float>(Role::kSublayerOut, begin), c_.hidden_size, nullptr);
}

// The experts' inputs are packed here as well.
void FastBackend::route_rows(const RowStage& stage, int64_t begin, int64_t end) {
  const RowSet& set = set_of(stage.at.rows);
  const MoeWeights& moe = w_.layers[stage.at.layer].moe;
  const int64_t n = end - begin, D = c_.hidden_size, experts = moe.gate.rows, ld = packed_columns(D);
  const float* x = at<float>(Role::kSublayerIn, begin);
  float* scores = stage_area(begin);
  multiply_area(moe.gate, pack_area(kFirst, begin, moe.gate, x, D, n, false), scores, experts, nullptr, false);
  for (int64_t i = begin; i < end; ++i) {
    choose_experts(set, stage.at.layer, i, scores + (i - begin) * experts);
    if (set.rows > kStreamRows) continue;  // more are packed in tiles
    const float* in = at<float>(Role::kSublayerIn, i);
    k_.pack(in, D, Order::kFp4, true, expert_words_[0].as<uint16_t>() + i * ld, kStep);
    const Order shared = order_of(moe.shared.gate.format);
    k_.pack(in, D, shared, shared != Order::kNatural, expert_words_[1].as<uint16_t>() + i * ld, kStep);
  }
  if (begin == 0 && set.rows <= kStreamRows) packed_layer_ = stage.at.layer;
}

void FastBackend::combine_rows(const RowStage& stage, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    k_.combine(at<float>(Role::kSharedOut, i), at<float>(Role::kExpertOut, i), experts_per_row(stage.at.layer),
               c_.hidden_size, at<float>(Role::kSublayerOut, i));
}

void FastBackend::fill_draft_rings(Rows set) {
  if (by_rows(set)) return later({.run = &FastBackend::ring_rows, .at = {0, set}});
  run_waiting();
  if (rings_early_ && rings_set_ == set && alone(set)) return store_rings();
  Backend<float>::fill_draft_rings(set);
}

void FastBackend::ring_rows(const RowStage& stage, int64_t begin, int64_t end) {
  form_ring_records(stage.at.rows, begin, end,
                    {at<float>(Role::kSublayerIn, begin), stage_area(begin), packed_area(kFirst, begin)});
}

void FastBackend::form_ring_records(Rows rows, int64_t begin, int64_t end, const RingMemory& memory) {
  const RowSet& set = set_of(rows);
  const int64_t n = end - begin, D = c_.hidden_size, d = c_.head_dim, half = c_.qk_rope_head_dim / 2;
  const auto pack_for = [&](const Matrix& m, const float* x) {
    const PackedRows p{memory.words, packed_columns(m.cols), n};
    const Order order = order_of(m.format);
    for (int64_t i = 0; i < n; ++i)
      k_.pack(x + i * m.cols, m.cols, order, order != Order::kNatural, p.row(i), p.step(i));
    return p;
  };
  float *main = memory.main, *kv = memory.kv;
  multiply_area(w_.main_proj, pack_for(w_.main_proj, at<float>(Role::kTaps, begin)), main, D, nullptr);
  for (int64_t i = 0; i < n; ++i) norm(main + i * D, main_norm_.data(), D, main + i * D);
  std::byte* record = memory.records;
  for (int64_t j = 0; j < c_.num_nextn_predict_layers; ++j) {
    const int layer = static_cast<int>(c_.num_hidden_layers + j), table = ratio_of(layer) > 0;
    const Matrix& w = w_.layers[layer].attention.wkv;
    multiply_area(w, pack_for(w, main), kv, d, nullptr);
    for (int64_t i = begin; i < end; ++i) {
      float* row = kv + (i - begin) * d;
      norm(row, vectors_[layer].kv_norm.data(), d, row);
      turn(row, 1, d, set.cos[table].data() + i * half, set.sin[table].data() + i * half, false);
      encode_window(row, record != nullptr ? record
                                           : ring_record(set.of(static_cast<int>(i)), layer, set.positions[i]));
    }
    if (record != nullptr) record += layout_.window_bytes;
  }
}

void FastBackend::draft_base() {
  if (!by_rows(Rows::kDraft)) {
    run_waiting();
    return Backend<float>::draft_base();
  }
  const RowSet& set = set_of(Rows::kDraft);
  later({.run = &FastBackend::draft_hidden_rows, .at = {0, Rows::kDraft}});
  run_waiting();
  products(w_.head, at<float>(Role::kSublayerIn), c_.hidden_size, set.rows, at<float>(Role::kDraftBase), c_.vocab_size);
  for (size_t s = 0; s < set.sequences.size(); ++s)
    at<int32_t>(Role::kDraftTokens, s)[0] = set.tokens[set.sequences[s].first_row];
}

void FastBackend::draft_hidden_rows(const RowStage&, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    collapse_and_norm(static_cast<int>(i), at<float>(Role::kPre, i), draft_norm_.data(),
                      at<float>(Role::kDraftHidden, i), at<float>(Role::kSublayerIn, i));
}

}  // namespace deepinfer::ops::cpu::fast
