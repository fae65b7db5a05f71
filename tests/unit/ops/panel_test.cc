// Panels against the plain definition: every weight format and code, odd sizes, and the summation tree that is
// promised.
#include "ops/cpu/panel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numeric/formats.h"

namespace deepinfer::ops::cpu {
namespace {

struct Stored {
  Matrix matrix;
  std::vector<std::byte> data, scale;
};

Stored random_matrix(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  Stored s;
  const size_t bits = format == WeightFormat::kF32    ? 32
                      : format == WeightFormat::kBf16 ? 16
                      : format == WeightFormat::kFp4  ? 4
                                                      : 8;
  s.data.resize(rows * cols * bits / 8);
  for (std::byte& b : s.data) b = static_cast<std::byte>(random());
  if (format == WeightFormat::kF32 || format == WeightFormat::kBf16) {  // random bits would be huge numbers and NaN
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float x = normal(random);
      const uint16_t h = numeric::float_to_bf16(x);
      std::memcpy(s.data.data() + i * bits / 8, format == WeightFormat::kF32 ? static_cast<const void*>(&x) : &h,
                  bits / 8);
    }
  } else {
    s.scale.resize((format == WeightFormat::kFp8 ? (rows + 31) / 32 : rows) * cols / 32);
    for (std::byte& b : s.scale) b = static_cast<std::byte>(117 + random() % 20);
  }
  if (format == WeightFormat::kFp8 || format == WeightFormat::kFp8Rows) {
    for (std::byte& b : s.data) b = (b & std::byte{0x7f}) == std::byte{0x7f} ? std::byte{0x7e} : b;
  }
  s.matrix = {format, rows, cols, s.data.data(), s.scale.empty() ? nullptr : s.scale.data()};
  return s;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                                     WeightFormat::kFp8Rows, WeightFormat::kFp4};

float by_definition(const Matrix& w, int64_t row, int64_t k) {
  const int64_t at = row * w.cols + k;
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data);
  const auto scale = [&](int64_t scale_row) {
    return numeric::ue8m0_to_float(static_cast<uint8_t>(w.scale[scale_row * (w.cols / 32) + k / 32]));
  };
  switch (w.format) {
    case WeightFormat::kF32: {
      float x;
      std::memcpy(&x, codes + 4 * at, sizeof x);
      return x;
    }
    case WeightFormat::kBf16:
      return numeric::bf16_to_float(static_cast<uint16_t>(codes[2 * at] | codes[2 * at + 1] << 8));
    case WeightFormat::kFp8: return numeric::e4m3_to_float(codes[at]) * scale(row / 32);
    case WeightFormat::kFp8Rows: return numeric::e4m3_to_float(codes[at]) * scale(row);
    case WeightFormat::kFp4:
      return numeric::e2m1_to_float(k % 2 == 0 ? codes[at / 2] & 15 : codes[at / 2] >> 4) * scale(row);
  }
  return 0;
}

TEST(Panel, ExpandEqualsTheRows) {
  for (const WeightFormat format : kFormats) {
    const Stored s = random_matrix(format, 70, 96, 1);
    std::vector<float> row(96), panel(96 * kLanes, -1.0f);
    for (int64_t r0 = 0; r0 < 70; r0 += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, 70 - r0);
      for (const auto& [k0, k1] : {std::pair{0, 96}, std::pair{32, 64}}) {
        expand_panel(s.matrix, r0, count, k0, k1, panel.data());
        for (int64_t r = 0; r < kLanes; ++r) {
          if (r < count) expand_row(s.matrix, r0 + r, row.data());
          for (int64_t k = 0; r < count && k < 96; ++k) ASSERT_EQ(row[k], by_definition(s.matrix, r0 + r, k));
          for (int64_t k = k0; k < k1; ++k) {
            const float want = r < count ? row[k] : 0.0f, got = panel[(k - k0) * kLanes + r];
            ASSERT_EQ(std::memcmp(&want, &got, sizeof want), 0)
                << static_cast<int>(format) << " row " << r0 + r << " column " << k << ": " << want << " " << got;
          }
        }
      }
    }
  }
}

TEST(Panel, EveryFp8AndFp4Code) {
  std::vector<std::byte> codes(256 * 32), scales(8, std::byte{127});
  for (int c = 0; c < 256; ++c) {
    for (int k = 0; k < 32; ++k) codes[c * 32 + k] = static_cast<std::byte>(c);
  }
  std::vector<float> panel(32 * kLanes);
  for (int r0 = 0; r0 < 256; r0 += kLanes) {
    expand_panel({WeightFormat::kFp8, 256, 32, codes.data(), scales.data()}, r0, kLanes, 0, 32, panel.data());
    for (int r = 0; r < kLanes; ++r) {
      const float want = numeric::e4m3_to_float(static_cast<uint8_t>(r0 + r)), got = panel[31 * kLanes + r];
      EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : std::memcmp(&want, &got, sizeof want) == 0) << r0 + r;
    }
  }
  std::vector<std::byte> pairs(16 * 16), ones(16, std::byte{127});
  for (int c = 0; c < 16; ++c) {
    for (int k = 0; k < 16; ++k) pairs[c * 16 + k] = static_cast<std::byte>(c | (15 - c) << 4);
  }
  expand_panel({WeightFormat::kFp4, 16, 32, pairs.data(), ones.data()}, 0, kLanes, 0, 32, panel.data());
  for (int c = 0; c < 16; ++c) {
    const float even = numeric::e2m1_to_float(static_cast<uint8_t>(c)),
                odd = numeric::e2m1_to_float(static_cast<uint8_t>(15 - c));
    EXPECT_EQ(std::memcmp(&even, &panel[30 * kLanes + c], sizeof even), 0);
    EXPECT_EQ(std::memcmp(&odd, &panel[31 * kLanes + c], sizeof odd), 0);
  }
}

// The tree of ORDER.md, spelled out.
float promised_sum(const float* x, const float* w, int64_t k) {
  float total = 0;
  for (int64_t k0 = 0; k0 < k; k0 += kStrip) {
    float part = 0;
    for (int64_t i = k0; i < std::min<int64_t>(k, k0 + kStrip); ++i) {
      const float product = x[i] * w[i];
      part = part + product;
    }
    total = total + part;
  }
  return total;
}

TEST(Panel, FloatSumsFollowTheirTreeForAnyRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{40, 64}, {16, 512}, {33, 1056}, {5, 6144}, {20, 40}}) {
    const Stored s = random_matrix(WeightFormat::kBf16, rows, cols, 4);
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 17, 128}) {
      std::vector<float> x(n * cols), out(n * rows), w(cols);
      for (float& v : x) v = normal(random);
      multiply_rows<float>(s.matrix, 0, rows, x.data(), cols, n, out.data(), rows);
      for (int64_t r = 0; r < rows; ++r) {
        expand_row(s.matrix, r, w.data());
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(out[i * rows + r], promised_sum(x.data() + i * cols, w.data(), cols))
              << rows << "x" << cols << ", " << n << " rows";
      }
    }
  }
}

TEST(Panel, DoubleSumsAscend) {
  const Stored s = random_matrix(WeightFormat::kFp4, 20, 544, 5);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(3 * 544), w(544);
  for (float& v : x) v = normal(random);
  std::vector<double> out(3 * 20);
  multiply_rows<double>(s.matrix, 0, 20, x.data(), 544, 3, out.data(), 20);
  for (int r = 0; r < 20; ++r) {
    expand_row(s.matrix, r, w.data());
    for (int i = 0; i < 3; ++i) {
      double sum = 0;
      for (int k = 0; k < 544; ++k) sum += double{x[i * 544 + k]} * w[k];
      EXPECT_EQ(out[i * 20 + r], sum);
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu
