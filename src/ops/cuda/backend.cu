// Memory, row sets and graphs of the CUDA backend.
#include "ops/cuda/backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checkpoint/store/weight_store.h"
#include "numeric/formats.h"
#include "ops/cuda/refusals.h"

namespace deepinfer::ops::cuda {

size_t element_bytes(Element e) {
  switch (e) {
    case Element::kFloat: return 4;
    case Element::kDouble: return 8;
    case Element::kBf16: return 2;
    case Element::kInt32: return 4;
    case Element::kByte: return 1;
  }
  return 1;
}

Status cuda_error(std::string_view what, cudaError_t e) {
  return make_error(e == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kUnavailable,
                    "The GPU could not {}: {}.", what, cudaGetErrorString(e));
}

namespace {

// Why CUDA counts no device.
Status no_device(cudaError_t e) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0 && e == cudaErrorInsufficientDriver)
    return make_error(Code::kNotFound,
                      "This machine has no NVIDIA driver; install one for the GPU, or use the CPU (--device cpu).");
  if (e == cudaErrorNoDevice)
    return make_error(Code::kNotFound, "This machine has no NVIDIA GPU that CUDA can see; use the CPU (--device cpu).");
  if (e == cudaErrorInsufficientDriver) {
    return make_error(Code::kUnavailable,
                      "The NVIDIA driver is too old: it runs programs of CUDA {}.{}, and this one needs {}.{}. Update "
                      "the driver, or use the CPU (--device cpu).",
                      driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  return make_error(Code::kUnavailable, "The NVIDIA driver does not answer ({}); use the CPU (--device cpu).",
                    cudaGetErrorString(e));
}

// The driver's own end of the program would wait for the GPU. This runs before it, being registered last.
void leave_when_the_program_ends() {
  [[maybe_unused]] static const int once = ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

}  // namespace

Arena::~Arena() {
  for (void* p : blocks_) cudaFree(p);
}

Status Arena::take(size_t bytes, void** p) {
  bytes = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  if (const cudaError_t e = cudaMalloc(p, bytes); e != cudaSuccess) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    if (e != cudaErrorMemoryAllocation) return cuda_error("allocate memory", e);
    return too_little_memory(free, total, bytes);
  }
  blocks_.push_back(*p);
  bytes_ += bytes;
  const cudaError_t e = cudaMemset(*p, 0, bytes);
  return e == cudaSuccess ? Status() : cuda_error("clear memory", e);
}

Result<std::unique_ptr<Backend>> Backend::create(int device, const Options& options) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) return no_device(e);
  DI_RETURN_IF_ERROR(check_number(device, count));
  cudaDeviceProp properties{};
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, device); e != cudaSuccess)
    return cuda_error("be asked for its properties", e);
  DI_RETURN_IF_ERROR(check_architecture(device, properties.name, properties.major, properties.minor));
  std::unique_ptr<Backend> b(new Backend(options));
  b->device_ = device;
  b->multiprocessors_ = properties.multiProcessorCount;
  b->capabilities_ = {.backend = "cuda",
                      .numeric_class = "cuda-sm90-4",
                      .kv_format = {},
                      .row_invariant = true,
                      .graphs = true,
                      .offload = true};
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess) return cuda_error("be selected", e);
  for (cudaStream_t* s : {&b->stream_, &b->side_, &b->host_}) {
    if (const cudaError_t e = cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); e != cudaSuccess)
      return cuda_error("create a stream", e);
  }
  for (cudaEvent_t* s : {&b->forked_, &b->joined_, &b->paced_, &b->routed_, &b->hosted_}) {
    if (const cudaError_t e = cudaEventCreateWithFlags(s, cudaEventDisableTiming); e != cudaSuccess)
      return cuda_error("create an event", e);
  }
  return Result<std::unique_ptr<Backend>>(std::move(b));
}

Backend::~Backend() {
  if (stream_ != nullptr) settle();
  if (lost()) {  // to free anything would mean to wait; the driver takes it back when the process ends
    arena_.abandon();
    offload_.pinned.abandon();
    [[maybe_unused]] const auto* kept = host_work_.release();  // the GPU may still call it
    return;
  }
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  for (RowSet& s : sets_) {
    if (s.copied != nullptr) cudaEventDestroy(s.copied);
    if (s.staging != nullptr) cudaFreeHost(s.staging);
  }
  for (cudaEvent_t e : {forked_, joined_, paced_, routed_, hosted_}) {
    if (e != nullptr) cudaEventDestroy(e);
  }
  for (cudaStream_t s : {stream_, side_, host_}) {
    if (s != nullptr) cudaStreamDestroy(s);
  }
}

void Backend::fork() {
  note(cudaEventRecord(forked_, stream_));
  note(cudaStreamWaitEvent(side_, forked_, 0));
}

void Backend::side_ends() {
  note(cudaEventRecord(joined_, side_));
  side_busy_ = true;
}

void Backend::join() {
  if (side_busy_) note(cudaStreamWaitEvent(stream_, joined_, 0));
  side_busy_ = route_forked_ = shared_done_ = false;
  if (host_works_) note(cudaStreamWaitEvent(stream_, hosted_, 0));
  host_works_ = false;
}

void Backend::note(cudaError_t e) {
  if (e != cudaSuccess && error_ == cudaSuccess) error_ = e;
}

cudaError_t Backend::settle() {
  note(cudaGetLastError());  // queries leave their "not ready" there
  cudaError_t e = cudaSuccess;
  for (cudaStream_t s : {stream_, side_, host_}) {
    if (e != cudaSuccess) break;
    if (watchdog_.wait([&] { return (e = cudaStreamQuery(s)) == cudaErrorNotReady; })) continue;
    leave_when_the_program_ends();
    e = cudaErrorLaunchTimeout;
  }
  cudaGetLastError();
  return e;
}

bool Backend::await(cudaEvent_t event) {
  note(cudaGetLastError());
  const bool done = watchdog_.wait([&] { return cudaEventQuery(event) == cudaErrorNotReady; });
  cudaGetLastError();
  return done;
}

void Backend::keep_pace(int layer) {
  if (recording_ || layer % kPaceLayers != 0) return;
  if (!await(paced_)) {
    for (RowSet& s : sets_) s.rows = s.sequences = s.outputs = 0;  // stages of no rows do nothing
    return;
  }
  note(cudaEventRecord(paced_, stream_));
}

int Backend::experts_per_row(int layer) const {
  return static_cast<int>(is_draft(layer) ? c_.dspark_num_experts_per_tok : c_.num_experts_per_tok);
}

std::array<Buffer, kRoles> Backend::plan_buffers(const checkpoint::ModelConfig& c, const Limits& limits) const {
  const int64_t drafts = limits.drafts_max > 0 ? limits.drafts_max : c.dspark_block_size;
  const int64_t draft_rows = c.has_drafter() ? limits.sequences_max * drafts : 0;
  const int64_t rows = std::max<int64_t>(limits.rows_max, draft_rows);
  const int64_t outputs = std::max(limits.outputs_max, limits.sequences_max);
  const int64_t d = c.hidden_size, hd = c.head_dim, heads = c.num_attention_heads * hd, streams = c.hc_mult;
  const int64_t k = std::max(c.num_experts_per_tok, c.has_drafter() ? c.dspark_num_experts_per_tok : 0);
  const KvLayout layout = KvLayout::make(c, KvFormat{});
  std::array<Buffer, kRoles> b{};
  const auto set = [&b](Role role, Element e, int64_t n, int64_t cols) {
    b[static_cast<int>(role)] = {nullptr, e, n, cols};
  };
  set(Role::kResidual, Element::kBf16, rows, streams * d);
  set(Role::kPre, Element::kFloat, rows, streams);
  set(Role::kPost, Element::kFloat, rows, streams);
  set(Role::kComb, Element::kFloat, rows, streams * streams);
  set(Role::kSublayerIn, Element::kBf16, rows, d);
  set(Role::kSublayerOut, Element::kBf16, rows, d);
  set(Role::kQueryLow, Element::kBf16, rows, c.q_lora_rank);
  set(Role::kQuery, Element::kBf16, rows, heads);
  set(Role::kWindowRecords, Element::kByte, rows, static_cast<int64_t>(layout.window_bytes));
  set(Role::kIndexQuery, Element::kBf16, rows, c.index_n_heads * c.index_head_dim);
  set(Role::kIndexWeights, Element::kBf16, rows, c.index_n_heads);
  set(Role::kCompressorRows, Element::kFloat, rows, 2 * hd);
  set(Role::kLatent, Element::kBf16, rows, hd);
  set(Role::kIndexScores, Element::kFloat, limits.keep_scores ? rows : 0, limits.context_max);
  set(Role::kCandidates, Element::kInt32, rows, c.candidate_topk_blocks);
  set(Role::kSelected, Element::kInt32, rows, c.index_topk);
  set(Role::kHeads, Element::kBf16, rows, heads);
  set(Role::kExpertIds, Element::kInt32, rows, k);
  set(Role::kExpertWeights, Element::kFloat, rows, k);
  set(Role::kExpertOut, Element::kBf16, rows, k * d);
  set(Role::kSharedOut, Element::kBf16, rows, d);
  set(Role::kTaps, Element::kBf16, rows, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d);
  set(Role::kEngramRows, Element::kInt32, rows, static_cast<int64_t>(c.engram.size()) * c.engram_columns());
  set(Role::kEngramGate, Element::kFloat, rows, streams);
  set(Role::kImageRows, Element::kBf16, limits.image_rows_max, d);
  set(Role::kFinalHidden, Element::kBf16, outputs, d);
  set(Role::kLogits, Element::kFloat, outputs, c.vocab_size);
  set(Role::kDraftHidden, Element::kBf16, draft_rows, d);
  set(Role::kDraftBase, Element::kFloat, draft_rows, c.vocab_size);
  set(Role::kDraftTokens, Element::kInt32, limits.sequences_max, drafts + 1);
  set(Role::kConfidence, Element::kFloat, limits.sequences_max, drafts);
  set(Role::kFeedback, Element::kInt32, limits.feedback_max, 1);
  return b;
}

uint64_t Backend::workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const {
  uint64_t sum = 0;
  for (const Buffer& b : plan_buffers(config, limits)) sum += b.rows * b.cols * element_bytes(b.element);
  return sum;
}

Result<KvMemory> Backend::allocate_kv(const KvLayout& layout, int pages, int slots) {
  layout_ = layout;
  std::byte* p = nullptr;
  DI_RETURN_IF_ERROR(
      arena_.take(layout.page_stride * pages + layout.slot_stride * slots, reinterpret_cast<void**>(&p)));
  kv_ = {p, pages, p + layout.page_stride * pages, slots};
  DI_RETURN_IF_ERROR(take_slots());
  return kv_;
}

void Backend::kv_copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (lost()) return;
  note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
}

// A copy from or to memory that is not pinned waits for the stream itself, so that it comes behind our own wait.
Status Backend::kv_read(const std::byte* from, std::span<std::byte> to) {
  DI_RETURN_IF_ERROR(synchronize());
  note(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDefault, stream_));
  return synchronize();
}

Status Backend::kv_write(std::byte* to, std::span<const std::byte> from) {
  DI_RETURN_IF_ERROR(synchronize());
  note(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, stream_));
  return synchronize();
}

Status Backend::read(Role role, int64_t first_row, int64_t rows, std::span<double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values",
                      first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  DI_RETURN_IF_ERROR(synchronize());
  const size_t size = element_bytes(b.element);
  std::vector<uint8_t> raw(values.size() * size);
  note(cudaMemcpyAsync(raw.data(), static_cast<const uint8_t*>(b.data) + first_row * b.cols * size, raw.size(),
                       cudaMemcpyDeviceToHost, stream_));
  DI_RETURN_IF_ERROR(synchronize());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* p = raw.data() + i * size;
    switch (b.element) {
      case Element::kFloat: values[i] = *reinterpret_cast<const float*>(p); break;
      case Element::kDouble: values[i] = *reinterpret_cast<const double*>(p); break;
      case Element::kBf16: values[i] = numeric::bf16_to_float(*reinterpret_cast<const uint16_t*>(p)); break;
      case Element::kInt32: values[i] = *reinterpret_cast<const int32_t*>(p); break;
      case Element::kByte: values[i] = *p; break;
    }
  }
  return {};
}

Status Backend::write(Role role, int64_t first_row, int64_t rows, std::span<const double> values) {
  const Buffer b = buffer(role);
  if (first_row < 0 || first_row + rows > b.rows || static_cast<int64_t>(values.size()) != rows * b.cols) {
    return make_error(Code::kInvalidArgument, "rows {}..{} of buffer {} do not exist or do not fit {} values",
                      first_row, first_row + rows, static_cast<int>(role), values.size());
  }
  DI_RETURN_IF_ERROR(synchronize());
  if (role == Role::kSublayerIn) packed_in_ = {};
  const size_t size = element_bytes(b.element);
  std::vector<uint8_t> raw(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* p = raw.data() + i * size;
    switch (b.element) {
      case Element::kFloat: *reinterpret_cast<float*>(p) = static_cast<float>(values[i]); break;
      case Element::kDouble: *reinterpret_cast<double*>(p) = values[i]; break;
      case Element::kBf16: *reinterpret_cast<uint16_t*>(p) = numeric::double_to_bf16(values[i]); break;
      case Element::kInt32: *reinterpret_cast<int32_t*>(p) = static_cast<int32_t>(values[i]); break;
      case Element::kByte: *p = static_cast<uint8_t>(values[i]); break;
    }
  }
  note(cudaMemcpyAsync(static_cast<uint8_t*>(b.data) + first_row * b.cols * size, raw.data(), raw.size(),
                       cudaMemcpyHostToDevice, stream_));
  return synchronize();
}

Status Backend::begin(Rows which, const RowBatch& batch) {
  const int64_t rows_max = buffers_[static_cast<int>(Role::kResidual)].rows;
  if (batch.rows > rows_max || static_cast<int>(batch.sequences.size()) > limits_.sequences_max ||
      static_cast<int>(batch.blocks.size()) > limits_.blocks_max ||
      static_cast<int64_t>(batch.outputs.size()) > buffers_[static_cast<int>(Role::kLogits)].rows) {
    return make_error(
        Code::kInvalidArgument,
        "a step of {} rows, {} sequences, {} pages and {} outputs is over the limits of {}, {}, {} and {}", batch.rows,
        batch.sequences.size(), batch.blocks.size(), batch.outputs.size(), limits_.rows_max, limits_.sequences_max,
        limits_.blocks_max, limits_.outputs_max);
  }
  DI_RETURN_IF_ERROR(
      check_tokens(batch.tokens, batch.history, c_.vocab_size, offload_.store == nullptr ? limits_.feedback_max : 0));
  if (lost()) return synchronize();
  if (offload_.forget) DI_RETURN_IF_ERROR(forget_slots());
  if (checkpoint::WeightStore* store = offload_.store.get();
      store != nullptr && store->embedding_table() >= 0 && which != Rows::kDecoder) {
    store->rows().request(store->embedding_table(), batch.tokens);
  }
  RowSet& s = sets_[static_cast<int>(which)];
  // The copy before has left the staging buffer.
  if (!await(s.copied)) return synchronize();
  s.rows = batch.rows;
  s.sequences = static_cast<int>(batch.sequences.size());
  s.outputs = static_cast<int>(batch.outputs.size());
  // Places depend on the limits alone, so that recorded graphs stay valid.
  size_t at = 0;
  const auto place = [&](size_t capacity, size_t count, const void* from) {
    uint8_t* device = s.device + at;
    if (count > 0 && from != nullptr) std::memcpy(s.staging + at, from, count);
    at += (capacity + 255) / 256 * 256;
    return device;
  };
  const auto ints = [&](size_t capacity, std::span<const int32_t> v) {
    return reinterpret_cast<const int32_t*>(place(capacity * 4, v.size() * 4, v.data()));
  };
  const auto rows = static_cast<size_t>(rows_max);
  const int32_t counts[2] = {s.sequences, s.outputs};
  s.view.counts = ints(2, counts);
  s.view.sequences = reinterpret_cast<const SequenceRows*>(
      place(limits_.sequences_max * sizeof(SequenceRows), batch.sequences.size_bytes(), batch.sequences.data()));
  s.view.blocks = ints(limits_.blocks_max, batch.blocks);
  s.view.tokens = ints(rows, batch.tokens);
  s.view.positions = ints(rows, batch.positions);
  s.view.sequence = ints(rows, batch.sequence);
  if (batch.image_row.empty()) std::memset(s.staging + at, 0xff, static_cast<size_t>(batch.rows) * 4);
  s.view.image_row = ints(rows, batch.image_row);
  s.view.source = ints(rows, batch.source);
  s.view.outputs = ints(buffers_[static_cast<int>(Role::kLogits)].rows, batch.outputs);
  s.view.history = ints(limits_.sequences_max * c_.engram_max_ngram_size, batch.history);
  s.view.feedback = this->at<int32_t>(Role::kFeedback);
  const size_t table = rows * half() * 4;
  std::array<float*, 6> host{};
  std::array<const float*, 6> device{};
  for (int i = 0; i < 6; ++i) {
    host[i] = reinterpret_cast<float*>(s.staging + at);
    device[i] = reinterpret_cast<const float*>(place(table, 0, nullptr));
  }
  for (int i = 0; i < batch.rows; ++i) {
    const int64_t p = batch.positions[i];
    rope_[0].table(p, host[0] + i * half(), host[1] + i * half());
    rope_[1].table(p, host[2] + i * half(), host[3] + i * half());
    rope_[1].table(std::max<int64_t>(p - 1, 0), host[4] + i * half(), host[5] + i * half());
  }
  s.view.cos[0] = device[0], s.view.sin[0] = device[1], s.view.cos[1] = device[2], s.view.sin[1] = device[3],
  s.view.entry_cos = device[4], s.view.entry_sin = device[5];
  note(cudaMemcpyAsync(s.device, s.staging, at, cudaMemcpyHostToDevice, stream_));
  note(cudaEventRecord(s.copied, stream_));
  return {};
}

void Backend::run(const GraphKey& key, const std::function<void()>& stages) {
  if (lost()) return;
  join();  // events of one recording mean nothing in another
  if (key.rows == 0 || offload_.store != nullptr) return stages();  // the store needs the host between stages
  auto [entry, fresh] = graphs_.try_emplace({key.kind, key.rows}, nullptr);
  if (fresh) {
    cudaGraph_t graph = nullptr;
    note(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    recording_ = true;
    stages();
    join();
    recording_ = false;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (ended != cudaSuccess || cudaGraphInstantiate(&entry->second, graph, 0) != cudaSuccess) {
      note(ended != cudaSuccess ? ended : cudaGetLastError());
      graphs_.erase(entry);
      return;
    }
    cudaGraphDestroy(graph);
  }
  note(cudaGraphLaunch(entry->second, stream_));
}

Status Backend::synchronize() {
  join();
  cudaError_t e = settle();
  if (error_ != cudaSuccess) e = error_;
  error_ = cudaSuccess;
  if (lost()) {
    return make_error(Code::kUnavailable,
                      "The GPU has not ended a step within {:.4g} s and is taken for lost. Start the program again, on "
                      "the CPU (--device cpu) if the GPU stays away.",
                      watchdog_.limit_s());
  }
  if (e == cudaSuccess && offload_.host_experts > 0) return host_work_->experts->take_error();
  if (e == cudaSuccess) return offload_.store != nullptr ? read_errors() : Status();
  return make_error(Code::kUnavailable,
                    "The GPU failed in the middle of a step ({}). Start the program again, on the CPU (--device cpu) "
                    "if the GPU stays away.",
                    cudaGetErrorString(e));
}

void Backend::project(const LinearWeights& w, const bf16* x, int64_t x_stride, int rows, const LinearOutput& y) {
  if (rows == 0) return;
  // Columns beyond the model's K are zero in the weights; the input has x_stride of them at least as far as K goes.
  pack_activations(x, rows, static_cast<int>(std::min<int64_t>(w.k, x_stride)), packing_of(w.format, rows), nullptr,
                   packed_, stream_, x_stride);
  linear(w, packed_, rows, y, stream_);
}

void Backend::project_in(const LinearWeights& w, int rows, const LinearOutput& y) {
  const bool fp8 = w.format == WeightFormat::kFp8;
  if (is_packed_in(w.format, rows)) return linear(w, fp8 ? in_fp8_ : in_bf16_, rows, y, stream_);
  project(w, at<bf16>(Role::kSublayerIn), c_.hidden_size, rows, y);
}

}  // namespace deepinfer::ops::cuda
