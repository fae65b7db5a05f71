// The fast linear layers against their summation tree written out (ORDER.md, "fast"), on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/fast/amx.h"
#include "ops/cpu/fast/kernels.h"
#include "ops/cpu/fast/lanes.h"
#include "tests/unit/ops/emulated_tiles.h"

namespace deepinfer::ops::cpu::fast {
namespace {

struct OwnedMatrix {
  Matrix m;
  std::vector<uint8_t> data, scale;
};

enum class Values { kRandom, kZero, kSubnormal, kSaturated };

OwnedMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, Values values, std::mt19937& random) {
  OwnedMatrix o;
  const int64_t bits = format == WeightFormat::kBf16 ? 16 : format == WeightFormat::kFp8 ? 8 : 4;
  o.data.resize(rows * cols * bits / 8);
  for (size_t i = 0; i < o.data.size(); ++i) {
    uint8_t b = static_cast<uint8_t>(random());
    if (format == WeightFormat::kFp8) {
      if (values == Values::kSubnormal) b &= 0x87;
      if (values == Values::kSaturated) b |= 0x7e;
      if ((b & 0x7f) == 0x7f) b ^= 1;
    } else if (format == WeightFormat::kFp4) {
      if (values == Values::kSubnormal) b &= 0x99;
      if (values == Values::kSaturated) b |= 0x77;
    }
    o.data[i] = values == Values::kZero ? (random() & 0x80) : b;
  }
  if (format == WeightFormat::kBf16) {
    std::normal_distribution<float> normal(0, 0.05f);
    auto* w = reinterpret_cast<uint16_t*>(o.data.data());
    for (int64_t i = 0; i < rows * cols; ++i)
      w[i] = values == Values::kZero ? 0 : numeric::float_to_bf16(normal(random));
  } else {
    o.scale.resize((format == WeightFormat::kFp8 ? (rows + 31) / 32 : rows) * (cols / 32));
    for (uint8_t& s : o.scale)
      s = static_cast<uint8_t>(values == Values::kRandom ? 110 + random() % 20 : 67 + random() % 121);
  }
  o.m = {format, rows, cols, reinterpret_cast<const std::byte*>(o.data.data()),
         o.scale.empty() ? nullptr : reinterpret_cast<const std::byte*>(o.scale.data())};
  return o;
}

float weight(const Matrix& w, int64_t row, int64_t k) {
  const auto* d = reinterpret_cast<const uint8_t*>(w.data);
  const auto* s = reinterpret_cast<const uint8_t*>(w.scale);
  if (w.format == WeightFormat::kBf16) {
    uint16_t h;
    std::memcpy(&h, d + (row * w.cols + k) * 2, 2);
    return numeric::bf16_to_float(h);
  }
  if (w.format == WeightFormat::kFp8)
    return numeric::e4m3_to_float(d[row * w.cols + k]) * numeric::ue8m0_to_float(s[row / 32 * (w.cols / 32) + k / 32]);
  const uint8_t pair = d[(row * w.cols + k) / 2];
  return numeric::e2m1_to_float(k % 2 ? pair >> 4 : pair & 15) *
         numeric::ue8m0_to_float(s[row * (w.cols / 32) + k / 32]);
}

// The column that word i of a packed chunk holds.
int64_t column(Order order, int64_t i) {
  const int64_t c = i % 64, base = i - c;
  switch (order) {
    case Order::kFp8: return base + (c / 8 % 4 * 2 + c / 32) * 8 + c % 8;
    case Order::kFp4: return base + c % 32 * 2 + c / 32;
    default: return i;
  }
}

bool tiles(const Kernels& k) { return std::strcmp(k.numeric_class, "fast-bf16-tiles-1") == 0; }

// x: values already quantised.
float tree(const Matrix& w, int64_t row, const float* x, bool tiles) {
  float lanes[16] = {};
  const Order order = order_of(w.format);
  const auto value = [&](int64_t word, bool of_x) {
    const int64_t k = column(order, word);
    return k >= w.cols ? 0.0f : of_x ? x[k] : weight(w, row, k);
  };
  if (tiles) {
    float total = 0;
    for (int64_t step = 0; step < packed_columns(w.cols); step += 32) {
      float even = 0, odd = 0;
      for (int64_t k = step; k < step + 32; k += 2) {
        even = std::fma(value(k, false), value(k, true), even);
        odd = std::fma(value(k + 1, false), value(k + 1, true), odd);
      }
      total += even + odd;
    }
    return total;
  }
  for (int64_t step = 0; step < packed_columns(w.cols); step += 32) {
    for (int lane = 0; lane < 16; ++lane) {
      const int64_t even = step + 2 * lane;
      lanes[lane] = std::fma(value(even + 1, false), value(even + 1, true), lanes[lane]);
      lanes[lane] = std::fma(value(even, false), value(even, true), lanes[lane]);
    }
  }
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> out;
  static Kernels emulated;
  if (avx512_kernels() != nullptr) {
    emulated = *avx512_kernels();
    emulated.isa = "amx, emulated";
    emulated.numeric_class = "fast-bf16-tiles-1";
    emulated.multiply = multiply_emulated;
    out.push_back(&emulated);
  }
  for (const Kernels* k : {avx512_kernels(), avx2_kernels(), amx_kernels()}) {
    if (k != nullptr) out.push_back(k);
  }
  return out;
}

std::vector<float> random_rows(int64_t n, int64_t k, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n * k);
  for (float& v : x) v = numeric::round_bf16(normal(random) * std::exp(2 * normal(random)));
  return x;
}

struct Packed {
  std::vector<uint16_t> words;
  PackedRows rows;
};

// Rows first .. first + n - 1 of x.
Packed pack(const Kernels& k, const Matrix& w, const std::vector<float>& x, int64_t first, int64_t n, bool quantise) {
  Packed p;
  p.words.assign(n * packed_columns(w.cols), 0x7fc0);  // NaN where nothing is written
  p.rows = {p.words.data(), packed_columns(w.cols), n};
  for (int64_t i = 0; i < n; ++i) {
    k.pack(x.data() + (first + i) * w.cols, w.cols, order_of(w.format), quantise && w.format != WeightFormat::kBf16,
           p.rows.row(i), p.rows.step(i));
  }
  return p;
}

std::vector<float> multiply(const Kernels& k, const Matrix& w, int64_t row0, int64_t rows, const std::vector<float>& x,
                            int64_t first, int64_t n, bool round, bool quantise = true) {
  const Packed packed = pack(k, w, x, first, n, quantise);
  std::vector<float> out(n * rows, NAN);
  std::vector<std::byte> memory(std::max<size_t>(multiply_scratch_bytes(w.cols), amx_scratch_bytes(w.cols)) + 64);
  auto* scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
  k.multiply({&w, row0, rows, packed.rows, out.data(), rows, round}, scratch);
  return out;
}

struct Shape {
  WeightFormat format;
  int64_t rows, cols;
};

class FastLinear : public ::testing::TestWithParam<Shape> {};

TEST_P(FastLinear, EqualsItsTree) {
  std::mt19937 random(7);
  for (const Values values : {Values::kRandom, Values::kZero, Values::kSubnormal, Values::kSaturated}) {
    const OwnedMatrix w = random_matrix(GetParam().format, GetParam().rows, GetParam().cols, values, random);
    const bool quantise = w.m.format != WeightFormat::kBf16;
    std::vector<float> x = random_rows(3, w.m.cols, random);
    std::fill(x.begin(), x.begin() + std::min<int64_t>(w.m.cols, 40), 0.0f);
    std::vector<float> q = x;
    if (quantise) numeric::fq8(std::span<float>(q));
    for (const Kernels* k : tables()) {
      const std::vector<float> got = multiply(*k, w.m, 0, w.m.rows, x, 0, 3, false);
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < w.m.rows; ++j) {
          ASSERT_EQ(got[i * w.m.rows + j], tree(w.m, j, q.data() + i * w.m.cols, tiles(*k)))
              << k->isa << " values " << static_cast<int>(values) << " row " << i << " output " << j;
        }
      }
    }
  }
}

// Any number of rows, any part of the matrix, rounded or not.
TEST_P(FastLinear, RowsDoNotDependOnTheBatch) {
  std::mt19937 random(8);
  const OwnedMatrix w = random_matrix(GetParam().format, GetParam().rows, GetParam().cols, Values::kRandom, random);
  constexpr int64_t kRows = 128;
  const std::vector<float> x = random_rows(kRows, w.m.cols, random);
  const int64_t rows = w.m.rows;
  std::map<std::string, std::vector<float>> of_class;
  for (const Kernels* k : tables()) {
    const std::vector<float> all = multiply(*k, w.m, 0, rows, x, 0, kRows, false);
    std::vector<float>& want = of_class[k->numeric_class];
    if (want.empty()) want = all;
    EXPECT_TRUE(all == want) << k->isa;
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 16, 17, 33}) {
      const int64_t first = random() % (kRows - n);
      const std::vector<float> part = multiply(*k, w.m, 0, rows, x, first, n, false);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * rows)) << k->isa << " rows " << n;
      if (rows <= kBlockRows) continue;
      const std::vector<float> tail = multiply(*k, w.m, kBlockRows, rows - kBlockRows, x, first, n, true);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = kBlockRows; j < rows; ++j) {
          ASSERT_EQ(tail[i * (rows - kBlockRows) + j - kBlockRows], numeric::round_bf16(all[(first + i) * rows + j]))
              << k->isa << " rows " << n;
        }
      }
    }
  }
}

// The second copy of a small model's weights (lanes.h).
class FastLanes : public FastLinear {};

TEST_P(FastLanes, GiveTheSameSums) {
  std::mt19937 random(11);
  for (const Values values : {Values::kRandom, Values::kZero, Values::kSubnormal, Values::kSaturated}) {
    const OwnedMatrix w = random_matrix(GetParam().format, GetParam().rows, GetParam().cols, values, random);
    ASSERT_TRUE(has_lanes(w.m));
    const std::vector<float> x = random_rows(kStreamRows, w.m.cols, random);
    for (const Kernels* k : tables()) {
      if (k->fill_lanes == nullptr) continue;
      std::vector<std::byte> memory(lanes_bytes(w.m) + 64, std::byte{0xff});
      Matrix copied = w.m;
      copied.lanes = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
      k->fill_lanes(w.m, const_cast<std::byte*>(copied.lanes));
      for (int64_t n = 1; n <= kStreamRows; ++n) {
        for (int64_t row0 = 0; row0 < w.m.rows; row0 += kLaneOutputs) {
          const int64_t rows = std::min<int64_t>(w.m.rows - row0, 1 + static_cast<int64_t>(random() % 64));
          const std::vector<float> want = multiply(*k, w.m, row0, rows, x, 0, n, n % 2 == 0);
          const std::vector<float> got = multiply(*k, copied, row0, rows, x, 0, n, n % 2 == 0);
          ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
              << k->isa << " values " << static_cast<int>(values) << " rows of x " << n << " from " << row0;
        }
      }
    }
  }
}

// Activations that FQ8 has not held, as those of wo_a, and so small that a scale of the weights would flush them: with
// tiles the sums are those without the copy.
TEST_P(FastLanes, GiveTheSameSumsOfTinyActivations) {
  std::mt19937 random(12);
  OwnedMatrix w = random_matrix(GetParam().format, GetParam().rows, GetParam().cols, Values::kSaturated, random);
  std::fill(w.scale.begin(), w.scale.end(), uint8_t{67});  // 2^-60
  std::vector<float> x = random_rows(kStreamRows, w.m.cols, random);
  for (float& v : x) v = std::ldexp(v, -70);
  for (const Kernels* k : tables()) {
    if (k->fill_lanes == nullptr || !tiles(*k)) continue;
    std::vector<std::byte> memory(lanes_bytes(w.m) + 64);
    Matrix copied = w.m;
    copied.lanes = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
    k->fill_lanes(w.m, const_cast<std::byte*>(copied.lanes));
    for (const int64_t n : {int64_t{1}, int64_t{3}, kStreamRows}) {
      const std::vector<float> want = multiply(*k, w.m, 0, w.m.rows, x, 0, n, false, false);
      const std::vector<float> got = multiply(*k, copied, 0, w.m.rows, x, 0, n, false, false);
      ASSERT_TRUE(std::any_of(want.begin(), want.end(), [](float v) { return v != 0; }));
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0) << k->isa << " rows of x " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FastLinear,
                         ::testing::Values(Shape{WeightFormat::kFp8, 64, 128}, Shape{WeightFormat::kFp8, 96, 2080},
                                           Shape{WeightFormat::kFp8, 37, 32}, Shape{WeightFormat::kFp4, 64, 128},
                                           Shape{WeightFormat::kFp4, 70, 1184}, Shape{WeightFormat::kFp4, 5, 32},
                                           Shape{WeightFormat::kBf16, 33, 256}, Shape{WeightFormat::kBf16, 70, 1027},
                                           Shape{WeightFormat::kBf16, 70, 32}, Shape{WeightFormat::kBf16, 4, 24},
                                           // Rows of more than a page.
                                           Shape{WeightFormat::kFp8, 64, 4128}, Shape{WeightFormat::kFp4, 34, 8224},
                                           Shape{WeightFormat::kBf16, 65, 2085}));

// Larger matrices than the caches hold are read in another order.
TEST(FastLinearLarge, OneRowEqualsTheSameRowOfTwo) {
  std::mt19937 random(9);
  const OwnedMatrix w = random_matrix(WeightFormat::kFp8, 1029, 2080, Values::kRandom, random);
  const std::vector<float> x = random_rows(2, w.m.cols, random);
  for (const Kernels* k : tables()) {
    const std::vector<float> two = multiply(*k, w.m, 0, w.m.rows, x, 0, 2, false);
    for (int i = 0; i < 2; ++i) {
      const std::vector<float> one = multiply(*k, w.m, 0, w.m.rows, x, i, 1, false);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), two.begin() + i * w.m.rows)) << k->isa << " row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FastLanes,
                         ::testing::Values(Shape{WeightFormat::kFp8, 64, 128}, Shape{WeightFormat::kFp8, 96, 2080},
                                           Shape{WeightFormat::kFp8, 37, 32}, Shape{WeightFormat::kFp4, 64, 128},
                                           Shape{WeightFormat::kFp4, 70, 1248}));

TEST(FastPack, QuantisesAsTheDefinition) {
  std::mt19937 random(9);
  std::vector<std::vector<float>> rows;
  rows.push_back(random_rows(1, 256, random));
  rows.emplace_back(256, 0.0f);
  rows.emplace_back(256, -0.0f);
  rows.push_back(random_rows(1, 256, random));
  for (size_t i = 0; i < 256; ++i) rows.back()[i] = std::ldexp(rows.back()[i], static_cast<int>(random() % 60) - 40);
  rows.emplace_back(256, 3e38f);
  rows.emplace_back(256);
  for (float& v : rows.back()) v = numeric::bf16_to_float(static_cast<uint16_t>(random()));  // all bit patterns
  rows.emplace_back(256);
  for (size_t i = 0; i < 256; ++i) rows.back()[i] = static_cast<float>(i % 32) * 1e-9f;
  for (std::vector<float>& r : rows) {
    for (float& v : r) v = numeric::round_bf16(v);
  }
  for (const Kernels* k : tables()) {
    for (const std::vector<float>& x : rows) {
      std::vector<float> q = x;
      numeric::fq8(std::span<float>(q));
      for (const Order order : {Order::kNatural, Order::kFp8, Order::kFp4}) {
        std::vector<uint16_t> out(256);
        k->pack(x.data(), 256, order, true, out.data(), kStep);
        for (int64_t i = 0; i < 256; ++i) {
          const float want = q[column(order, i)], got = numeric::bf16_to_float(out[i]);
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
              << k->isa << " " << i << ": " << got << " not " << want;
        }
      }
    }
  }
}

// The pair sums of attention.
TEST(FastOuter, EqualsItsTree) {
  std::mt19937 random(10);
  constexpr int64_t kPairs = 37;
  for (const int64_t m : {1, 5, 6, 13}) {
    for (const int64_t lanes : {16, 48, 112}) {
      const std::vector<float> a = random_rows(m, 2 * kPairs, random), b = random_rows(2 * kPairs, lanes, random);
      std::vector<uint32_t> ap(m * kPairs), bp(kPairs * lanes);
      const auto pair = [](float even, float odd) {
        return static_cast<uint32_t>(numeric::float_to_bf16(even)) | static_cast<uint32_t>(numeric::float_to_bf16(odd))
                                                                         << 16;
      };
      for (int64_t p = 0; p < kPairs; ++p) {
        for (int64_t i = 0; i < m; ++i) ap[p * m + i] = pair(a[i * 2 * kPairs + 2 * p], a[i * 2 * kPairs + 2 * p + 1]);
        for (int64_t l = 0; l < lanes; ++l) bp[p * lanes + l] = pair(b[2 * p * lanes + l], b[(2 * p + 1) * lanes + l]);
      }
      for (const Kernels* k : tables()) {
        std::vector<float> c(m * lanes);
        k->outer({ap.data(), 1, m, bp.data(), lanes, m, kPairs, lanes, c.data(), lanes});
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t l = 0; l < lanes; ++l) {
            float sum = 0;
            for (int64_t p = 0; p < kPairs; ++p) {
              sum = std::fma(b[(2 * p + 1) * lanes + l], a[i * 2 * kPairs + 2 * p + 1], sum);
              sum = std::fma(b[2 * p * lanes + l], a[i * 2 * kPairs + 2 * p], sum);
            }
            ASSERT_EQ(c[i * lanes + l], sum) << k->isa;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
