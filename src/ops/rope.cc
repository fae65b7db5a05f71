#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "checkpoint/config.h"

namespace deepinfer::ops {

RopeFrequencies RopeFrequencies::make(const checkpoint::ModelConfig& c, bool compressed) {
  const int r = static_cast<int>(c.qk_rope_head_dim);
  const double base = compressed ? c.compress_rope_theta : c.rope_theta;
  RopeFrequencies out;
  out.f.resize(r / 2);
  for (int j = 0; j < r / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(r);
    out.f[j] = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  if (!compressed) return out;

  const checkpoint::RopeScaling& y = c.rope_scaling;
  const auto turn = [&](double n) {
    return r * std::log(static_cast<double>(y.original_max_position_embeddings) / (2 * std::numbers::pi * n)) /
           (2 * std::log(base));
  };
  const double low = std::max(std::floor(turn(y.beta_fast)), 0.0);
  const double high = std::min(std::ceil(turn(y.beta_slow)), static_cast<double>(r - 1));
  const float span = static_cast<float>(std::max(high - low, 1e-3));
  const float factor = static_cast<float>(y.factor);
  for (int j = 0; j < r / 2; ++j) {
    const float ramp = std::clamp((static_cast<float>(j) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    const float slow = (out.f[j] / factor) * ramp;
    const float fast = out.f[j] * (1.0f - ramp);
    out.f[j] = slow + fast;
  }
  return out;
}

void RopeFrequencies::table(int64_t position, float* cos, float* sin) const {
  for (size_t j = 0; j < f.size(); ++j) {
    const float angle = static_cast<float>(position) * f[j];
    cos[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
    sin[j] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

}  // namespace deepinfer::ops
