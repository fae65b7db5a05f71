// Rotary position tables, bit for bit as the numeric mode `exact` defines them (spec/model.md 4.10, 6.2). Every backend
// uses these values: one ulp here changes tokens.
//
//   RopeFrequencies yarn = RopeFrequencies::make(config, true);
//   yarn.table(position, cos, sin);                  // fp32 [rope / 2] each
//
// plain: base rope_theta, for layers of ratio 0 and the drafter. compressed: base compress_rope_theta with YaRN, for
// everything that the other layers rotate.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::checkpoint {
struct ModelConfig;
}

namespace deepinfer::ops {

struct RopeFrequencies {
  static RopeFrequencies make(const checkpoint::ModelConfig& config, bool compressed);
  // cos and sin (in double, rounded to fp32) of the fp32 product position * frequency.
  void table(int64_t position, float* cos, float* sin) const;

  std::vector<float> f;  // [rope / 2]
};

}  // namespace deepinfer::ops
