#include "ops/cpu/panel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/cpu/scratch.h"

namespace deepinfer::ops::cpu {
namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef float F8 __attribute__((vector_size(32)));
typedef double D8 __attribute__((vector_size(64)));

// Sixteen lanes of float, or two times eight of double.
template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  F16 v;
  [[gnu::always_inline]] void add_product(float x, const Lanes& p) { v += x * p.v; }
  [[gnu::always_inline]] void add(const Lanes& o) { v += o.v; }
  [[gnu::always_inline]] void load(const float* p) { std::memcpy(&v, p, sizeof v); }
  [[gnu::always_inline]] void load_sum(const float* p) { load(p); }
  [[gnu::always_inline]] void store_sum(float* p) const { std::memcpy(p, &v, sizeof v); }
};

template <>
struct Lanes<double> {
  D8 a, b;
  [[gnu::always_inline]] void add_product(float x, const Lanes& p) {
    const double wide = x;
    a += wide * p.a;
    b += wide * p.b;
  }
  [[gnu::always_inline]] void load(const float* p) {
    F8 low, high;
    std::memcpy(&low, p, sizeof low);
    std::memcpy(&high, p + 8, sizeof high);
    a = __builtin_convertvector(low, D8);
    b = __builtin_convertvector(high, D8);
  }
  [[gnu::always_inline]] void load_sum(const double* p) {
    std::memcpy(&a, p, sizeof a);
    std::memcpy(&b, p + 8, sizeof b);
  }
  [[gnu::always_inline]] void store_sum(double* p) const {
    std::memcpy(p, &a, sizeof a);
    std::memcpy(p + 8, &b, sizeof b);
  }
};

template <class T, int R>
[[gnu::always_inline]] inline void dot_block(const float* x, int64_t ldx, const float* panel, int64_t ldp, int64_t k,
                                             T* acc) {
  Lanes<T> total[R];
  for (int r = 0; r < R; ++r) total[r].load_sum(acc + r * kLanes);
  if constexpr (std::is_same_v<T, float>) {
    int64_t k0 = 0;
    if constexpr (R == 1) {  // strips are independent sums: four at once hide the latency of an addition
      constexpr int kTogether = 4;
      for (; k0 + kTogether * kStrip <= k; k0 += kTogether * kStrip) {
        Lanes<T> part[kTogether] = {};
        for (int64_t i = k0; i < k0 + kStrip; ++i) {
          for (int s = 0; s < kTogether; ++s) {
            Lanes<T> p;
            p.load(panel + (i + s * kStrip) * ldp);
            part[s].add_product(x[i + s * kStrip], p);
          }
        }
        for (int s = 0; s < kTogether; ++s) total[0].add(part[s]);
      }
    }
    for (; k0 < k; k0 += kStrip) {
      Lanes<T> part[R] = {};
      const int64_t end = std::min<int64_t>(k, k0 + kStrip);
      for (int64_t i = k0; i < end; ++i) {
        Lanes<T> p;
        p.load(panel + i * ldp);
        for (int r = 0; r < R; ++r) part[r].add_product(x[r * ldx + i], p);
      }
      for (int r = 0; r < R; ++r) total[r].add(part[r]);
    }
  } else {
    for (int64_t i = 0; i < k; ++i) {
      Lanes<T> p;
      p.load(panel + i * ldp);
      for (int r = 0; r < R; ++r) total[r].add_product(x[r * ldx + i], p);
    }
  }
  for (int r = 0; r < R; ++r) total[r].store_sum(acc + r * kLanes);
}

template <class T>
[[gnu::always_inline]] inline void dot_body(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp,
                                            int64_t k, T* acc) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) dot_block<T, 4>(x + i * ldx, ldx, panel, ldp, k, acc + i * kLanes);
  if (i + 2 <= n) {
    dot_block<T, 2>(x + i * ldx, ldx, panel, ldp, k, acc + i * kLanes);
    i += 2;
  }
  if (i < n) dot_block<T, 1>(x + i * ldx, ldx, panel, ldp, k, acc + i * kLanes);
}

template <class T>
using DotFunction = void (*)(const float*, int64_t, int64_t, const float*, int64_t, int64_t, T*);

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw")]] void dot_avx512(const float* x, int64_t ldx, int64_t n,
                                                                      const float* panel, int64_t ldp, int64_t k,
                                                                      T* acc) {
  dot_body<T>(x, ldx, n, panel, ldp, k, acc);
}
template <class T>
[[gnu::target("avx2")]] void dot_avx2(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp,
                                      int64_t k, T* acc) {
  dot_body<T>(x, ldx, n, panel, ldp, k, acc);
}
#endif
template <class T>
void dot_plain(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp, int64_t k, T* acc) {
  dot_body<T>(x, ldx, n, panel, ldp, k, acc);
}

template <class T>
DotFunction<T> choose_dot() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return dot_avx512<T>;
  }
  if (__builtin_cpu_supports("avx2")) return dot_avx2<T>;
#endif
  return dot_plain<T>;
}

}  // namespace

void panel_dot(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp, int64_t k, float* acc) {
  static const DotFunction<float> dot = choose_dot<float>();
  dot(x, ldx, n, panel, ldp, k, acc);
}

void panel_dot(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp, int64_t k, double* acc) {
  static const DotFunction<double> dot = choose_dot<double>();
  dot(x, ldx, n, panel, ldp, k, acc);
}

template <class T>
void multiply_rows(const Matrix& w, int64_t row0, int64_t count, const float* x, int64_t ldx, int64_t n, T* out,
                   int64_t ldo) {
  float* panel = scratch<float>(Slot::kPanel, kPanelColumns * kLanes);
  T* acc = scratch<T>(Slot::kAccumulator, n * kLanes);
  for (int64_t j = 0; j < count; j += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, count - j);
    std::fill(acc, acc + n * kLanes, T{0});
    for (int64_t k0 = 0; k0 < w.cols; k0 += kPanelColumns) {
      const int64_t k1 = std::min<int64_t>(w.cols, k0 + kPanelColumns);
      expand_panel(w, row0 + j, lanes, k0, k1, panel);
      panel_dot(x + k0, ldx, n, panel, kLanes, k1 - k0, acc);
    }
    for (int64_t i = 0; i < n; ++i) std::copy(acc + i * kLanes, acc + i * kLanes + lanes, out + i * ldo + j);
  }
}

template void multiply_rows<float>(const Matrix&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t);
template void multiply_rows<double>(const Matrix&, int64_t, int64_t, const float*, int64_t, int64_t, double*, int64_t);

}  // namespace deepinfer::ops::cpu
