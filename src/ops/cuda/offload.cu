// Experts and Engram tables beyond GPU memory (offload.h).
#include "ops/cuda/offload.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/store/weight_store.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kResolveThreads = 1024, kFetchThreads = 256, kFetchCtas = 264;
constexpr int64_t kPieceBytes = 4 * 16 * kFetchThreads;
constexpr double kHalfLifeSteps = 128;
constexpr uint64_t kReserveBytes = uint64_t{512} << 20;  // of graphs, contexts and stacks

// Which of a layer's experts a step needs, in which slots they are, which are missing and where those go: to the slots
// of the lowest counts. One CTA; `first`: number of the layer's first expert; those from `mine` on are the host's.
__global__ __launch_bounds__(kResolveThreads) void resolve_kernel(const int32_t* ids, int rows, int columns,
                                                                  int per_row, int first, int experts, int mine,
                                                                  ExpertTable t) {
  extern __shared__ int32_t needed[];  // [experts], then a list of the missing
  __shared__ double best_count[kResolveThreads / 32];
  __shared__ int best_slot[kResolveThreads / 32], missing, asked;
  int32_t* list = needed + experts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_inputs();
  start_next_kernel();
  const uint32_t now = *t.clock + 1;
  const double age = now / t.half_life;
  for (int e = threadIdx.x; e < experts; e += kResolveThreads) needed[e] = 0;
  if (threadIdx.x == 0) missing = asked = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < rows * per_row; i += kResolveThreads) {
    const int e = ids[static_cast<int64_t>(i / per_row) * columns + i % per_row];
    if (e >= 0 && e < mine) needed[e] = 1;
  }
  __syncthreads();
  if (warp == 0) {  // ascending, so that the list is the same on every run
    int count = 0, all = 0;
    for (int e0 = 0; e0 < experts; e0 += 32) {
      const int e = e0 + lane;
      const bool wanted = e < experts && needed[e] != 0;
      const int slot = wanted ? t.slot_of[first + e] : 0;
      if (wanted && slot >= 0) t.used[slot] = now;
      if (wanted) {
        const double past = t.count[first + e] - age;
        t.count[first + e] = age + (past > -60 ? log2(1 + exp2(past)) : 0);
      }
      const unsigned lacks = __ballot_sync(0xffffffffu, wanted && slot < 0);
      if (wanted && slot < 0) list[count + __popc(lacks & ((1u << lane) - 1))] = e;
      count += __popc(lacks);
      all += __popc(__ballot_sync(0xffffffffu, wanted));
    }
    if (lane == 0) missing = count, asked = all;
  }
  __syncthreads();
  for (int m = 0; m < missing; ++m) {
    double least = INFINITY;
    int slot = t.slot_count;
    for (int s = threadIdx.x; s < t.slot_count; s += kResolveThreads) {
      if (t.used[s] == now) continue;
      const double c = t.owner[s] < 0 ? -INFINITY : t.count[t.owner[s]];
      if (c < least || slot == t.slot_count) least = c, slot = s;
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, least, o);
      const int other_slot = __shfl_xor_sync(0xffffffffu, slot, o);
      if (other < least || (other == least && other_slot < slot)) least = other, slot = other_slot;
    }
    if (lane == 0) best_count[warp] = least, best_slot[warp] = slot;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kResolveThreads / 32; ++w) {
        if (best_count[w] < least || (best_count[w] == least && best_slot[w] < slot))
          least = best_count[w], slot = best_slot[w];
      }
      const int expert = first + list[m];
      if (t.owner[slot] >= 0) t.slot_of[t.owner[slot]] = -1;
      t.owner[slot] = expert;
      t.slot_of[expert] = slot;
      t.used[slot] = now;
      t.missing[1 + 2 * m] = expert;
      t.missing[2 + 2 * m] = slot;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    t.missing[0] = missing;
    *t.clock = now;
    t.traffic[0] += asked;
    t.traffic[1] += missing;
  }
}

// Copies the missing experts from pinned host memory: the link is busy with some hundred KB on their way.
__global__ __launch_bounds__(kFetchThreads) void fetch_kernel(ExpertTable t) {
  wait_for_inputs();
  start_next_kernel();
  const int64_t pieces = (t.slot_bytes + kPieceBytes - 1) / kPieceBytes;
  const int64_t all = t.missing[0] * pieces;
  for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
    const int at = static_cast<int>(i / pieces), expert = t.missing[1 + 2 * at], slot = t.missing[2 + 2 * at];
    const int64_t begin = i % pieces * kPieceBytes + threadIdx.x * 16;
    const uint8_t* from = t.host[expert] + begin;
    uint8_t* to = t.slots + slot * t.slot_bytes + begin;
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (begin + k * 16 * kFetchThreads < t.slot_bytes) {
        v[k] = __ldcs(reinterpret_cast<const uint4*>(from + k * 16 * kFetchThreads));
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (begin + k * 16 * kFetchThreads < t.slot_bytes) *reinterpret_cast<uint4*>(to + k * 16 * kFetchThreads) = v[k];
    }
  }
}

int64_t round_up(int64_t n) { return (n + 255) / 256 * 256; }
int padded(int64_t k) { return static_cast<int>((k + kChunk - 1) / kChunk * kChunk); }

ExpertShape shape_of(const ExpertWeights& e) {
  ExpertShape s;
  s.gate_up_n = static_cast<int>(e.gate.rows + e.up.rows), s.gate_up_k = padded(e.gate.cols);
  s.down_n = static_cast<int>(e.down.rows), s.down_k = padded(e.down.cols);
  s.gate_up_bytes = round_up(static_cast<int64_t>(arranged_fp4_bytes(s.gate_up_n, s.gate_up_k)));
  s.down_bytes = round_up(static_cast<int64_t>(arranged_fp4_bytes(s.down_n, s.down_k)));
  return s;
}

}  // namespace

PinnedArena::~PinnedArena() {
  for (void* p : blocks_) cudaFreeHost(p);
}

Status PinnedArena::take(uint64_t bytes, void** p) {
  if (const cudaError_t e = cudaMallocHost(p, std::max<uint64_t>(bytes, 1)); e != cudaSuccess) {
    return make_error(Code::kResourceExhausted,
                      "{} of host memory cannot be pinned for weights that do not fit into the GPU, beside {} that are "
                      "({}): use a smaller model, or the CPU (--device cpu --ram).",
                      format_bytes(bytes), format_bytes(bytes_), cudaGetErrorString(e));
  }
  blocks_.push_back(*p);
  bytes_ += bytes;
  return {};
}

// Decides by sizes what lies on the host. dense, tables, experts: bytes of weights; what KV will take is estimated.
Status Backend::plan_offload(const ModelWeights& weights, const WeightBytes& bytes) {
  Offload& o = offload_;
  o.store = weights.store;
  const uint64_t kv = layout_.page_stride * static_cast<uint64_t>(limits_.blocks_max) +
                      layout_.slot_stride * static_cast<uint64_t>(limits_.sequences_max);
  const uint64_t room = free_bytes(), dense = bytes.dense + kv;
  int experts = 0, drafter = 0;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    o.first.push_back(experts);
    layers_[i].experts = static_cast<int>(weights.layers[i].moe.experts.size());
    experts += layers_[i].experts;
    if (is_draft(static_cast<int>(i))) drafter += layers_[i].experts;
  }
  const bool slots_limited = options_.expert_slots_max > 0 && options_.expert_slots_max < experts;
  const bool host_computes = options_.host != nullptr && options_.host_experts > 0;
  o.experts = o.store != nullptr || slots_limited || host_computes || dense + bytes.experts > room;
  o.tables = o.experts || dense + bytes.experts + bytes.tables > room;
  if (!o.experts) {
    options_.host = nullptr;
    return {};
  }
  for (const LayerWeights& l : weights.layers) {
    for (const ExpertWeights& e : l.moe.experts) {
      const ExpertShape s = shape_of(e);
      if (o.shape.down_n == 0) o.shape = s, o.like = e;
      if (s == o.shape && e.gate.format == WeightFormat::kFp4) continue;
      return make_error(Code::kUnsupported, "experts of different sizes or formats must all fit into GPU memory");
    }
  }
  const auto image = static_cast<uint64_t>(o.shape.image_bytes());
  uint64_t slots = room > dense ? (room - dense) / std::max<uint64_t>(image, 1) : 0;
  if (slots_limited) slots = std::min(slots, static_cast<uint64_t>(options_.expert_slots_max));
  if (o.store == nullptr && image > 0) DI_RETURN_IF_ERROR(measure_link());
  DI_RETURN_IF_ERROR(plan_host_experts(
      weights, std::clamp((static_cast<double>(slots) - drafter) / std::max(1, experts - drafter), 0.0, 1.0)));
  for (size_t i = 0; i < layers_.size(); ++i) o.most = std::max(o.most, first_of_host(static_cast<int>(i)));
  const uint64_t least = dense + static_cast<uint64_t>(o.most) * static_cast<uint64_t>(o.shape.image_bytes());
  if (least > room) {
    return make_error(Code::kResourceExhausted,
                      "Beside its working memory the GPU needs {} at least, for weights that every token reads, KV and "
                      "the experts of one layer, and has {}: use a smaller model, less context, fewer rows or "
                      "sequences, or the CPU (--device cpu).",
                      format_bytes(least), format_bytes(room));
  }
  const uint64_t host = static_cast<uint64_t>(experts) * static_cast<uint64_t>(o.shape.image_bytes()) + bytes.tables;
  if (const MemoryRoom free = available_memory(); o.store == nullptr && host > free.bytes) {
    return make_error(Code::kResourceExhausted,
                      "Weights that do not fit into the GPU take {} of host memory, and {} are {}. Give --ram, so that "
                      "they are read from the SSD.",
                      format_bytes(host), format_bytes(free.bytes), free.limited_by);
  }
  return take_table(experts);
}

Status Backend::take_table(int experts) {
  Offload& o = offload_;
  const auto take = [this](size_t bytes, auto** p) { return arena_.take(bytes, reinterpret_cast<void**>(p)); };
  o.table.experts = experts;
  o.table.slot_bytes = o.shape.image_bytes();
  const size_t values[2] = {static_cast<size_t>(o.shape.gate_up_n) * static_cast<size_t>(o.shape.gate_up_k),
                            static_cast<size_t>(o.shape.down_n) * static_cast<size_t>(o.shape.down_k)};
  for (int i = 0; i < 2; ++i) {
    DI_RETURN_IF_ERROR(take(values[i] / 2, &o.codes[i]));
    DI_RETURN_IF_ERROR(take(values[i] / 32, &o.scales[i]));
  }
  DI_RETURN_IF_ERROR(take(4 * static_cast<size_t>(experts), &o.table.slot_of));
  DI_RETURN_IF_ERROR(take(8 * static_cast<size_t>(experts), &o.table.count));
  o.table.half_life = kHalfLifeSteps * static_cast<double>(layers_.size());
  DI_RETURN_IF_ERROR(take(4, &o.table.clock));
  DI_RETURN_IF_ERROR(take(8 * static_cast<size_t>(o.most) + 4, &o.table.missing));
  DI_RETURN_IF_ERROR(take(16, &o.table.traffic));
  return o.pinned.take(8 * static_cast<uint64_t>(o.most) + 4, reinterpret_cast<void**>(&o.missing));
}

// By experts that are more than the GPU's caches hold.
Status Backend::measure_link() {
  Offload& o = offload_;
  constexpr uint64_t kMeasuredBytes = uint64_t{256} << 20;
  const auto image = static_cast<size_t>(o.shape.image_bytes());
  const size_t n = std::clamp<size_t>(kMeasuredBytes / image, 1, 64);
  PinnedArena pinned;
  Arena passing;
  ExpertTable t;
  t.slot_bytes = static_cast<int64_t>(image);
  uint8_t* host = nullptr;
  void* p = nullptr;
  DI_RETURN_IF_ERROR(pinned.take(n * image, reinterpret_cast<void**>(&host)));
  std::memset(host, 1, n * image);
  DI_RETURN_IF_ERROR(passing.take(n * image, reinterpret_cast<void**>(&t.slots)));
  std::vector<const uint8_t*> images;
  std::vector<int32_t> missing = {static_cast<int32_t>(n)};
  for (size_t i = 0; i < n; ++i) {
    images.push_back(host + i * image);
    missing.insert(missing.end(), 2, static_cast<int32_t>(i));
  }
  const auto hand = [&](const auto& values) {
    const size_t bytes = values.size() * sizeof values[0];
    DI_RETURN_IF_ERROR(passing.take(bytes, &p));
    const cudaError_t e = cudaMemcpy(p, values.data(), bytes, cudaMemcpyHostToDevice);
    return e == cudaSuccess ? Status() : cuda_error("copy from the host", e);
  };
  DI_RETURN_IF_ERROR(hand(images));
  t.host = static_cast<const uint8_t* const*>(p);
  DI_RETURN_IF_ERROR(hand(missing));
  t.missing = static_cast<int32_t*>(p);
  cudaEvent_t begin = nullptr, end = nullptr;
  note(cudaEventCreate(&begin));
  note(cudaEventCreate(&end));
  for (int i = 0; i < 6; ++i) {  // in turns; the best counts, since others may use the link
    const bool copies = i % 2 != 0;
    note(cudaEventRecord(begin, stream_));
    if (copies) {
      note(cudaMemcpyAsync(t.slots, host, n * image, cudaMemcpyHostToDevice, stream_));
    } else {
      fetch_kernel<<<kFetchCtas, kFetchThreads, 0, stream_>>>(t);
    }
    note(cudaEventRecord(end, stream_));
    note(settle());
    float ms = 0;
    note(cudaEventElapsedTime(&ms, begin, end));
    double& rate = copies ? o.copy_rate : o.kernel_rate;
    if (ms > 0) rate = std::max(rate, static_cast<double>(n * image) / (1e-3 * ms));
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  const cudaError_t e = std::exchange(error_, cudaSuccess);
  return e == cudaSuccess ? Status() : cuda_error("be measured", e);
}

// The image of an expert at `to` in device memory, built on the stream.
Status Backend::arrange_expert(const ExpertWeights& e, uint8_t* to) {
  const Offload& o = offload_;
  DI_RETURN_IF_ERROR(copy_stack({&e.gate, &e.up}, o.codes[0], o.scales[0]));
  arrange_fp4(o.codes[0], o.scales[0], o.shape.gate_up_n, o.shape.gate_up_k, to, stream_);
  DI_RETURN_IF_ERROR(copy_stack({&e.down}, o.codes[1], o.scales[1]));
  arrange_fp4(o.codes[1], o.scales[1], o.shape.down_n, o.shape.down_k, to + o.shape.gate_up_bytes, stream_);
  return {};
}

// A layer's experts into pinned memory.
Status Backend::keep_experts(const MoeWeights& moe, size_t of_gpu) {
  Offload& o = offload_;
  if (o.store != nullptr || moe.experts.empty()) return {};
  const auto bytes = static_cast<size_t>(o.shape.image_bytes());
  uint8_t* host = nullptr;
  DI_RETURN_IF_ERROR(o.pinned.take(bytes * of_gpu, reinterpret_cast<void**>(&host)));
  Arena passing;
  void* image = nullptr;
  DI_RETURN_IF_ERROR(passing.take(bytes, &image));
  for (size_t i = 0; i < moe.experts.size(); ++i) {
    if (i >= of_gpu) {
      o.images.push_back(nullptr);
      continue;
    }
    DI_RETURN_IF_ERROR(arrange_expert(moe.experts[i], static_cast<uint8_t*>(image)));
    if (const cudaError_t error = cudaMemcpyAsync(host, image, bytes, cudaMemcpyDeviceToHost, stream_);
        error != cudaSuccess) {
      return cuda_error("return weights", error);
    }
    o.images.push_back(host);
    host += bytes;
  }
  const cudaError_t error = settle();
  return error == cudaSuccess ? Status() : cuda_error("return weights", error);
}

// What is left of the memory becomes slots; layers find their experts there.
Status Backend::take_slots() {
  Offload& o = offload_;
  if (!o.experts || o.table.slots != nullptr) return {};
  const uint64_t room = free_bytes(), each = static_cast<uint64_t>(o.table.slot_bytes) + 8;
  const auto useful = static_cast<uint64_t>(o.table.experts - o.host_experts * static_cast<int>(c_.num_hidden_layers));
  uint64_t slots = std::min(useful, room / each);
  if (options_.expert_slots_max > 0)
    slots = std::min<uint64_t>(slots, static_cast<uint64_t>(options_.expert_slots_max));
  if (slots < static_cast<uint64_t>(o.most)) {
    return make_error(Code::kResourceExhausted,
                      "The GPU has {} left for experts, and the {} experts of a layer that it computes take {}: allow "
                      "less context, fewer rows or sequences, or use the CPU (--device cpu).",
                      format_bytes(room), o.most, format_bytes(each * static_cast<uint64_t>(o.most)));
  }
  o.table.slot_count = static_cast<int>(slots);
  const auto take = [this](size_t bytes, auto** p) { return arena_.take(bytes, reinterpret_cast<void**>(p)); };
  DI_RETURN_IF_ERROR(take(slots * static_cast<size_t>(o.table.slot_bytes), &o.table.slots));
  DI_RETURN_IF_ERROR(take(4 * slots, &o.table.owner));
  DI_RETURN_IF_ERROR(take(4 * slots, &o.table.used));
  if (!o.images.empty()) {
    const void* images = nullptr;
    DI_RETURN_IF_ERROR(upload(o.images.data(), 8 * o.images.size(), &images));
    o.table.host = static_cast<const uint8_t* const*>(images);
  }
  for (Layer& l : layers_) {
    l.w1_w3 = {o.table.slots, nullptr, o.shape.gate_up_n, o.shape.gate_up_k, WeightFormat::kFp4, o.table.slot_bytes, 0};
    l.w2 = {o.table.slots + o.shape.gate_up_bytes, nullptr, o.shape.down_n, o.shape.down_k, WeightFormat::kFp4,
            o.table.slot_bytes, 0};
  }
  return forget_slots();
}

Status Backend::forget_slots() {
  const ExpertTable& t = offload_.table;
  offload_.forget = false;
  note(cudaMemsetAsync(t.slot_of, 0xff, 4 * static_cast<size_t>(t.experts), stream_));
  note(cudaMemsetAsync(t.owner, 0xff, 4 * static_cast<size_t>(t.slot_count), stream_));
  note(cudaMemsetAsync(t.used, 0, 4 * static_cast<size_t>(t.slot_count), stream_));
  const cudaError_t e = settle();
  return e == cudaSuccess ? Status() : cuda_error("clear memory", e);
}

const int32_t* Backend::bring_experts(int layer, const ExpertRows& rows) {
  Offload& o = offload_;
  if (!o.experts) return nullptr;
  const int first = o.first[static_cast<size_t>(layer)], experts = layers_[static_cast<size_t>(layer)].experts;
  launch_next(resolve_kernel, 1, kResolveThreads, 2 * static_cast<size_t>(experts) * sizeof(int32_t), stream_,
              static_cast<const int32_t*>(rows.ids.data), static_cast<int>(rows.rows), static_cast<int>(rows.ids.cols),
              rows.per_row, first, experts, first_of_host(layer), o.table);
  if (o.store == nullptr) {
    launch_next(fetch_kernel, kFetchCtas, kFetchThreads, 0, stream_, o.table);
  } else {
    read_experts(layer);
  }
  return o.table.slot_of + first;
}

// The missing experts through the weight store.
void Backend::read_experts(int layer) {
  Offload& o = offload_;
  const int first = o.first[static_cast<size_t>(layer)];
  note(cudaMemcpyAsync(o.missing, o.table.missing, 8 * static_cast<size_t>(o.most) + 4, cudaMemcpyDeviceToHost,
                       stream_));
  note(settle());
  if (error_ != cudaSuccess) return;
  std::vector<int32_t> wanted(static_cast<size_t>(o.missing[0]));
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = o.missing[1 + 2 * i] - first;
  checkpoint::ExpertCache& cache = o.store->experts();
  cache.begin(layer, wanted);
  for (auto some = cache.next(); !some.empty(); some = cache.next()) {
    for (const checkpoint::ExpertCache::Arrived& a : some) {
      const auto at = static_cast<size_t>(std::lower_bound(wanted.begin(), wanted.end(), a.expert) - wanted.begin());
      ExpertWeights e = o.like;
      for (int i = 0; Matrix* m : {&e.gate, &e.up, &e.down}) {
        m->data = a.at.part[static_cast<size_t>(i++)];
        m->scale = a.at.part[static_cast<size_t>(i++)];
      }
      Status status =
          a.failed ? Status() : arrange_expert(e, o.table.slots + o.missing[2 + 2 * at] * o.table.slot_bytes);
      if (!status.ok() && read_error_.ok()) read_error_ = status;
      o.forget = o.forget || a.failed || !status.ok();
    }
    note(settle());  // next() takes the memory back
    if (lost()) return;
  }
}

// Rows of a table that the store has read, in device memory.
const uint8_t* Backend::read_rows(int table, int64_t count) {
  Offload& o = offload_;
  const std::byte* rows = o.store->rows().wait(table);
  note(settle());
  if (error_ != cudaSuccess) return o.rows;
  note(cudaMemcpyAsync(o.rows, rows, static_cast<size_t>(count) * o.store->rows().stride(table), cudaMemcpyHostToDevice,
                       stream_));
  note(settle());
  return o.rows;
}

Status Backend::take_row_buffer() {
  Offload& o = offload_;
  if (o.store == nullptr) return {};
  const auto rows = static_cast<size_t>(buffer(Role::kResidual).rows);
  size_t bytes = 0;
  if (const int t = o.store->embedding_table(); t >= 0) bytes = rows * o.store->rows().stride(t);
  for (size_t e = 0; e < c_.engram.size(); ++e) {
    const int t = o.store->engram_table(e);
    if (t >= 0) bytes = std::max(bytes, rows * static_cast<size_t>(c_.engram_columns()) * o.store->rows().stride(t));
  }
  return bytes == 0 ? Status() : arena_.take(bytes, reinterpret_cast<void**>(&o.rows));
}

// Asks the store for the rows that engram_lookup() has found.
void Backend::request_engram_rows(int rows) {
  Offload& o = offload_;
  if (o.store == nullptr) return;
  const auto layers = static_cast<size_t>(c_.engram.size()), columns = static_cast<size_t>(c_.engram_columns());
  std::vector<int32_t> all(static_cast<size_t>(rows) * layers * columns);
  note(settle());
  if (error_ != cudaSuccess) return;
  note(cudaMemcpyAsync(all.data(), at<int32_t>(Role::kEngramRows), all.size() * 4, cudaMemcpyDeviceToHost, stream_));
  note(settle());
  if (error_ != cudaSuccess) return;
  for (size_t e = 0; e < layers; ++e) {
    if (o.store->engram_table(e) < 0) continue;
    o.ids.clear();
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const int32_t* from = all.data() + (r * layers + e) * columns;
      o.ids.insert(o.ids.end(), from, from + columns);
    }
    o.store->rows().request(o.store->engram_table(e), o.ids);
  }
}

Status Backend::read_errors() {
  const Status read = std::exchange(read_error_, Status()), stored = offload_.store->take_error();
  return stored.ok() ? read : stored;
}

// Bytes that may still be taken: of the GPU, and of the budget if there is one.
uint64_t Backend::free_bytes() const {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  const uint64_t room = free > kReserveBytes ? free - kReserveBytes : 0;
  if (options_.memory_bytes == 0) return room;
  return std::min(room, options_.memory_bytes > arena_.bytes() ? options_.memory_bytes - arena_.bytes() : 0);
}

ExpertTraffic Backend::expert_traffic() {
  unsigned long long counts[2] = {};
  note(settle());
  if (offload_.experts && !lost())
    note(cudaMemcpyAsync(counts, offload_.table.traffic, sizeof counts, cudaMemcpyDeviceToHost, stream_));
  note(settle());
  return {counts[0], counts[1], static_cast<uint64_t>(offload_.table.slot_bytes), offload_.table.slot_count,
          offload_.host_experts};
}

}  // namespace deepinfer::ops::cuda
