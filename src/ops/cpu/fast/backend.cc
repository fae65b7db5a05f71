#include "ops/cpu/fast/backend.h"

#include <algorithm>
#include <new>

#include "ops/cpu/fast/lanes.h"

namespace deepinfer::ops::cpu::fast {

FastBackend::FastBackend(Capabilities capabilities, const Kernels& kernels, int threads, bool pin)
    : Backend<float>(std::move(capabilities), true, threads, ThreadPool::Idle::kSpin), k_(kernels) {
  pin_ = pin;
}

FastBackend::WorkspaceRows FastBackend::plan_workspace(const checkpoint::ModelConfig& c, const Limits& limits) const {
  const std::array<Buffer, kRoles> buffers = plan_buffers(c, limits);
  const auto of = [&buffers](Role role) { return buffers[static_cast<int>(role)]; };
  const int64_t rows = std::max(of(Role::kResidual).rows, of(Role::kLogits).rows);
  const int64_t widest = std::max({c.hidden_size, c.q_lora_rank, c.o_groups * c.o_lora_rank, c.engram_width(),
                                   of(Role::kTaps).cols, c.num_attention_heads * c.head_dim, c.dspark_markov_rank});
  const int64_t pairs = rows * of(Role::kExpertIds).cols;
  // Scores are kept for as many rows at a time as fit this; at least one.
  constexpr int64_t kScoresMax = 4 << 20;
  const int64_t score_rows = std::clamp<int64_t>(kScoresMax / limits.context_max, 1, rows);
  const int64_t queries = rows * c.index_n_heads * c.index_head_dim, lists = search_lists(rows);
  const int64_t index_bytes =
      (limits.keep_scores ? 0 : score_rows * limits.context_max * int64_t{sizeof(float)}) +
      queries * int64_t{sizeof(int8_t)} +
      (queries / kIndexGroup + rows * c.index_n_heads + lists * 2 * (c.index_topk + c.candidate_topk_blocks)) *
          int64_t{sizeof(float) + sizeof(int32_t)};
  // Groups of heads are packed one after the other, each padded.
  return {rows * (packed_columns(widest) + c.o_groups * kChunk),
          pairs * packed_columns(c.hidden_size),
          (pairs + rows) * packed_columns(c.moe_intermediate_size),
          score_rows,
          index_bytes,
          lists,
          kAheadRows * c.hidden_size + c.hc_width(),
          c.engram.empty() ? 0 : kAheadRows * (c.hc_mult + 1) * c.hidden_size};
}

uint64_t FastBackend::workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const {
  const WorkspaceRows w = plan_workspace(config, limits);
  return Backend<float>::workspace_bytes(config, limits) +
         (kBuffers * w.packed + w.pairs + w.hidden) * sizeof(uint16_t) + w.index_bytes +
         (w.foreseen + w.engram) * sizeof(float);
}

Status FastBackend::load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) {
  DI_RETURN_IF_ERROR(Backend<float>::load(config, weights, limits));
  DI_RETURN_IF_ERROR(keep_lanes());
  narrow_ = small_ && pool_.threads() > 1 && has_narrow_attention();
  if (narrow_ && !reserve_beside()) {
    return make_error(Code::kResourceExhausted,
                      "the steps of one row need more memory than is available; lower the context");
  }
  const WorkspaceRows w = plan_workspace(config, limits);
  for (HugeMemory& p : packed_) {
    DI_ASSIGN_OR_RETURN(p, HugeMemory::allocate(w.packed * sizeof(uint16_t)));
  }
  const int64_t all_rows = std::max<int64_t>(1, std::max(buffers_[static_cast<int>(Role::kResidual)].rows,
                                                        buffers_[static_cast<int>(Role::kLogits)].rows));
  area_words_ = w.packed / all_rows;
  area_floats_ = static_cast<int64_t>(stage_rows_.size()) / all_rows;
  for (HugeMemory& m : expert_words_) {
    DI_ASSIGN_OR_RETURN(m, HugeMemory::allocate(kStreamRows * packed_columns(config.hidden_size) * sizeof(uint16_t)));
  }
  DI_ASSIGN_OR_RETURN(expert_in_, HugeMemory::allocate(w.pairs * sizeof(uint16_t)));
  DI_ASSIGN_OR_RETURN(hidden_, HugeMemory::allocate(w.hidden * sizeof(uint16_t)));
  const int64_t rows = buffers_[static_cast<int>(Role::kResidual)].rows, heads = config.index_n_heads,
                d = config.index_head_dim, score_rows = w.score_rows;
  try {
    if (weights.store != nullptr) {
      foreseen_.resize(w.foreseen);
      engram_kv_.resize(w.engram);
    }
    index_codes_.resize(rows * heads * d);
    index_factors_.resize(rows * heads * d / kIndexGroup);
    index_twelve_.resize(rows * heads * d / kIndexGroup);
    index_heads_.resize(rows * heads);
    index_weights_.resize(rows * heads);
    index_positive_.resize(rows);
    reach_factor_ = reach_factor(heads);
    scoring_.resize(rows);
    if (!limits.keep_scores) scores_.resize(score_rows * limits.context_max);
    found_.resize(w.lists);
    found_scores_.resize(w.lists * 2 * config.index_topk);
    found_keys_.resize(w.lists * 2 * config.index_topk);
    found_blocks_.resize(w.lists);
    block_scores_.resize(w.lists * 2 * config.candidate_topk_blocks);
    block_keys_.resize(w.lists * 2 * config.candidate_topk_blocks);
    search_tasks_.reserve(rows);
    constexpr int64_t kKeysLeast = 1024;  // of a task, but for the halves of one row
    score_tasks_.reserve((limits.keep_scores ? rows : score_rows) * (limits.context_max / kKeysLeast + 2));
  } catch (const std::bad_alloc&) {
    return make_error(Code::kResourceExhausted,
                      "the indexer's scores need more memory than is available; lower the rows or the context");
  }
  output_calls_.reserve(static_cast<size_t>(config.o_groups));
  const auto guesses =
      static_cast<size_t>(kAheadRows * std::max(config.num_experts_per_tok, config.dspark_num_experts_per_tok));
  guess_.reserve(guesses);
  for (Guesses& g : guesses_) g = {-1, {}}, g.experts.reserve(guesses);
  constexpr float kMarginFirst = 0.1f;
  std::array<float, kMoments> first;
  first.fill(kMarginFirst);
  sure_margins_.assign(weights.layers.size(), first);
  for (std::vector<FfnTask>* list : {&tasks_, &batch_})
    list->reserve(std::max(config.n_routed_experts, config.dspark_n_routed_experts) + 1);
  return {};
}

std::vector<std::pair<Slot, int64_t>> FastBackend::scratch_plan() const {
  std::vector<std::pair<Slot, int64_t>> plan = Backend<float>::scratch_plan();
  const int64_t rows = buffers_[static_cast<int>(Role::kResidual)].rows;
  const int64_t lanes = (c_.num_attention_heads + kLanes - 1) / kLanes * kLanes, keys = keys_max() + 1;
  plan.emplace_back(Slot::kQueries, c_.head_dim / 2 * lanes * static_cast<int64_t>(sizeof(uint32_t)));
  plan.emplace_back(Slot::kWords, packed_columns(c_.head_dim) * static_cast<int64_t>(sizeof(uint16_t)));
  plan.emplace_back(Slot::kScores, keys * lanes * static_cast<int64_t>(sizeof(float)));
  plan.emplace_back(Slot::kProbabilities, keys * lanes * static_cast<int64_t>(sizeof(uint16_t)));
  plan.emplace_back(Slot::kAccumulator, 2 * lanes * static_cast<int64_t>(sizeof(float)));
  plan.emplace_back(Slot::kPanel, std::max(keys * kChunk * static_cast<int64_t>(sizeof(uint16_t)),
                                           static_cast<int64_t>(few_heads_bytes(keys, c_.head_dim))));
  plan.emplace_back(Slot::kGate, 2 * rows * kChunk * static_cast<int64_t>(sizeof(float)));
  search_scratch(&plan);
  return plan;
}

std::byte* FastBackend::kernel_scratch(int64_t k) {
  constexpr size_t kLeast = 2 << 20;  // a huge page
  thread_local HugeMemory memory;
  const size_t bytes = std::max(multiply_scratch_bytes(k), kLeast);
  if (memory.bytes() < bytes) {
    Result<HugeMemory> m = HugeMemory::allocate(bytes);
    if (!m.ok()) throw std::bad_alloc();
    memory = std::move(m).value();
  }
  return memory.as<std::byte>();
}

bool FastBackend::reserve_thread() {
  try {
    kernel_scratch(std::max({c_.hidden_size, c_.q_lora_rank, c_.o_groups * c_.o_lora_rank, c_.engram_width(),
                             buffers_[static_cast<int>(Role::kTaps)].cols, c_.group_input()}));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return Backend<float>::reserve_thread();
}

PackedRows FastBackend::pack(Buffers to, const float* x, int64_t ldx, int64_t n, int64_t k, Order order, bool quantise,
                             bool one_row_each) {
  const PackedRows p{packed_[to].as<uint16_t>(), packed_columns(k), n};
  pack_rows(p, x, ldx, k, order, quantise, one_row_each);
  return p;
}

void FastBackend::pack_rows(const PackedRows& p, const float* x, int64_t ldx, int64_t k, Order order, bool quantise,
                            bool one_row_each) {
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (one_row_each) {
        k_.pack(x + i * ldx, k, order, quantise, p.words + i * p.ld, kStep);
      } else {
        k_.pack(x + i * ldx, k, order, quantise, p.row(i), p.step(i));
      }
    }
  };
  constexpr int64_t kGrainColumns = 64 << 10;
  parallel(p.n, body, std::max<int64_t>(1, kGrainColumns / k));
}

void FastBackend::turn(float* x, int64_t n, int64_t d, const float* cos, const float* sin, bool inverse) const {
  constexpr int64_t kPairs = 8;  // of a vector
  const int64_t half = c_.qk_rope_head_dim / 2;
  if (half % kPairs == 0) {
    k_.rotate(x, n, d, cos, sin, half, inverse);
  } else {
    rotate(x, n, d, cos, sin, inverse);
  }
}

void FastBackend::run(std::span<const LinearCall> calls) {
  constexpr int64_t kMixWork = 16 << 10;  // but for mHC's mix they are
  int64_t blocks = 0, work = 0, columns = 0;
  for (const LinearCall& c : calls) {
    blocks += (c.rows + kBlockRows - 1) / kBlockRows;
    work += c.rows * c.w->cols * std::max<int64_t>(c.x.n, 4) / 4;
    columns = std::max(columns, c.w->cols);
  }
  auto body = [&](int64_t begin, int64_t end) {
    std::byte* scratch = kernel_scratch(columns);
    int64_t first = 0;
    for (size_t k = 0; k < calls.size(); ++k) {
      const LinearCall& c = calls[k];
      const int64_t count = (c.rows + kBlockRows - 1) / kBlockRows;
      const int64_t from = std::max(begin, first) - first, to = std::min(end - first, count);
      if (from < to) {
        LinearCall part = c;
        part.row0 = c.row0 + from * kBlockRows;
        part.rows = std::min(c.rows, to * kBlockRows) - from * kBlockRows;
        part.out = c.out + from * kBlockRows;
        if (k + 1 < calls.size() && end > first + count) part.next = lanes_at(*calls[k + 1].w, calls[k + 1].row0);
        k_.multiply(part, scratch);
      }
      first += count;
    }
  };
  if (work > kSmallWork) {
    // A small model's blocks are even, and over before a thread could help another.
    parallel_with_mix(blocks, body, small_ ? (blocks + pool_.threads() - 1) / pool_.threads() : 1);
  } else if (late_mix_ != nullptr && work > kMixWork && !mix_beside_attention_) {
    auto one_each = [&](int64_t begin, int64_t end) {
      if (begin == 0) body(0, blocks);
      if (end == 2) do_late_mix();
    };
    parallel(2, one_each);
  } else {
    body(0, blocks);
  }
}

void FastBackend::linear(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo) {
  run(call(w, pack_for(kFirst, w, x, ldx, n), out, ldo, true));
}

void FastBackend::linear_part(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n,
                              float* out, int64_t ldo) {
  LinearCall c = call(w, pack(kFirst, x, ldx, n, w.cols, order_of(w.format), false), out, ldo, true);
  c.row0 = row0;
  c.rows = rows;
  run(c);
}

void FastBackend::products(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo) {
  run(call(w, pack_for(kFirst, w, x, ldx, n), out, ldo, false));
}

}  // namespace deepinfer::ops::cpu::fast
