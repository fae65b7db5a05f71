#include "numeric/quantize.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "numeric/formats.h"

namespace deepinfer::numeric {
namespace {

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

template <class T>
std::vector<T> bf16_values(const std::vector<uint8_t>& bytes) {
  std::vector<T> x(bytes.size() / 2);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = bf16_to_float(static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8));
  return x;
}

template <class T>
void check_record(const std::string& kind, const std::vector<uint8_t>& in, const std::vector<uint8_t>& record,
                  const std::vector<uint8_t>& values) {
  const std::vector<T> x = bf16_values<T>(in), want = bf16_values<T>(values);
  std::vector<uint8_t> got(record.size());
  std::vector<T> back(x.size()), in_place = x;
  const std::span<const T> input(x);
  if (kind == "entry") {
    ASSERT_EQ(record.size(), entry_record_bytes(x.size()));
    encode_entry_record(input, got.data());
    decode_entry_record(record.data(), std::span<T>(back));
    fq4k(std::span<T>(in_place));
  } else if (kind == "key") {
    ASSERT_EQ(record.size(), key_record_bytes(x.size()));
    encode_key_record(input, got.data());
    decode_key_record(record.data(), std::span<T>(back));
    fq4i(std::span<T>(in_place));
  } else {
    ASSERT_EQ(record.size(), window_record_bytes(x.size()));
    encode_window_record(input, got.data());
    decode_window_record(record.data(), std::span<T>(back));
    fq8(std::span<T>(in_place));
  }
  EXPECT_EQ(got, record);
  EXPECT_EQ(back, want);
  EXPECT_EQ(in_place, want);
}

TEST(Records, EqualTheGoldens) {
  std::ifstream file(DEEPINFER_TEST_DATA "/numeric/records.txt");
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string kind, in, record, values;
    fields >> kind >> in >> record >> values;
    SCOPED_TRACE(kind + " row " + std::to_string(rows));
    check_record<float>(kind, from_hex(in), from_hex(record), from_hex(values));
    check_record<double>(kind, from_hex(in), from_hex(record), from_hex(values));
    ++rows;
  }
  EXPECT_EQ(rows, 80);
}

TEST(Records, SizesOfTheFullModel) {
  EXPECT_EQ(window_record_bytes(512), 528u);
  EXPECT_EQ(entry_record_bytes(512), 288u);
  EXPECT_EQ(key_record_bytes(128), 68u);
}

// Every positive finite bf16 as the maximum of a group, against the formulas written out in long double.
TEST(Quantize, ScalesForEveryBf16Maximum) {
  for (uint32_t h = 0; h < 0x7f80; ++h) {
    const float amax = bf16_to_float(static_cast<uint16_t>(h));
    std::vector<float> x(32, 0.0f);
    x[h % 16] = h & 1 ? -amax : amax;
    const std::vector<double> xd(x.begin(), x.end());

    const float t8 = std::max(amax, 1e-4f) * float(1.0 / 448);
    int e8 = 0;
    const bool pow8 = std::frexp(t8, &e8) == 0.5f;
    ASSERT_EQ(fq8_scale(std::span<const float>(x)), e8 - pow8 + 127) << h;
    ASSERT_EQ(fq8_scale(std::span<const double>(xd)), e8 - pow8 + 127) << h;

    int e4 = 0;
    const bool pow4 = std::frexp(std::max<long double>(amax, 6 * 0x1p-126L) / 6, &e4) == 0.5L;
    ASSERT_EQ(fq4i_scale(std::span<const float>(x)), e4 - pow4 + 127) << h;
    ASSERT_EQ(fq4i_scale(std::span<const double>(xd)), e4 - pow4 + 127) << h;

    const uint8_t sk =
        float_to_e4m3(static_cast<float>(std::min<long double>(std::max<long double>(amax, 6 / 512.0L) / 6, 448)));
    ASSERT_EQ(fq4k_scale(std::span<const float>(x).first(16)), sk) << h;
    ASSERT_EQ(fq4k_scale(std::span<const double>(xd).first(16)), sk) << h;
  }
}

TEST(Quantize, DequantisedValuesAreExactInBf16) {
  std::vector<float> x(32);
  uint32_t state = 1;
  for (int round = 0; round < 20000; ++round) {
    for (float& v : x) {
      state = state * 1664525u + 1013904223u;
      v = bf16_to_float(static_cast<uint16_t>((state >> 16 & 0x80ff) | (0x3a00 + (state >> 8 & 0x0700))));
    }
    std::vector<float> a = x, b = x, c = x;
    fq8(a);
    fq4k(b);
    fq4i(c);
    float amax = 0;
    for (float v : x) amax = std::max(amax, std::abs(v));
    // Half a step: 2^-4 relative, or 2^-10 of a scale that is below twice amax / 448.
    const float step = amax / 224 * 0x1p-10f;
    for (int i = 0; i < 32; ++i) {
      ASSERT_EQ(round_bf16(a[i]), a[i]);
      ASSERT_EQ(round_bf16(b[i]), b[i]);
      ASSERT_EQ(round_bf16(c[i]), c[i]);
      ASSERT_LE(std::abs(a[i] - x[i]), std::max(std::abs(x[i]) / 16, step));
    }
  }
}

TEST(Quantize, TheCorrectQuotientDecidesTies) {
  // x / s is exactly 1.25 (ties to 1); multiplied by a rounded 1/s it would be above and give 1.5 (spec 4.3).
  std::vector<float> x(16, 0.0f);
  x[0] = 0.9375f * 6;
  x[1] = 1.171875f;
  std::vector<uint8_t> codes(8), scales(1);
  fq4k_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(e4m3_to_float(scales[0]), 0.9375f);
  EXPECT_EQ(e2m1_to_float(e2m1_high(codes[0])), 1.0f);
}

TEST(Quantize, FloorsZerosAndTheUnusual) {
  std::vector<float> x(32, -0.0f);
  std::vector<uint8_t> codes(32), scales(2);
  fq8_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(codes[0], 0x80);
  EXPECT_EQ(scales[0], ue8m0_at_least(1e-4f / 448));
  fq4k_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(e4m3_to_float(scales[0]), 0x1p-9f);
  fq4i_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(scales[0], 1);

  x[0] = std::numeric_limits<float>::infinity();
  x[1] = std::numeric_limits<float>::quiet_NaN();
  fq8_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(scales[0], 254);
  EXPECT_EQ(codes[0], 0x7e);
  EXPECT_EQ(codes[1] & 0x7f, 0x7f);
  fq4k_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(scales[0], 0x7e);
  EXPECT_EQ(codes[0], 0x07);
  fq4i_encode(std::span<const float>(x), codes.data(), scales.data());
  EXPECT_EQ(scales[0], 254);
  EXPECT_EQ(codes[0], 0x07);
}

}  // namespace
}  // namespace deepinfer::numeric
