// Linear layers: against double sums on the CPU at odd sizes, and bit-equal over batch sizes.
#include <cmath>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/cuda/linear.h"
#include "tests/cuda/check.h"
#include "tests/cuda/codes.h"

using namespace deepinfer::ops::cuda;
using deepinfer::ops::WeightFormat;

namespace {

double fq8(double x, double amax) {
  const float t = static_cast<float>(amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f);
  int e;
  const float m = std::frexp(t, &e);
  const double s = std::ldexp(1.0, m == 0.5f ? e - 1 : e);
  const double r = x / s < -448 ? -448 : x / s > 448 ? 448 : x / s;
  return static_cast<double>(static_cast<float>(__nv_fp8_e4m3(static_cast<float>(r)))) * s;
}

struct Weights {
  std::vector<uint8_t> codes, scales;
  std::vector<double> values;
  int n, k;
};

Weights make(WeightFormat format, int n, int k, uint64_t seed) {
  check::Random random(seed);
  Weights w{{}, {}, std::vector<double>(static_cast<size_t>(n) * k), n, k};
  const int kb = k / 32;
  if (format == WeightFormat::kBf16) {
    w.codes.resize(2 * w.values.size());
    w.scales.resize(1);
    for (size_t i = 0; i < w.values.size(); ++i) {
      const uint16_t b = check::bf16_bits(static_cast<float>(random.normal() * 0.05));
      std::memcpy(&w.codes[2 * i], &b, 2);
      w.values[i] = check::bf16_value(b);
    }
    return w;
  }
  const bool fp8 = format == WeightFormat::kFp8;
  w.codes.resize(fp8 ? w.values.size() : w.values.size() / 2);
  w.scales.resize(static_cast<size_t>(fp8 ? (n + 31) / 32 : n) * kb);
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(116 + random.below(6));
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < k; ++c) {
      const size_t i = static_cast<size_t>(r) * k + c;
      const double scale = std::ldexp(1.0, w.scales[static_cast<size_t>(fp8 ? r / 32 : r) * kb + c / 32] - 127);
      if (fp8) {
        uint8_t code = static_cast<uint8_t>(random.below(256));
        if ((code & 0x7f) == 0x7f) code = 0x80;
        w.codes[i] = code;
        w.values[i] = check::e4m3_value(code) * scale;
      } else {
        const int code = random.below(16);
        w.codes[i / 2] |= static_cast<uint8_t>(code << (c % 2 * 4));
        w.values[i] = check::e2m1_value(code) * scale;
      }
    }
  }
  return w;
}

// `count` matrices of one shape in device memory, as linear() takes them.
struct OnDevice {
  check::Device<uint8_t> codes, scales, tiles;
  LinearWeights w;

  OnDevice(WeightFormat format, int n, int k, int count, const std::vector<uint8_t>& c, const std::vector<uint8_t>& s)
      : codes(c), scales(s), tiles(arranged_fp4_bytes(n, k) * count) {
    const int64_t code_stride = static_cast<int64_t>(c.size()) / count,
                  scale_stride = static_cast<int64_t>(s.size()) / count,
                  tile_stride = static_cast<int64_t>(tiles.n) / count;
    w = {codes.p, scales.p, n, k, format, code_stride, scale_stride};
    if (format == WeightFormat::kFp8) arrange_fp8(codes.p, codes.n, nullptr);
    if (format != WeightFormat::kFp4) return;
    tiles.poison();
    for (int i = 0; i < count; ++i)
      arrange_fp4(codes.p + i * code_stride, scales.p + i * scale_stride, n, k, tiles.p + i * tile_stride, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    w.codes = tiles.p, w.scales = nullptr, w.codes_stride = tile_stride, w.scales_stride = 0;
  }
  LinearWeights one(int i) const {
    LinearWeights m = w;
    m.codes = static_cast<const uint8_t*>(w.codes) + i * w.codes_stride;
    if (w.scales != nullptr) m.scales = w.scales + i * w.scales_stride;
    return m;
  }
};

const char* name(WeightFormat f) { return f == WeightFormat::kFp8 ? "fp8" : f == WeightFormat::kFp4 ? "fp4" : "bf16"; }

// Row counts that meet every kernel and its borders.
const int kRows[] = {1, 2, 6, 8, 9, 16, 17, 31, 33, 64, 65, 128, 129, 300, 512};

void test_format(WeightFormat format, int n, int k) {
  const Weights w = make(format, n, k, static_cast<uint64_t>(n) * 131 + k);
  const OnDevice device(format, n, k, 1, w.codes, w.scales);
  const int max_rows = 512;
  check::Random random(7);
  std::vector<uint16_t> x(static_cast<size_t>(max_rows) * k);
  for (int r = 0; r < max_rows; ++r) {
    const double scale = std::ldexp(1.0, random.below(12) - 6);
    for (int c = 0; c < k; ++c)
      x[static_cast<size_t>(r) * k + c] = r == 3 ? 0 : check::bf16_bits(static_cast<float>(random.normal() * scale));
  }
  check::Device<uint16_t> dx(x);
  check::Device<uint8_t> packed(packed_bytes(max_rows, k));
  packed.poison();
  check::Device<float> y(static_cast<size_t>(max_rows) * n);
  std::vector<float> all;
  double worst = 0;
  for (int i = static_cast<int>(std::size(kRows)) - 1; i >= 0; --i) {
    const int rows = kRows[i];
    y.poison();
    pack_activations(dx.p, rows, k, packing_of(format, rows), nullptr, packed.p, nullptr);
    linear(device.w, packed.p, rows, {y.p, Output::kFp32}, nullptr);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<float> got = y.get();
    if (all.empty()) {
      all = got;
      for (int s = 0; s < 200; ++s) {
        const int r = s < 20 ? s : random.below(rows), o = s % 3 == 0 ? n - 1 - s / 3 % n : random.below(n);
        double sum = 0, magnitude = 0;
        for (int b = 0; b < k; b += 32) {
          double amax = 0;
          for (int c = b; c < b + 32; ++c)
            amax = std::fmax(amax, std::fabs(check::bf16_value(x[static_cast<size_t>(r) * k + c])));
          for (int c = b; c < b + 32; ++c) {
            double v = check::bf16_value(x[static_cast<size_t>(r) * k + c]);
            if (format != WeightFormat::kBf16) v = fq8(v, amax);
            sum += v * w.values[static_cast<size_t>(o) * k + c];
            magnitude += std::fabs(v * w.values[static_cast<size_t>(o) * k + c]);
          }
        }
        const double error = std::fabs(sum - got[static_cast<size_t>(r) * n + o]) / (magnitude + 1e-30);
        worst = std::fmax(worst, error);
        CHECK(error < 2e-6, "%s n=%d k=%d row %d out %d: expected %.9g got %.9g", name(format), n, k, r, o, sum,
              got[static_cast<size_t>(r) * n + o]);
      }
    }
    const bool equal = std::memcmp(got.data(), all.data(), sizeof(float) * static_cast<size_t>(rows) * n) == 0;
    CHECK(equal, "%s n=%d k=%d: %d rows differ in bits from 512 rows", name(format), n, k, rows);
    // The bf16 output is the rounded fp32 output.
    check::Device<uint16_t> yb(static_cast<size_t>(rows) * n);
    linear(device.w, packed.p, rows, {yb.p, Output::kBf16}, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint16_t> b = yb.get();
    size_t wrong = 0;
    for (size_t e = 0; e < b.size(); ++e) wrong += b[e] != check::bf16_bits(got[e]);
    CHECK(wrong == 0, "%s n=%d k=%d rows=%d: %zu bf16 outputs are not the rounded sums", name(format), n, k, rows,
          wrong);
  }
  std::printf("%s n=%d k=%d: largest error %.2g of the sum of magnitudes\n", name(format), n, k, worst);
}

void test_grouped(WeightFormat format, int n, int k) {
  const int experts = 5;
  std::vector<Weights> w;
  std::vector<uint8_t> codes, scales;
  for (int e = 0; e < experts; ++e) {
    w.push_back(make(format, n, k, 900 + e));
    codes.insert(codes.end(), w[e].codes.begin(), w[e].codes.end());
    scales.insert(scales.end(), w[e].scales.begin(), w[e].scales.end());
  }
  const OnDevice device(format, n, k, experts, codes, scales);
  const int counts[experts] = {3, 0, 130, 8, 17};
  check::Random random(11);
  const int source_rows = 200;
  std::vector<uint16_t> x(static_cast<size_t>(source_rows) * k);
  for (uint16_t& v : x) v = check::bf16_bits(static_cast<float>(random.normal()));
  check::Device<uint16_t> dx(x);
  std::vector<float> first;
  for (int per_tile : {8, 16, 32, 64, 128}) {
    std::vector<int32_t> source;
    std::vector<GroupTile> tiles;
    std::vector<int> real;  // packed row of each real row
    random = check::Random(13);
    for (int e = 0; e < experts; ++e) {
      const int start = static_cast<int>(source.size());
      for (int i = 0; i < counts[e]; ++i)
        real.push_back(static_cast<int>(source.size())), source.push_back(random.below(source_rows));
      while (source.size() % 8 != 0) source.push_back(-1);
      for (int i = 0; i < counts[e]; i += per_tile) tiles.push_back({e, start + i, std::min(per_tile, counts[e] - i)});
    }
    check::Device<int32_t> dsource(source);
    check::Device<GroupTile> dtiles(tiles);
    check::Device<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
    check::Device<uint8_t> packed(packed_bytes(static_cast<int64_t>(source.size()), k));
    check::Device<float> y(source.size() * n), alone(static_cast<size_t>(n));
    y.poison();
    pack_activations(dx.p, static_cast<int64_t>(source.size()), k, packing_of(format, per_tile), dsource.p, packed.p,
                     nullptr);
    linear_grouped(device.w, packed.p, dtiles.p, count.p, static_cast<int>(tiles.size()) + 3, per_tile,
                   {y.p, Output::kFp32}, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    std::vector<float> got;
    const std::vector<float> raw = y.get();
    for (int r : real)
      got.insert(got.end(), raw.begin() + static_cast<int64_t>(r) * n, raw.begin() + static_cast<int64_t>(r + 1) * n);
    if (first.empty()) {
      first = got;
      int at = 0;
      for (int e = 0; e < experts; ++e) {
        for (int i = 0; i < counts[e]; ++i, ++at) {
          if (i % 7 != 0) continue;
          check::Device<uint8_t> one(packed_bytes(1, k));
          pack_activations(static_cast<uint16_t*>(dx.p) + static_cast<int64_t>(source[real[at]]) * k, 1, k,
                           packing_of(format, 1), nullptr, one.p, nullptr);
          linear(device.one(e), one.p, 1, {alone.p, Output::kFp32}, nullptr);
          CUDA_OK(cudaDeviceSynchronize());
          CHECK(std::memcmp(alone.get().data(), &got[static_cast<size_t>(at) * n], sizeof(float) * n) == 0,
                "grouped %s expert %d row %d differs from the layer alone", name(format), e, i);
        }
      }
    }
    size_t different = 0, at = 0;
    for (size_t i = first.size(); i-- > 0;) {
      if (std::memcmp(&first[i], &got[i], sizeof(float)) != 0) ++different, at = i;
    }
    CHECK(different == 0,
          "grouped %s n=%d k=%d: tiles of %d rows differ in %zu of %zu values from tiles of 8, first in row %zu, "
          "output %zu",
          name(format), n, k, per_tile, different, first.size(), at / n, at % n);
  }
}

// linear_batched: bit-equal to one call a matrix, with inputs of their own and with one input for all.
void test_batched(WeightFormat format, int n, int k) {
  constexpr int kCount = 3;
  std::vector<uint8_t> codes, scales;
  for (int i = 0; i < kCount; ++i) {
    const Weights w = make(format, n, k, 90 + i);
    codes.insert(codes.end(), w.codes.begin(), w.codes.end());
    scales.insert(scales.end(), w.scales.begin(), w.scales.end());
  }
  const OnDevice device(format, n, k, kCount, codes, scales);
  check::Random random(3);
  for (int rows : {1, 5, 16, 20, 70, 200, 300}) {
    std::vector<uint16_t> x(static_cast<size_t>(rows) * kCount * k);
    for (uint16_t& v : x) v = check::bf16_bits(static_cast<float>(random.normal()));
    check::Device<uint16_t> dx(x);
    for (bool shared : {false, true}) {
      check::Device<uint8_t> packed(packed_bytes(kCount * group_rows(rows), k)), one(packed_bytes(rows, k));
      check::Device<float> y(static_cast<size_t>(rows) * kCount * n), alone(static_cast<size_t>(rows) * n);
      y.poison();
      pack_activations(dx.p, rows, k, packing_of(format, rows), nullptr, packed.p, nullptr, kCount * k,
                       shared ? 1 : kCount, k);
      linear_batched(device.w, kCount, packed.p, rows, shared ? 0 : group_rows(rows), {y.p, Output::kFp32, kCount * n},
                     n, nullptr);
      CUDA_OK(cudaDeviceSynchronize());
      const std::vector<float> got = y.get();
      for (int i = 0; i < kCount; ++i) {
        pack_activations(dx.p + (shared ? 0 : i * k), rows, k, packing_of(format, rows), nullptr, one.p, nullptr,
                         kCount * k);
        linear(device.one(i), one.p, rows, {alone.p, Output::kFp32}, nullptr);
        CUDA_OK(cudaDeviceSynchronize());
        const std::vector<float> expected = alone.get();
        bool same = true;
        for (int r = 0; r < rows; ++r)
          same = same && std::memcmp(&expected[static_cast<size_t>(r) * n],
                                     &got[(static_cast<size_t>(r) * kCount + i) * n], sizeof(float) * n) == 0;
        CHECK(same, "batched %s n=%d k=%d rows=%d: matrix %d differs from the layer alone", name(format), n, k, rows,
              i);
      }
    }
  }
}

}  // namespace

int main() {
  if (!check::device_or_skip()) return 0;
  for (WeightFormat f : {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16}) {
    test_format(f, 64, 128);
    test_format(f, 192, 256);
    test_format(f, 1024, 384);
    test_format(f, 512, 5120);
    test_format(f, 8576, 2432);  // 512 rows: one CTA adds the quarters of K itself
    test_format(f, f == WeightFormat::kBf16 ? 24 : 1000, 2304);
  }
  // The kernel of prefill on a GPU of 132 multiprocessors: 512 rows in tiles of 256 and (8576, above as well) of 192.
  test_format(WeightFormat::kFp8, 8448, 256);
  test_format(WeightFormat::kFp8, 8440, 2560);
  test_format(WeightFormat::kFp8, 8576, 256);
  test_grouped(WeightFormat::kFp4, 256, 384);
  test_grouped(WeightFormat::kFp4, 2304, 5120);
  test_grouped(WeightFormat::kFp8, 128, 256);
  test_batched(WeightFormat::kFp8, 256, 512);
  test_batched(WeightFormat::kFp8, 1024, 4096);
  test_batched(WeightFormat::kFp8, 4096, 384);
  test_batched(WeightFormat::kFp8, 4096, 2560);
  test_batched(WeightFormat::kFp4, 96, 384);
  return check::verdict("linear_test");
}
