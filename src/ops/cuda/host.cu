// Experts that the host computes (host.h).
#include "ops/cuda/host.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Ids from `first` on and their weights to the host, and the input of rows that have such ids. A CTA a row.
__global__ __launch_bounds__(kThreads) void hand_over_kernel(const bf16* input, const int32_t* ids,
                                                             const float* weights, int columns, int per_row, int first,
                                                             int d, uint16_t* to_input, int32_t* to_ids,
                                                             float* to_weights) {
  const int64_t row = blockIdx.x;
  bool any = false;
  for (int k = 0; k < per_row; ++k) any = any || ids[row * columns + k] >= first;
  if (threadIdx.x < columns) {
    const int64_t at = row * columns + threadIdx.x;
    const bool host = threadIdx.x < per_row && ids[at] >= first;
    to_ids[at] = host ? ids[at] : -1;
    to_weights[at] = host ? weights[at] : 0.0f;
  }
  if (any) {
    const auto* from = reinterpret_cast<const uint4*>(input + row * d);
    auto* to = reinterpret_cast<uint4*>(to_input + row * d);
    for (int i = threadIdx.x; i < d / 8; i += kThreads) to[i] = from[i];
  }
  __threadfence_system();
}

// The host's outputs into the rows' places. A CTA a row.
__global__ __launch_bounds__(kThreads) void take_back_kernel(const uint16_t* results, const int32_t* ids, int columns,
                                                             int per_row, int first, int d, bf16* output) {
  const int64_t row = blockIdx.x;
  for (int k = 0; k < per_row; ++k) {
    const int64_t at = row * columns + k;
    if (ids[at] < first) continue;
    const auto* from = reinterpret_cast<const uint4*>(results + at * d);
    auto* to = reinterpret_cast<uint4*>(output + at * d);
    for (int i = threadIdx.x; i < d / 8; i += kThreads) to[i] = __ldcv(from + i);
  }
}

void CUDART_CB compute(void* data) {
  const auto* call = static_cast<const HostWork::Call*>(data);
  call->experts->run(call->rows);
}

}  // namespace

// How many experts of each backbone layer the host computes; resident: the share of experts that fits into the GPU.
Status Backend::plan_host_experts(const ModelWeights& weights, double resident) {
  const std::shared_ptr<Ops> cpu = std::exchange(options_.host, nullptr);
  if (cpu == nullptr || options_.host_experts == 0) return {};
  Offload& o = offload_;
  const int asked = options_.host_experts, all = static_cast<int>(c_.n_routed_experts),
            per_row = static_cast<int>(c_.num_experts_per_tok);
  if (o.store != nullptr) {
    if (asked == kAutoHostExperts) return {};
    return Status(Code::kUnsupported,
                  "Experts that are read from the SSD (--ram) cannot be computed by the host as well; leave one of "
                  "--ram and --host-experts out.");
  }
  if (asked != kAutoHostExperts && (asked < 0 || asked > all)) {
    return make_error(Code::kInvalidArgument, "--host-experts is {}, and a layer of this model has {} experts.", asked,
                      all);
  }
  auto work = std::make_unique<HostWork>();
  const int64_t rows = buffer(Role::kSublayerIn).rows, columns = buffer(Role::kExpertIds).cols;
  DI_ASSIGN_OR_RETURN(work->experts, HostExperts::create(cpu, c_, weights, rows));
  work->load = {all, per_row, resident};
  work->full_step_rows = std::max(1, (limits_.rows_max * per_row + all - 1) / all);
  work->rates.link_s = static_cast<double>(o.shape.image_bytes()) / o.kernel_rate;
  work->rates.one_row_s = work->experts->measure((per_row + 2) / 3, 1);
  work->rates.full_step_s = work->experts->measure(per_row, work->full_step_rows);
  o.host_experts = asked == kAutoHostExperts ? choose_host_experts(work->load, work->rates) : asked;
  host_work_ = std::move(work);
  if (o.host_experts == 0) {  // its rates are told
    host_work_->experts.reset();
    return {};
  }
  capabilities_.numeric_class =
      host_numeric_class(capabilities_.numeric_class, o.host_experts, host_work_->experts->numeric_class());
  const auto take = [&](int64_t bytes, auto** p) {
    return o.pinned.take(static_cast<uint64_t>(bytes), reinterpret_cast<void**>(p));
  };
  DI_RETURN_IF_ERROR(take(rows * c_.hidden_size * 2, &host_work_->input));
  DI_RETURN_IF_ERROR(take(rows * columns * 4, &host_work_->ids));
  DI_RETURN_IF_ERROR(take(rows * columns * 4, &host_work_->weights));
  return take(rows * columns * c_.hidden_size * 2, &host_work_->output);
}

void Backend::start_host_experts(int layer, const ExpertRows& rows) {
  if (offload_.host_experts == 0 || is_draft(layer)) return;
  HostWork& w = *host_work_;
  const int columns = static_cast<int>(rows.ids.cols), first = first_of_host(layer),
            d = static_cast<int>(c_.hidden_size);
  const auto call = w.calls.try_emplace({layer, rows.rows, columns}, w.experts.get(),
                                        HostExpertRows{layer, rows.rows, rows.per_row, columns, w.input, w.ids,
                                                       w.weights, w.output})
                        .first;
  note(cudaEventRecord(routed_, stream_));
  note(cudaStreamWaitEvent(host_, routed_, 0));
  const auto* ids = static_cast<const int32_t*>(rows.ids.data);
  const auto ctas = static_cast<unsigned>(rows.rows);
  hand_over_kernel<<<ctas, kThreads, 0, host_>>>(static_cast<const bf16*>(rows.input.data), ids,
                                                 static_cast<const float*>(rows.weights.data), columns, rows.per_row,
                                                 first, d, w.input, w.ids, w.weights);
  note(cudaLaunchHostFunc(host_, compute, &call->second));
  take_back_kernel<<<ctas, kThreads, 0, host_>>>(w.output, ids, columns, rows.per_row, first, d,
                                                 static_cast<bf16*>(rows.output.data));
  note(cudaEventRecord(hosted_, host_));
  host_works_ = true;
}

std::string Backend::placement() const {
  const Offload& o = offload_;
  if (!o.experts) return {};
  const int computed = o.host_experts * static_cast<int>(c_.num_hidden_layers);
  std::string text = fmt::format("{} of {} routed experts fit into GPU memory; the others ",
                                 std::min(o.table.slot_count, o.table.experts - computed), o.table.experts);
  if (o.store != nullptr) return text + "are read from host memory and SSD through the host.";
  text += fmt::format(
      "lie in host memory. A kernel reads those of a step over the link, at {:.1f} GB/s where the copy engine has "
      "{:.1f}.",
      o.kernel_rate / 1e9, o.copy_rate / 1e9);
  if (host_work_ == nullptr) return text;
  const HostExpertRates& r = host_work_->rates;
  text += fmt::format(
      " The host computes {} of the {} of a layer: {:.3f} ms an expert of one row, {:.3f} ms of {} rows (a full step); "
      "over the link {:.3f} ms.",
      o.host_experts == 0 ? std::string("none") : std::to_string(o.host_experts), host_work_->load.experts,
      1e3 * r.one_row_s, 1e3 * r.full_step_s, host_work_->full_step_rows, 1e3 * r.link_s);
  return text;
}

}  // namespace deepinfer::ops::cuda
