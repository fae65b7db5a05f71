// What this processor can compute at most, for shares of it (model FLOPs utilisation).
//
//   const double flops = measure_peak_flops(threads);       // about 20 ms; 0 where there are no fast kernels
//
// Operations a second of bf16 pair sums whose operands stay in the first-level cache, on so many threads at once, in
// each one's CPU time: the products of the fast backend's attention, by the instruction set that it would use. A
// multiply-add counts twice.
#pragma once

namespace deepinfer::ops {

double measure_peak_flops(int threads);

}  // namespace deepinfer::ops
