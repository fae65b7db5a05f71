// The CPU backends, by name.
//
//   std::unique_ptr<Ops> ops = make_reference_ops(ReferenceMode::kExact, available_cores());
//
// reference  double sums between the rounding points of spec/model.md 4.10: the oracle of every other backend.
//            Mode `off` rounds and quantises nothing (dequantised weights, raw fp32 KV records).
// plain      the same stages with fp32 sums; summation trees in ops/cpu/ORDER.md.
// Both give equal bits on any number of threads and whatever else is in a batch.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/ops.h"

namespace deepinfer::ops {

enum class ReferenceMode : uint8_t { kExact, kOff };

std::unique_ptr<Ops> make_reference_ops(ReferenceMode mode, int threads);
std::unique_ptr<Ops> make_plain_ops(int threads);

}  // namespace deepinfer::ops
