// Row kernels of the fast CPU backend: records against the codecs, sums against double, and every instruction set
// against the other, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {
namespace {

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> out;
  for (const Kernels* k : {avx512_kernels(), avx2_kernels()}) {
    if (k != nullptr) out.push_back(k);
  }
  return out;
}

std::vector<float> random_row(int64_t n, uint32_t seed, double spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> x(n);
  for (float& v : x) v = numeric::round_bf16(static_cast<float>(normal(random) * std::exp(spread * normal(random))));
  return x;
}

// Steps of bf16 between two values of one sign.
int64_t steps(float a, float b) {
  const auto code = [](float x) {
    const uint16_t h = numeric::float_to_bf16(x);
    return h & 0x8000 ? -static_cast<int64_t>(h & 0x7fff) : static_cast<int64_t>(h);
  };
  return std::abs(code(a) - code(b));
}

class Collected {
 public:
  void add(const std::vector<float>& v) { all_.insert(all_.end(), v.begin(), v.end()); }
  bool operator==(const Collected& o) const {
    return all_.size() == o.all_.size() && std::memcmp(all_.data(), o.all_.data(), all_.size() * sizeof(float)) == 0;
  }

 private:
  std::vector<float> all_;
};

TEST(FastRows, RecordsAreDecodedExactly) {
  for (const int64_t d : {32, 64, 96, 512}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> x = random_row(d, seed, seed % 4);
      std::vector<uint8_t> window(numeric::window_record_bytes(d)), entry(numeric::entry_record_bytes(d));
      numeric::encode_window_record(std::span<const float>(x), window.data());
      numeric::encode_entry_record(std::span<const float>(x), entry.data());
      std::vector<float> w(d), e(d);
      numeric::decode_window_record(window.data(), std::span<float>(w));
      numeric::decode_entry_record(entry.data(), std::span<float>(e));
      for (const Kernels* k : tables()) {
        std::vector<uint16_t> got(d);
        k->window_words(window.data(), d, got.data());
        for (int64_t i = 0; i < d; ++i) ASSERT_EQ(numeric::bf16_to_float(got[i]), w[i]) << k->isa << " " << i;
        k->entry_words(entry.data(), d, got.data());
        for (int64_t i = 0; i < d; ++i) ASSERT_EQ(numeric::bf16_to_float(got[i]), e[i]) << k->isa << " " << i;
      }
    }
  }
}

TEST(FastRows, PairsOfRows) {
  for (const int64_t keys : {1, 2, 7}) {
    for (const int64_t channels : {32, 64}) {
      std::vector<uint16_t> v(keys * 80);
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<uint16_t>(i * 40503);
      for (const Kernels* k : tables()) {
        std::vector<uint32_t> out((keys + 1) / 2 * channels);
        k->pair_rows(v.data(), 80, keys, channels, out.data());
        for (int64_t t = 0; t < (keys + 1) / 2; ++t) {
          for (int64_t c = 0; c < channels; ++c) {
            const uint32_t odd = 2 * t + 1 < keys ? v[(2 * t + 1) * 80 + c] : 0;
            ASSERT_EQ(out[t * channels + c], v[2 * t * 80 + c] | odd << 16) << k->isa;
          }
        }
      }
    }
  }
}

TEST(FastRows, Softmax) {
  constexpr int64_t kKeys = 37, kLanes = 32;
  const std::vector<float> scores = random_row(kKeys * kLanes, 3, 2), sink = random_row(kLanes, 4);
  Collected first;
  for (const Kernels* k : tables()) {
    std::vector<uint32_t> p((kKeys + 1) / 2 * kLanes);
    std::vector<float> den(kLanes);
    k->softmax({scores.data(), kKeys, kLanes, 0.25f, sink.data(), p.data(), den.data()});
    std::vector<float> all = den;
    for (int64_t l = 0; l < kLanes; ++l) {
      double top = -1e30, sum = 0;
      for (int64_t t = 0; t < kKeys; ++t) top = std::max<double>(top, scores[t * kLanes + l] * 0.25f);
      for (int64_t t = 0; t < kKeys; ++t) {
        const double e = std::exp(double{scores[t * kLanes + l] * 0.25f} - top);
        sum += e;
        const uint32_t pair = p[t / 2 * kLanes + l];
        const float got = numeric::bf16_to_float(static_cast<uint16_t>(t % 2 ? pair >> 16 : pair));
        all.push_back(got);
        if (e > 1e-37) {
          EXPECT_LE(steps(got, static_cast<float>(e)), 1) << k->isa;
        } else {
          EXPECT_LE(got, 1e-37f);
        }
      }
      EXPECT_EQ(p[kKeys / 2 * kLanes + l] >> 16, 0u);
      sum += std::exp(double{sink[l]} - top);
      EXPECT_NEAR(den[l], sum, 2e-6 * sum) << k->isa;
    }
    Collected c;
    c.add(all);
    if (k == tables()[0]) first = c;
    EXPECT_TRUE(c == first) << k->isa;
  }
}

TEST(FastRows, SwigluSaturatesAndClamps) {
  std::vector<float> gate = random_row(70, 5, 2), up = random_row(70, 6, 2);
  const float extremes[] = {0.0f, -0.0f, 1e30f, -1e30f, 88.5f, -88.5f, -200.0f, 1e-38f, 12.0f};
  for (size_t i = 0; i < std::size(extremes); ++i) gate[i] = extremes[i];
  Collected first;
  for (const Kernels* k : tables()) {
    std::vector<float> out(70);
    k->swiglu(gate.data(), up.data(), 70, 10.0f, 0.75f, out.data());
    for (int i = 0; i < 70; ++i) {
      const double g = std::min<double>(gate[i], 10), u = std::clamp<double>(up[i], -10, 10);
      const double want = g / (1 + std::exp(-g)) * u * 0.75;
      if (std::abs(want) > 1e-30) {
        EXPECT_LE(steps(out[i], static_cast<float>(want)), 1) << k->isa << " gate " << gate[i];
      } else {
        EXPECT_LE(std::abs(out[i]), 1e-6) << k->isa << " gate " << gate[i];
      }
    }
    Collected c;
    c.add(out);
    if (k == tables()[0]) first = c;
    EXPECT_TRUE(c == first) << k->isa;
  }
}

TEST(FastRows, NormCollapseExpandCombine) {
  Collected first;
  for (const Kernels* k : tables()) {
    Collected c;
    for (const int64_t n : {32, 48, 70, 640}) {
      const std::vector<float> x = random_row(4 * n, 7), w = random_row(n, 8), y = random_row(n, 9),
                               pre = random_row(4, 10), comb = random_row(16, 11), routed = random_row(3 * n, 12);
      std::vector<float> out(n), sum(n), streams = x;
      k->norm(x.data(), w.data(), n, 1e-20f, out.data());
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(n));
      for (int64_t i = 0; i < n; ++i) EXPECT_LE(steps(out[i], static_cast<float>(w[i] * (x[i] * scale))), 1);
      c.add(out);
      k->collapse_norm(x.data(), pre.data(), 4, n, w.data(), 1e-20f, sum.data(), out.data());
      for (int64_t i = 0; i < n; ++i) {
        double v = 0, magnitude = 0;
        for (int s = 0; s < 4; ++s) {
          v += double{pre[s]} * x[s * n + i];
          magnitude += std::abs(double{pre[s]} * x[s * n + i]);
        }
        EXPECT_NEAR(sum[i], v, magnitude * 0x1p-8);
      }
      c.add(sum);
      c.add(out);
      k->expand(streams.data(), y.data(), pre.data(), comb.data(), 4, n);
      for (int64_t i = 0; i < n; ++i) {
        for (int s = 0; s < 4; ++s) {
          double v = double{pre[s]} * y[i], magnitude = std::abs(v);
          for (int j = 0; j < 4; ++j) {
            v += double{comb[j * 4 + s]} * x[j * n + i];
            magnitude += std::abs(double{comb[j * 4 + s]} * x[j * n + i]);
          }
          EXPECT_NEAR(streams[s * n + i], v, magnitude * 0x1p-8);
        }
      }
      c.add(streams);
      k->combine(y.data(), routed.data(), 3, n, out.data());
      for (int64_t i = 0; i < n; ++i) {
        const double v = double{y[i]} + routed[i] + routed[n + i] + routed[2 * n + i];
        EXPECT_NEAR(out[i], v, 0x1p-8 * (std::abs(v) + 1e-5));
      }
      c.add(out);
    }
    if (k == tables()[0]) first = c;
    EXPECT_TRUE(c == first) << k->isa;
  }
}

TEST(FastRows, Mix) {
  constexpr int64_t kWidth = 1024;
  const std::vector<float> fn = random_row(24 * kWidth, 13), x = random_row(kWidth, 14), scale = {0.02f, 0.03f, 0.01f},
                           base = random_row(24, 15);
  Collected first;
  for (const Kernels* k : tables()) {
    std::vector<double> m(25);
    k->mix_products(fn.data(), 24, kWidth, x.data(), m.data());
    for (int r = 0; r < 25; ++r) {
      double want = 0;
      for (int64_t i = 0; i < kWidth; ++i) want += double{r < 24 ? fn[r * kWidth + i] : x[i]} * x[i];
      EXPECT_NEAR(m[r], want, 1e-9 * (std::abs(want) + 1));
    }
    std::vector<float> all(24);
    k->mix_finish({m.data(), scale.data(), base.data(), 20, 1e-6, all.data(), all.data() + 4, all.data() + 8});
    for (int j = 0; j < 4; ++j) {
      EXPECT_NEAR(all[j], 1 / (1 + std::exp(-(m[j] * scale[0] + base[j]))) + 1e-6, 1e-6);
      double column = 0;
      for (int i = 0; i < 4; ++i) column += all[8 + 4 * i + j];
      EXPECT_NEAR(column, 1, 1e-5);
    }
    Collected c;
    c.add(all);
    if (k == tables()[0]) first = c;
    EXPECT_TRUE(c == first) << k->isa;
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
