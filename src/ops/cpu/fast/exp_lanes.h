// e^x of sixteen lanes, the same bits with AVX-512 and with AVX2 (ORDER.md). Only for files compiled with either.
#pragma once

#if defined(__AVX512F__)
#include "ops/cpu/fast/simd_avx512.h"
#else
#include "ops/cpu/fast/simd_avx2.h"
#endif

namespace deepinfer::ops::cpu::fast {
namespace {

// e^x to about one unit in the last place; 0 below -87.
inline F16 exp(F16 x) {
  const F16 low = F16::all(-87.0f), held = max(min(x, F16::all(88.0f)), low);
  const F16 n = nearest(held * F16::all(0x1.715476p+0f));
  F16 r = fma(n, F16::all(-0x1.62e4p-1f), held);  // ln 2 in two parts; n times the first is exact
  r = fma(n, F16::all(-0x1.7f7d1cp-20f), r);
  // The series of e^r - 1 - r over r^2 up to r^5, |r| <= 0.35.
  F16 p = F16::all(1.0f / 5040);
  p = fma(p, r, F16::all(1.0f / 720));
  p = fma(p, r, F16::all(1.0f / 120));
  p = fma(p, r, F16::all(1.0f / 24));
  p = fma(p, r, F16::all(1.0f / 6));
  p = fma(p, r, F16::all(0.5f));
  const F16 y = F16::all(1.0f) + fma(p, r * r, r);
  return where_less(x, low, F16::all(0.0f), scale_by_power(y, n));
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
