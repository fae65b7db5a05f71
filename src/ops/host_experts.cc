#include "ops/host_experts.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

namespace deepinfer::ops {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // bounds the CPU backend's work memory; more rows run one part after the other
constexpr double kLeastGain = 1.05;
constexpr int kMeasured = 9;

float number(uint16_t word) { return std::bit_cast<float>(uint32_t{word} << 16); }
uint16_t word(float bf16) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(bf16) >> 16); }

double binomial(int n, int k, double p) {
  if (p <= 0) return k == 0 ? 1 : 0;
  if (p >= 1) return k == n ? 1 : 0;
  return std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) + k * std::log(p) +
                  (n - k) * std::log1p(-p));
}

}  // namespace

HostExperts::HostExperts(std::shared_ptr<Ops> cpu, const checkpoint::ModelConfig& config)
    : cpu_(std::move(cpu)),
      layers_(config.num_hidden_layers),
      experts_(config.n_routed_experts),
      hidden_(config.hidden_size) {}

Result<std::unique_ptr<HostExperts>> HostExperts::create(std::shared_ptr<Ops> cpu,
                                                         const checkpoint::ModelConfig& config,
                                                         const ModelWeights& weights, int64_t rows_max) {
  std::unique_ptr<HostExperts> self(new HostExperts(std::move(cpu), config));
  Limits limits;
  limits.rows_max = static_cast<int>(std::clamp<int64_t>(rows_max, 1, kRowsAtOnce));
  limits.outputs_max = 1;
  limits.drafts_max = 1;
  limits.context_max = kPageTokens;
  DI_RETURN_IF_ERROR(self->cpu_->load(config, weights, limits));
  const Ops& ops = *self->cpu_;
  if (!ops.capabilities().host_memory || ops.buffer(Role::kExpertWeights).element != Element::kFloat ||
      ops.buffer(Role::kSublayerIn).element != Element::kFloat) {
    return make_error(Code::kUnsupported, "Backend {} cannot compute experts for a GPU; use fast or plain.",
                      ops.capabilities().backend);
  }
  self->rows_max_ = ops.buffer(Role::kSublayerIn).rows;
  self->picked_.resize(static_cast<size_t>(self->rows_max_));
  return self;
}

ExpertRows HostExperts::part(int64_t rows, int per_row) const {
  return {rows,
          per_row,
          cpu_->buffer(Role::kSublayerIn),
          cpu_->buffer(Role::kExpertIds),
          cpu_->buffer(Role::kExpertWeights),
          cpu_->buffer(Role::kExpertOut)};
}

void HostExperts::run(const HostExpertRows& r) noexcept try {
  for (int64_t row = 0; row < r.rows;) {
    int64_t n = 0;
    ExpertRows some = part(0, r.per_row);
    const int64_t columns = some.ids.cols;
    for (; row < r.rows && n < rows_max_; ++row) {
      const int32_t* ids = r.ids + row * r.columns;
      if (std::all_of(ids, ids + r.per_row, [](int32_t e) { return e < 0; })) continue;
      std::copy_n(ids, r.per_row, static_cast<int32_t*>(some.ids.data) + n * columns);
      std::copy_n(r.weights + row * r.columns, r.per_row, static_cast<float*>(some.weights.data) + n * columns);
      std::transform(r.input + row * hidden_, r.input + (row + 1) * hidden_,
                     static_cast<float*>(some.input.data) + n * hidden_, number);
      picked_[static_cast<size_t>(n++)] = row;
    }
    if (n == 0) return;
    some.rows = n;
    cpu_->experts({r.layer}, some);
    for (int64_t i = 0; i < n; ++i) {
      for (int k = 0; k < r.per_row; ++k) {
        if (static_cast<const int32_t*>(some.ids.data)[i * columns + k] < 0) continue;
        const float* from = static_cast<const float*>(some.output.data) + (i * columns + k) * hidden_;
        const int64_t to = picked_[static_cast<size_t>(i)] * r.columns + k;
        std::transform(from, from + hidden_, r.output + to * hidden_, word);
      }
    }
  }
} catch (...) {
  failed_ = true;
}

Status HostExperts::take_error() {
  if (!failed_.exchange(false)) return {};
  return make_error(Code::kResourceExhausted,
                    "The host had no memory to compute its experts of a step (--host-experts); let it compute fewer.");
}

double HostExperts::measure(int experts, int rows) {
  ExpertRows some = part(std::min<int64_t>(rows, rows_max_), 0);
  experts = static_cast<int>(std::min({int64_t{experts}, some.ids.cols, experts_}));
  some.per_row = experts;
  auto* input = static_cast<float*>(some.input.data);
  for (int64_t i = 0; i < some.rows * hidden_; ++i) input[i] = static_cast<float>(i % 7 - 3) / 4;
  std::fill_n(static_cast<float*>(some.weights.data), some.rows * some.ids.cols, 1.0f);
  std::vector<double> seconds;
  for (int i = 0; i < 2 * kMeasured; ++i) {  // the first time an expert may come from the disk
    const int64_t turn = i % kMeasured, first = experts_ - experts - turn / layers_ * experts;
    for (int64_t at = 0; at < some.rows * some.ids.cols; ++at) {
      static_cast<int32_t*>(some.ids.data)[at] =
          static_cast<int32_t>(std::max<int64_t>(first, 0) + at % some.ids.cols % experts);
    }
    const auto begin = std::chrono::steady_clock::now();
    cpu_->experts({static_cast<int>(turn % layers_)}, some);
    if (i >= kMeasured) {
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / experts);
    }
  }
  std::ranges::nth_element(seconds, seconds.begin() + kMeasured / 2);
  return seconds[kMeasured / 2];
}

double expected_decode_s(const HostExpertLoad& load, const HostExpertRates& rates, int count, double missed) {
  const double host = static_cast<double>(count) / load.experts,
               missing = missed * std::max(0.0, 1 - host - load.resident);
  double sum = 0;
  for (int h = 0; h <= load.per_row; ++h) {
    const double p = binomial(load.per_row, h, host);
    for (int m = 0; m <= load.per_row - h; ++m) {
      const double q = host < 1 ? binomial(load.per_row - h, m, missing / (1 - host)) : (m == 0 ? 1 : 0);
      sum += p * q * std::max(h * rates.one_row_s, m * rates.link_s);
    }
  }
  return sum;
}

int choose_host_experts(const HostExpertLoad& load, const HostExpertRates& rates) {
  if (load.experts < 1 || load.resident >= 1) return 0;
  const auto gain = [&](int n) {
    double least = std::numeric_limits<double>::infinity();
    for (const double missed : {1.0, 0.5}) {
      const double with = expected_decode_s(load, rates, n, missed);
      least = std::min(least, with > 0 ? expected_decode_s(load, rates, 0, missed) / with : 0);
    }
    return least;
  };
  const double absent = load.experts * (1 - load.resident);
  int best = 0;
  double most = kLeastGain;
  for (int n = 1; n <= absent && n * rates.full_step_s <= (absent - n) * rates.link_s; ++n) {
    if (const double g = gain(n); g > most) best = n, most = g;
  }
  return best;
}

std::string host_numeric_class(const std::string& device, int count, const std::string& host) {
  return count > 0 ? fmt::format("{}+{}-{}", device, count, host) : device;
}

}  // namespace deepinfer::ops
