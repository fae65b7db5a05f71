// Routed experts that the host computes for a device whose memory does not hold all of them (docs/cuda.md): which ones,
// and the work itself, by a CPU backend.
//
//   DI_ASSIGN_OR_RETURN(auto host, HostExperts::create(make_cpu_ops(14), config, weights, rows_max));
//   const int count = choose_host_experts(load, {link_s, host->measure(2, 1), host->measure(6, 4)});
//   host->run({.layer = 3, .rows = n, .per_row = 6, .columns = 6, .input = x, .ids = ids, .weights = w, .output = y});
//
// Sums on the host have another tree than those on the device. So where an expert is computed never depends on what a
// cache holds: the last `count` expert numbers of every backbone layer belong to the host, whatever is chosen how
// often, in decode and in prefill. The drafter's experts belong to the device. host_numeric_class() puts the number
// and the host's trees into the backend's numeric class.
//
// Errors. run() throws nothing; a step for which memory was missing is told by take_error(). One thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"
#include "ops/ops.h"

namespace deepinfer::ops {

// Stands for a number of experts that is chosen from measured rates.
inline constexpr int kAutoHostExperts = -1;

// Rows of a layer as the device hands them over. Activations are bf16 words.
struct HostExpertRows {
  int layer = 0;
  int64_t rows = 0;
  int per_row = 0;
  int64_t columns = 0;              // of ids, weights and output; the first per_row are looked at
  const uint16_t* input = nullptr;  // [rows, D]; rows without an expert of the host are not read
  const int32_t* ids = nullptr;     // [rows, columns]; -1: not the host's
  const float* weights = nullptr;   // [rows, columns]
  uint16_t* output = nullptr;       // [rows, columns, D]; only the host's are written
};

class HostExperts {
 public:
  // cpu: a backend in host memory that keeps routing weights in float; it is loaded here. Its threads do the work,
  // together with the one that calls run(). rows_max: of a step.
  static Result<std::unique_ptr<HostExperts>> create(std::shared_ptr<Ops> cpu, const checkpoint::ModelConfig& config,
                                                     const ModelWeights& weights, int64_t rows_max);

  void run(const HostExpertRows& rows) noexcept;
  Status take_error();
  // Seconds an expert, when each of `experts` experts of a layer gets `rows` rows; a median over experts that no
  // cache holds.
  double measure(int experts, int rows);
  const std::string& numeric_class() const { return cpu_->capabilities().numeric_class; }

 private:
  HostExperts(std::shared_ptr<Ops> cpu, const checkpoint::ModelConfig& config);
  ExpertRows part(int64_t rows, int per_row) const;

  std::shared_ptr<Ops> cpu_;
  int64_t layers_, experts_, hidden_, rows_max_ = 0;
  std::vector<int64_t> picked_;  // rows of the call in work
  std::atomic<bool> failed_{false};
};

// What choose_host_experts() weighs.
struct HostExpertLoad {
  int experts = 0;       // of a layer
  int per_row = 0;       // that a row chooses
  double resident = 0;   // share of the experts that lie in device memory
};
// Seconds an expert: over the link to the device; on the host with one row each, and with as many as a full step has.
struct HostExpertRates {
  double link_s = 0, one_row_s = 0, full_step_s = 0;
};

// Expected seconds of a layer's experts in a decode step of one row, when the host has `count` of them. Both sides work
// at a time, so the step waits for the slower one; choices are independent and all experts alike, but the device's
// cache misses only `missed` of what it would then miss: text prefers some experts, and those stay.
double expected_decode_s(const HostExpertLoad& load, const HostExpertRates& rates, int count, double missed);

// Experts of each layer that the host had best compute, whatever the text: its own set cannot follow the text, while
// the cache does. Of all numbers with which the host is not slower in a full step than the link beside it (a prompt is
// read in full steps, and all experts are chosen), that of the largest sure gain in decode, the lesser of those with
// all misses and with half of them. 0 where that is less than a twentieth.
int choose_host_experts(const HostExpertLoad& load, const HostExpertRates& rates);

// "cuda-sm90-4", 64, "fast-bf16-pairs-2" -> "cuda-sm90-4+64-fast-bf16-pairs-2"; the device's own for 0.
std::string host_numeric_class(const std::string& device, int count, const std::string& host);

}  // namespace deepinfer::ops
