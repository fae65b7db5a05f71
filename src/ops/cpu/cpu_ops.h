// The CPU backends, by name.
//
//   std::unique_ptr<Ops> ops = make_reference_ops(ReferenceMode::kExact, available_cores());
//
// reference  double sums between the rounding points of spec/model.md 4.10: the oracle of every other backend.
//            Mode `off` rounds and quantises nothing (dequantised weights, raw fp32 KV records).
// plain      the same stages with fp32 sums; summation trees in ops/cpu/ORDER.md.
// fast       fp32 sums of bf16 pairs by hand-written kernels, FP4, FP8 and BF16 weights read as stored; the default. It
//            needs
//            AVX2 and FMA; AVX-512 with VBMI and BF16 makes it several times faster and gives the same bits.
// All give equal bits on any number of threads and whatever else is in a batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/ops.h"

namespace deepinfer::ops {

enum class ReferenceMode : uint8_t { kExact, kOff };

std::unique_ptr<Ops> make_reference_ops(ReferenceMode mode, int threads);
std::unique_ptr<Ops> make_plain_ops(int threads);
// isa: "amx", "avx512", "avx2", or "" for the best of this processor. Null if the processor lacks it.
// pin: each thread but the caller's stays on a core of its own.
std::unique_ptr<Ops> make_fast_ops(int threads, const std::string& isa = "", bool pin = false);
// fast where the processor has it, else plain.
std::unique_ptr<Ops> make_cpu_ops(int threads, bool pin = false);

}  // namespace deepinfer::ops
