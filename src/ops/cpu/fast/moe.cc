// Router and experts (spec/model.md 9). An expert's hidden channels are formed 64 at a time: both products, SwiGLU,
// quantisation and packing for the next product stay in one task.
#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/store/weight_store.h"
#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/lanes.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::route(At where) {
  if (by_rows(where.rows)) return later({.run = &FastBackend::route_rows, .at = where});
  run_waiting();
  if (alone(where.rows)) return route_beside(where);
  const RowSet& set = set_of(where.rows);
  const Matrix& gate = w_.layers[where.layer].moe.gate;
  const int64_t n = set.rows, experts = gate.rows;
  float* scores = stage_rows_.data();
  products(gate, at<float>(Role::kSublayerIn), c_.hidden_size, n, scores, experts);
  auto choose = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) choose_experts(set, where.layer, i, scores + i * experts);
  };
  // Half a microsecond a row: worth a second thread from four rows on.
  parallel(n, choose, n < 4 ? 4 : n < 16 ? (n + 1) / 2 : 8);
}

void FastBackend::pack_experts(const ExpertRows& rows) {
  const int64_t D = c_.hidden_size, columns = rows.ids.cols;
  const PackedRows packed =
      packed_layer_ >= 0
          ? PackedRows{expert_words_[0].as<uint16_t>(), packed_columns(D), rows.rows}
          : pack(kFirst, static_cast<const float*>(rows.input.data), rows.input.cols, rows.rows, D, Order::kFp4, true,
                 true);
  tasks_.clear();
  for (const ExpertTask& t : expert_tasks_) {
    FfnTask task{nullptr, {expert_in_.as<uint16_t>() + t.first * packed.ld, packed.ld, t.count}, t.first, false};
    if (t.count == 1) task.x.words = packed.words + expert_order_[t.first] / columns * packed.ld;
    tasks_.push_back(task);
  }
  auto gather = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const FfnTask& task = tasks_[t];
      for (int64_t i = 0; task.x.n > 1 && i < task.x.n; ++i) {
        const uint16_t* from = packed.words + expert_order_[task.first + i] / columns * packed.ld;
        uint16_t* to = task.x.row(i);
        const int64_t step = task.x.step(i);
        for (int64_t k = 0; k < packed.ld / kStep; ++k) std::copy_n(from + k * kStep, kStep, to + k * step);
      }
    }
  };
  parallel(static_cast<int64_t>(tasks_.size()), gather, rows.rows < kBlockRows ? 1 << 20 : 1);
}

// Its hidden rows lie behind those of the experts.
FastBackend::FfnTask FastBackend::shared_task(const ExpertWeights& shared, int64_t rows) {
  const int64_t first = expert_tasks_.empty() ? 0 : expert_tasks_.back().first + expert_tasks_.back().count;
  if (packed_layer_ >= 0)
    return {&shared, {expert_words_[1].as<uint16_t>(), packed_columns(c_.hidden_size), rows}, first, true};
  return {&shared, pack_for(kSecond, shared.gate, at<float>(Role::kSublayerIn), c_.hidden_size, rows), first, true};
}

// Hidden channels block * 64 .. of a task's rows, packed for the down projection.
void FastBackend::up_block(const FfnTask& task, int64_t block, const ExpertRows* routed, const std::byte* next) {
  const ExpertWeights& w = *task.weights;
  const int64_t row0 = block * kChunk, count = std::min(kChunk, w.gate.rows - row0), n = task.x.n;
  const PackedRows hidden = hidden_rows(task);
  float* gate = scratch<float>(Slot::kGate, 2 * n * kChunk);
  float* up = gate + n * kChunk;
  std::byte* memory = kernel_scratch(w.gate.cols);
  k_.multiply({&w.gate, row0, count, task.x, gate, kChunk, true, lanes_at(w.up, row0)}, memory);
  k_.multiply({&w.up, row0, count, task.x, up, kChunk, true, next}, memory);
  const auto limit = static_cast<float>(c_.swiglu_limit);
  for (int64_t i = 0; i < n; ++i) {
    const float weight =
        task.shared ? 1.0f : static_cast<const float*>(routed->weights.data)[expert_order_[task.first + i]];
    float* h = gate + i * kChunk;
    k_.swiglu(h, up + i * kChunk, count, limit, weight, h);
    k_.pack(h, count, order_of(w.down.format), true, hidden.row(i) + row0 / kStep * hidden.step(i), hidden.step(i));
  }
}

// Output channels row0 .. row0 + count - 1 of a task's rows; of several rows no more than kDownRows.
void FastBackend::down_rows(const FfnTask& task, int64_t row0, int64_t count, const ExpertRows* routed,
                            const std::byte* next) {
  const Matrix& w = task.weights->down;
  const int64_t D = w.rows, n = task.x.n;
  const PackedRows x = hidden_rows(task);
  if (task.shared) {
    k_.multiply({&w, row0, count, x, at<float>(Role::kSharedOut) + row0, D, true, next}, kernel_scratch(w.cols));
    return;
  }
  auto* output = static_cast<float*>(routed->output.data);
  const int32_t* pairs = expert_order_.data() + task.first;
  if (n == 1) {
    k_.multiply({&w, row0, count, x, output + pairs[0] * D + row0, D, true, next}, kernel_scratch(w.cols));
    return;
  }
  float* out = scratch<float>(Slot::kGate, n * kDownRows);
  k_.multiply({&w, row0, count, x, out, kDownRows, true, next}, kernel_scratch(w.cols));
  for (int64_t i = 0; i < n; ++i) std::copy_n(out + i * kDownRows, count, output + pairs[i] * D + row0);
}

// A task from its input to its output.
void FastBackend::ffn_whole(const FfnTask& task, const ExpertRows* routed, const std::byte* next) {
  const ExpertWeights& w = *task.weights;
  const int64_t ups = (w.gate.rows + kChunk - 1) / kChunk;
  for (int64_t i = 0; i < ups; ++i)
    up_block(task, i, routed, i + 1 < ups ? lanes_at(w.gate, (i + 1) * kChunk) : lanes_at(w.down, 0));
  const int64_t D = w.down.rows, part = task.x.n == 1 ? D : kDownRows;
  for (int64_t row0 = 0; row0 < D; row0 += part)
    down_rows(task, row0, std::min(part, D - row0), routed, row0 + part < D ? lanes_at(w.down, row0 + part) : next);
}

// Few rows of a small model: each thread takes as many whole experts as the others, and all of them share what is left
// over. So an expert's hidden rows stay with the thread that has formed them.
void FastBackend::run_whole(std::span<const FfnTask> tasks, const ExpertRows* routed) {
  const int64_t threads = pool_.threads(), n = static_cast<int64_t>(tasks.size()), each = n / threads,
                left = n - each * threads, ups = (tasks[0].weights->gate.rows + kChunk - 1) / kChunk,
                downs = (c_.hidden_size + kBlockRows - 1) / kBlockRows;
  const FfnTask* shared = tasks.data() + each * threads;
  auto own = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const FfnTask* mine = tasks.data() + t * each;
      for (int64_t i = t; i < left * ups; i += threads) {
        const int64_t then = i + threads;
        up_block(shared[i / ups], i % ups, routed,
                 then < left * ups ? lanes_at(shared[then / ups].weights->gate, then % ups * kChunk)
                                   : lanes_at(mine->weights->gate, 0));
      }
      for (int64_t i = 0; i < each; ++i)
        ffn_whole(mine[i], routed, i + 1 < each ? lanes_at(mine[i + 1].weights->gate, 0) : nullptr);
    }
  };
  parallel(threads, own);
  auto down = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row0 = i % downs * kBlockRows;
      down_rows(shared[i / downs], row0, std::min(kBlockRows, c_.hidden_size - row0), routed, nullptr);
    }
  };
  parallel(left * downs, down, (left * downs + threads - 1) / threads);
}

void FastBackend::run_ffn(std::span<const FfnTask> tasks, const ExpertRows* routed) {
  if (tasks.empty()) return;
  if (beside_[kShared].id != 0 && tasks.size() <= kBesides - kRouted) return run_experts_beside(tasks, routed);
  const auto few = [](const FfnTask& t) { return !t.x.tiled(); };
  if (small_ && late_mix_ == nullptr && std::ssize(tasks) >= pool_.threads() && std::ranges::all_of(tasks, few))
    return run_whole(tasks, routed);
  const int64_t ups = (tasks[0].weights->gate.rows + kChunk - 1) / kChunk,
                downs = (c_.hidden_size + kBlockRows - 1) / kBlockRows, n = static_cast<int64_t>(tasks.size());
  auto up = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t then = i + 1;
      up_block(tasks[i / ups], i % ups, routed,
               then < end ? lanes_at(tasks[then / ups].weights->gate, then % ups * kChunk) : nullptr);
    }
  };
  parallel_with_mix(n * ups, up);
  auto down = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t then = i + 1;
      const int64_t row0 = i % downs * kBlockRows;
      down_rows(tasks[i / downs], row0, std::min(kBlockRows, c_.hidden_size - row0), routed,
                 then < end ? lanes_at(tasks[then / downs].weights->down, then % downs * kBlockRows) : nullptr);
    }
  };
  parallel(n * downs, down);
}

// The shared expert of the same rows runs in the same loops; shared_expert() then has nothing left to do. Where experts
// are being read, it runs before they are there.
void FastBackend::experts(At where, const ExpertRows& rows) {
  run_waiting();
  const MoeWeights& moe = w_.layers[where.layer].moe;
  const bool local = rows.input.data == at<float>(Role::kSublayerIn) && rows.rows == row_count(where.rows);
  if (packed_layer_ != where.layer || !local) packed_layer_ = -1;
  const bool beside = beside_[kShared].id != 0;  // it runs already
  if (!local) finish_beside(kShared);            // others' hidden rows may lie where its own one does
  group_by_expert(rows, moe.experts.size(), static_cast<int>(buffers_[static_cast<int>(Role::kResidual)].rows));
  begin_experts(where.layer);
  pack_experts(rows);
  batch_.clear();
  if (local && !beside) batch_.push_back(shared_task(moe.shared, rows.rows));
  if (w_.store != nullptr) {
    run_ffn(batch_, &rows);
    batch_.clear();
  }
  const bool ahead = local && works_ahead(where);
  if (ahead) judge_guesses(where.layer);
  bool told = !ahead;  // of the next layer's experts, for the last time
  if (ahead) {
    std::fill_n(static_cast<float*>(rows.output.data), rows.rows * rows.ids.cols * c_.hidden_size, 0.0f);
    expect_next_experts(where, Moment::kExpertsBegin);
  }
  for (;;) {
    if (ahead && w_.store->experts().waits()) engram_ahead(where);
    if (!next_experts(rows)) break;
    for (int32_t t : ready_tasks_) {
      batch_.push_back(tasks_[t]);
      batch_.back().weights = &ready_experts_[expert_tasks_[t].expert];
    }
    run_ffn(batch_, &rows);
    batch_.clear();
    if (!told && w_.store->experts().outstanding() <= kGuessOutstanding) {
      expect_next_experts(where, Moment::kExpertsEnd);
      told = true;
    }
  }
  run_ffn(batch_, &rows);
  finish_beside(kShared);
  shared_done_ = local || beside ? where.layer : -1;
  packed_layer_ = -1;
}

void FastBackend::shared_expert(At where) {
  if (shared_done_ == where.layer) {
    finish_beside(kShared);
    shared_done_ = -1;
    return;
  }
  run_waiting();
  packed_layer_ = -1;
  expert_tasks_.clear();
  const FfnTask task = shared_task(w_.layers[where.layer].moe.shared, row_count(where.rows));
  run_ffn({&task, 1}, nullptr);
}

void FastBackend::combine(At where) {
  if (by_rows(where.rows)) return later({.run = &FastBackend::combine_rows, .at = where});
  run_waiting();
  const int64_t D = c_.hidden_size, k = experts_per_row(where.layer);
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      k_.combine(at<float>(Role::kSharedOut, i), at<float>(Role::kExpertOut, i), k, D,
                 at<float>(Role::kSublayerOut, i));
  };
  parallel(row_count(where.rows), body, 4);
}

}  // namespace deepinfer::ops::cpu::fast
