// Weights as stored -> panels of numbers: 8 x 8 blocks are decoded by rows and turned in registers.
#include <algorithm>
#include <cstring>

#include "numeric/formats.h"
#include "ops/cpu/panel.h"

namespace deepinfer::ops::cpu {
namespace {

constexpr int kBlock = 8;
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef uint8_t B8 __attribute__((vector_size(8)));
typedef uint16_t H8 __attribute__((vector_size(16)));

const uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Codes without table: normal codes by their bits, the subnormal ones by conversion.
[[gnu::always_inline]] inline void decode_e4m3(const U8& code, float scale, F8& out) {
  const U8 sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  const U8 normal = (magnitude << 20) + (120u << 23);
  const F8 small = __builtin_convertvector((I8)magnitude, F8) * 0x1p-9f;
  const U8 value = (magnitude < 8u) ? (U8)small : normal;
  const U8 nan = U8{} + 0x7fc00000u;
  out = (F8)(((magnitude == 0x7fu) ? nan : value) | sign) * scale;
}

[[gnu::always_inline]] inline void decode_e2m1(const U8& code, float scale, F8& out) {
  const U8 sign = (code & 8u) << 28, magnitude = code & 7u;
  const U8 normal = (magnitude << 22) + (126u << 23);
  const F8 small = __builtin_convertvector((I8)magnitude, F8) * 0.5f;
  out = (F8)(((magnitude < 2u) ? (U8)small : normal) | sign) * scale;
}

// Where a row of weights lies.
struct RowPointer {
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;  // a byte per 32 columns
};

template <WeightFormat F>
[[gnu::always_inline]] inline RowPointer row_pointer(const Matrix& w, int64_t row) {
  constexpr int64_t kBits = F == WeightFormat::kF32    ? 32
                            : F == WeightFormat::kBf16 ? 16
                            : F == WeightFormat::kFp4  ? 4
                                                       : 8;
  RowPointer p{bytes(w.data) + row * (w.cols * kBits / 8), nullptr};
  if (w.scale != nullptr) p.scale = bytes(w.scale) + (F == WeightFormat::kFp8 ? row / 32 : row) * (w.cols / 32);
  return p;
}

// Columns k .. k + 7.
template <WeightFormat F>
[[gnu::always_inline]] inline void decode_block(const uint8_t* row, int64_t k, float scale, F8& out) {
  if constexpr (F == WeightFormat::kF32) {
    std::memcpy(&out, row + k * sizeof(float), sizeof out);
  } else if constexpr (F == WeightFormat::kBf16) {
    H8 h;
    std::memcpy(&h, row + k * sizeof(uint16_t), sizeof h);
    out = (F8)(__builtin_convertvector(h, U8) << 16);
  } else if constexpr (F == WeightFormat::kFp4) {
    uint32_t packed;
    std::memcpy(&packed, row + k / 2, sizeof packed);
    const U8 code = ((U8{} + packed) >> U8{0, 4, 8, 12, 16, 20, 24, 28}) & 15u;
    decode_e2m1(code, scale, out);
  } else {
    B8 b;
    std::memcpy(&b, row + k, sizeof b);
    const U8 code = __builtin_convertvector(b, U8);
    decode_e4m3(code, scale, out);
  }
}

[[gnu::always_inline]] inline void transpose(F8 r[kBlock]) {
  F8 a[kBlock], b[kBlock];
#pragma GCC unroll 4
  for (int i = 0; i < kBlock; i += 2) {
    a[i] = __builtin_shuffle(r[i], r[i + 1], I8{0, 8, 1, 9, 4, 12, 5, 13});
    a[i + 1] = __builtin_shuffle(r[i], r[i + 1], I8{2, 10, 3, 11, 6, 14, 7, 15});
  }
#pragma GCC unroll 2
  for (int i = 0; i < kBlock; i += 4) {
    b[i] = __builtin_shuffle(a[i], a[i + 2], I8{0, 1, 8, 9, 4, 5, 12, 13});
    b[i + 1] = __builtin_shuffle(a[i], a[i + 2], I8{2, 3, 10, 11, 6, 7, 14, 15});
    b[i + 2] = __builtin_shuffle(a[i + 1], a[i + 3], I8{0, 1, 8, 9, 4, 5, 12, 13});
    b[i + 3] = __builtin_shuffle(a[i + 1], a[i + 3], I8{2, 3, 10, 11, 6, 7, 14, 15});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shuffle(b[i], b[i + 4], I8{0, 1, 2, 3, 8, 9, 10, 11});
    r[i + 4] = __builtin_shuffle(b[i], b[i + 4], I8{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

template <WeightFormat F>
[[gnu::always_inline]] inline void expand_format(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1,
                                                 float* panel) {
  constexpr int64_t kScaled = 32;
  for (int64_t r0 = 0; r0 < kLanes; r0 += kBlock) {
    RowPointer p[kBlock];
    // Lanes without a row repeat the last one and are cleared below.
    for (int64_t i = 0; i < kBlock; ++i) p[i] = row_pointer<F>(w, row0 + std::min(r0 + i, count - 1));
    for (int64_t k = k0; k < k1; k += kScaled) {
      float scale[kBlock];
      for (int i = 0; i < kBlock; ++i)
        scale[i] = p[i].scale != nullptr ? numeric::ue8m0_to_float(p[i].scale[k / kScaled]) : 1.0f;
      for (int64_t j = k; j < k + kScaled; j += kBlock) {
        F8 rows[kBlock];
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; ++i) decode_block<F>(p[i].data, j, scale[i], rows[i]);
        transpose(rows);
        float* out = panel + (j - k0) * kLanes + r0;
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; ++i) std::memcpy(out + i * kLanes, &rows[i], sizeof rows[i]);
      }
    }
  }
  for (int64_t k = 0; count < kLanes && k < k1 - k0; ++k)
    std::fill(panel + k * kLanes + count, panel + (k + 1) * kLanes, 0.0f);
}

[[gnu::always_inline]] inline void expand_body(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1,
                                               float* panel) {
  switch (w.format) {
    case WeightFormat::kF32: return expand_format<WeightFormat::kF32>(w, row0, count, k0, k1, panel);
    case WeightFormat::kBf16: return expand_format<WeightFormat::kBf16>(w, row0, count, k0, k1, panel);
    case WeightFormat::kFp8: return expand_format<WeightFormat::kFp8>(w, row0, count, k0, k1, panel);
    case WeightFormat::kFp8Rows: return expand_format<WeightFormat::kFp8Rows>(w, row0, count, k0, k1, panel);
    case WeightFormat::kFp4: return expand_format<WeightFormat::kFp4>(w, row0, count, k0, k1, panel);
  }
}

// The whole strips of one row.
template <WeightFormat F>
[[gnu::always_inline]] inline void expand_strips(const Matrix& w, int64_t row, float* out) {
  const RowPointer p = row_pointer<F>(w, row);
  for (int64_t k = 0; k + kStrip <= w.cols; k += kStrip) {
    const float scale = p.scale != nullptr ? numeric::ue8m0_to_float(p.scale[k / kStrip]) : 1.0f;
    for (int64_t j = k; j < k + kStrip; j += kBlock) {
      F8 block;
      decode_block<F>(p.data, j, scale, block);
      std::memcpy(out + j, &block, sizeof block);
    }
  }
}

[[gnu::always_inline]] inline void row_body(const Matrix& w, int64_t row, float* out) {
  switch (w.format) {
    case WeightFormat::kF32: return expand_strips<WeightFormat::kF32>(w, row, out);
    case WeightFormat::kBf16: return expand_strips<WeightFormat::kBf16>(w, row, out);
    case WeightFormat::kFp8: return expand_strips<WeightFormat::kFp8>(w, row, out);
    case WeightFormat::kFp8Rows: return expand_strips<WeightFormat::kFp8Rows>(w, row, out);
    case WeightFormat::kFp4: return expand_strips<WeightFormat::kFp4>(w, row, out);
  }
}

using RowFunction = void (*)(const Matrix&, int64_t, float*);
using ExpandFunction = void (*)(const Matrix&, int64_t, int64_t, int64_t, int64_t, float*);

#if defined(__x86_64__)
[[gnu::target("avx2")]] void expand_avx2(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1,
                                         float* panel) {
  expand_body(w, row0, count, k0, k1, panel);
}
[[gnu::target("avx2")]] void row_avx2(const Matrix& w, int64_t row, float* out) { row_body(w, row, out); }
#endif
void row_plain(const Matrix& w, int64_t row, float* out) { row_body(w, row, out); }
void expand_plain(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1, float* panel) {
  expand_body(w, row0, count, k0, k1, panel);
}

ExpandFunction choose_expand() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return expand_avx2;
#endif
  return expand_plain;
}

RowFunction choose_row() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return row_avx2;
#endif
  return row_plain;
}

// One weight, by the definition.
float weight_at(const Matrix& w, int64_t row, int64_t k) {
  const int64_t at = row * w.cols + k;
  switch (w.format) {
    case WeightFormat::kF32: {
      float x;
      std::memcpy(&x, w.data + at * sizeof x, sizeof x);
      return x;
    }
    case WeightFormat::kBf16: {
      uint16_t h;
      std::memcpy(&h, w.data + at * sizeof h, sizeof h);
      return numeric::bf16_to_float(h);
    }
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Rows: {
      const int64_t scale_row = w.format == WeightFormat::kFp8 ? row / 32 : row;
      return numeric::e4m3_to_float(bytes(w.data)[at]) *
             numeric::ue8m0_to_float(bytes(w.scale)[scale_row * (w.cols / 32) + k / 32]);
    }
    case WeightFormat::kFp4: {
      const uint8_t pair = bytes(w.data)[at / 2];
      return numeric::e2m1_to_float(k % 2 == 0 ? numeric::e2m1_low(pair) : numeric::e2m1_high(pair)) *
             numeric::ue8m0_to_float(bytes(w.scale)[row * (w.cols / 32) + k / 32]);
    }
  }
  return 0;
}

}  // namespace

void expand_panel(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1, float* panel) {
  static const ExpandFunction expand = choose_expand();
  const int64_t whole = k0 + (k1 - k0) / kStrip * kStrip;
  expand(w, row0, count, k0, whole, panel);
  for (int64_t k = whole; k < k1; ++k) {  // only F32 and BF16 matrices may have such a rest
    float* lanes = panel + (k - k0) * kLanes;
    for (int64_t r = 0; r < kLanes; ++r) lanes[r] = r < count ? weight_at(w, row0 + r, k) : 0.0f;
  }
}

void expand_row(const Matrix& w, int64_t row, float* out) {
  static const RowFunction expand = choose_row();
  expand(w, row, out);
  for (int64_t k = w.cols / kStrip * kStrip; k < w.cols; ++k) out[k] = weight_at(w, row, k);
}

}  // namespace deepinfer::ops::cpu
