// Engram's gated addition to one row (spec/model.md 10.4).
#include <cmath>

#include "ops/cpu/fast/backend.h"

namespace deepinfer::ops::cpu::fast {

void FastBackend::add_engram(int layer, bool image, const float* kv, float* streams, float* gates) const {
  add_engram_streams(layer, image, kv, streams, gates, 0, c_.hc_mult);
}

void FastBackend::add_engram_streams(int layer, bool image, const float* kv, float* streams, float* gates,
                                     int64_t begin, int64_t end) const {
  const int64_t D = c_.hidden_size, C = c_.hc_mult;
  const double *qk = vectors_[layer].engram_qk.data(), width = static_cast<double>(D), eps = c_.rms_norm_eps;
  for (int64_t s = begin; s < end; ++s) {
    float* x = streams + s * D;
    double sums[3];
    k_.engram_sums(x, kv + s * D, qk + s * D, D, sums);
    double dot = sums[0];
    dot *= 1 / std::sqrt(sums[1] / width + eps);
    dot *= 1 / std::sqrt(sums[2] / width + eps);
    gates[s] = image ? 0.0f : static_cast<float>(engram_gate(dot / std::sqrt(width)));
    k_.add_gated(x, kv + C * D, gates[s], D);
  }
}

}  // namespace deepinfer::ops::cpu::fast
