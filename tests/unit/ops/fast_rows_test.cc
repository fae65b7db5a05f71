// Row kernels of the fast CPU backend: records against the codecs, sums against double, and every instruction set
// against the other, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/fast/backend.h"
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

// The path of few heads gives the bits of the general one, on every instruction set.
TEST(FastRows, FewHeadsAttendAsMany) {
  for (const int64_t channels : {32, 64, 96}) {
    for (const int64_t heads : {1, 3, 8}) {
      for (const int64_t keys : {1, 2, 3, 31, 32, 33, 40, 127, 128}) {
        const std::vector<float> q = random_row(heads * channels, static_cast<uint32_t>(keys), 0.7);
        const std::vector<float> v = random_row(keys * channels, static_cast<uint32_t>(heads), 0.7);
        const std::vector<float> sink = random_row(heads, 5);
        std::vector<uint16_t> words;
        for (float x : v) words.push_back(numeric::float_to_bf16(x));
        std::vector<std::vector<float>> outs;
        for (const Kernels* k : tables()) {
          Kernels general = *k;
          general.few_heads = nullptr;
          for (const Kernels& table : {*k, general}) {
            std::vector<float>& out = outs.emplace_back(heads * channels + 16, -7.0f);
            attend_heads(table, {q.data(), heads, channels, words.data(), keys, sink.data(), out.data()});
          }
        }
        for (const std::vector<float>& out : outs) {
          ASSERT_EQ(std::memcmp(out.data(), outs[0].data(), out.size() * sizeof(float)), 0)
              << channels << " channels, " << heads << " heads, " << keys << " keys";
        }
      }
    }
  }
}

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
    k->mix_products({fn.data(), 24, kWidth, kWidth, 8}, x.data(), 1, m.data());
    for (int r = 0; r < 25; ++r) {
      double want = 0;
      for (int64_t i = 0; i < kWidth; ++i) want += double{r < 24 ? fn[r * kWidth + i] : x[i]} * x[i];
      EXPECT_NEAR(m[r], want, 1e-9 * (std::abs(want) + 1));
    }
    std::vector<float> all(24);
    const std::vector<double> products = m;
    const MixCall one = {m.data(), scale.data(), base.data(), 20, 1e-6, all.data(), all.data() + 4, all.data() + 8};
    k->mix_finish(&one, 1);
    for (int n = 2; n <= 5; ++n) {
      std::vector<std::vector<float>> rows(n, std::vector<float>(24));
      std::vector<std::vector<double>> of_row(n, products);
      std::vector<MixCall> calls;
      for (int i = 0; i < n; ++i) {
        if (i > 0) of_row[i][9] += i;  // rows differ; the first is the one above
        float* to = rows[i].data();
        calls.push_back({of_row[i].data(), scale.data(), base.data(), 20, 1e-6, to, to + 4, to + 8});
      }
      k->mix_finish(calls.data(), n);
      EXPECT_EQ(rows[0], all) << k->isa << " " << n;
      for (int i = 1; i < n; ++i) EXPECT_NE(rows[i], rows[0]);
      std::vector<float> alone(24);
      of_row[n - 1] = products;
      of_row[n - 1][9] += n - 1;
      const MixCall last = {of_row[n - 1].data(), scale.data(),     base.data(),       20, 1e-6,
                            alone.data(),         alone.data() + 4, alone.data() + 8};
      k->mix_finish(&last, 1);
      EXPECT_EQ(rows[n - 1], alone) << k->isa << " " << n;
    }
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

TEST(FastRows, MixOfSeveralRowsIsThatOfEach) {
  constexpr int64_t kWidth = 264, kRows = 26;
  const std::vector<float> fn = random_row(kRows * kWidth, 16), x = random_row(7 * kWidth, 17);
  std::vector<double> first;
  for (const Kernels* k : tables()) {
    std::vector<double> alone(7 * (kRows + 1));
    for (int64_t i = 0; i < 7; ++i)
      k->mix_products({fn.data(), kRows, kWidth, kWidth, 8}, x.data() + i * kWidth, 1, alone.data() + i * (kRows + 1));
    if (first.empty()) first = alone;
    EXPECT_EQ(alone, first) << k->isa;
    for (int64_t n = 2; n <= 7; ++n) {
      std::vector<double> together(n * (kRows + 1));
      k->mix_products({fn.data(), kRows, kWidth, kWidth, 8}, x.data(), n, together.data());
      EXPECT_TRUE(std::equal(together.begin(), together.end(), alone.begin())) << k->isa << " " << n;
    }
    // fn in eights of columns.
    std::vector<float> eights(fn.size());
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kWidth; ++c) eights[c / 8 * 8 * kRows + r * 8 + c % 8] = fn[r * kWidth + c];
    }
    for (int64_t n = 1; n <= 7; ++n) {
      std::vector<double> together(n * (kRows + 1));
      k->mix_products({eights.data(), kRows, kWidth, 8, 8 * kRows}, x.data(), n, together.data());
      EXPECT_TRUE(std::equal(together.begin(), together.end(), alone.begin())) << k->isa << " " << n;
    }
  }
}

TEST(FastRows, RotateRoundsLikeTheDefinition) {
  for (const Kernels* k : tables()) {
    for (const int64_t half : {8, 16, 32}) {
      for (const bool inverse : {false, true}) {
        const int64_t d = 2 * half + 16, heads = 3;
        std::vector<float> x = random_row(heads * d, 18, 2), cos(half), sin(half);
        x[d - 1] = std::numeric_limits<float>::quiet_NaN();
        for (int64_t j = 0; j < half; ++j) {
          cos[j] = std::cos(static_cast<float>(j) * 0.7f);
          sin[j] = std::sin(static_cast<float>(j) * 0.7f);
        }
        std::vector<float> want = x;
        for (int64_t h = 0; h < heads; ++h) {
          float* pairs = want.data() + h * d + d - 2 * half;
          for (int64_t j = 0; j < half; ++j) {
            const float a = pairs[2 * j], b = pairs[2 * j + 1], s = inverse ? -sin[j] : sin[j];
            pairs[2 * j] = numeric::round_bf16(a * cos[j] - b * s);
            pairs[2 * j + 1] = numeric::round_bf16(a * s + b * cos[j]);
          }
        }
        k->rotate(x.data(), heads, d, cos.data(), sin.data(), half, inverse);
        for (size_t i = 0; i < x.size(); ++i) {
          if (std::isnan(want[i])) {
            ASSERT_TRUE(std::isnan(x[i]));
          } else {
            ASSERT_EQ(std::memcmp(&x[i], &want[i], sizeof want[i]), 0) << k->isa << " " << half << " " << i;
          }
        }
      }
    }
  }
}

TEST(FastRows, IndexQueriesAreThoseOfTheCodec) {
  constexpr int64_t kGroups = 40;
  std::vector<float> x = random_row(kGroups * kIndexGroup, 19, 3);
  const float special[] = {0.0f,  -0.0f, 0.25f, -0.25f, 0.75f,  1.25f,  1.75f,  2.5f,   3.5f,    5.0f,
                           -5.0f, 6.0f,  -0.1f, 1e-38f, -1e38f, 1e-42f, 3e38f, -0.75f, -3.5f, -1.75f};
  for (size_t i = 0; i < std::size(special); ++i) {
    x[i] = special[i];                                                   // beside 3e38
    x[kIndexGroup + i] = i < 14 && i != 13 ? special[i] : 0.0f;          // a scale of 1
  }
  for (int64_t i = 2 * kIndexGroup; i < 3 * kIndexGroup; ++i) x[i] = 0;
  x[3 * kIndexGroup] = std::numeric_limits<float>::quiet_NaN();
  x[4 * kIndexGroup + 31] = -std::numeric_limits<float>::infinity();
  std::vector<float> want = x;
  numeric::fq4i(std::span<float>(want));
  std::vector<uint8_t> packed(x.size() / 2), scales(kGroups);
  numeric::fq4i_encode(std::span<const float>(want), packed.data(), scales.data());
  for (const Kernels* k : tables()) {
    std::vector<float> got = x, factors(kGroups);
    k->fq4i(got.data(), kGroups);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << k->isa;
    std::vector<int8_t> codes(x.size());
    std::vector<int32_t> twelve(kGroups);
    k->query_codes(got.data(), kGroups, codes.data(), factors.data(), twelve.data());
    for (int64_t g = 0; g < kGroups; ++g) {
      EXPECT_EQ(factors[g], numeric::ue8m0_to_float(scales[g]));
      int32_t sum = 0;
      for (int64_t i = 0; i < kIndexGroup; ++i) {
        const uint8_t byte = packed[(g * kIndexGroup + i) / 2];
        const float twice = 2 * numeric::e2m1_to_float(i % 2 == 0 ? numeric::e2m1_low(byte) : numeric::e2m1_high(byte));
        ASSERT_EQ(codes[g * kIndexGroup + i % 2 * (kIndexGroup / 2) + i / 2], twice) << k->isa << " " << g << " " << i;
        sum += static_cast<int32_t>(twice);
      }
      EXPECT_EQ(twelve[g], 12 * sum);
    }
  }
}

TEST(FastRows, EngramSumsKeepTheirLanes) {
  for (const Kernels* k : tables()) {
    for (const int64_t n : {16, 256, 520, 1100}) {
      const std::vector<float> x = random_row(n, 20), key = random_row(n, 21), value = random_row(n, 22, 2);
      std::vector<double> qk(n);
      for (int64_t i = 0; i < n; ++i) qk[i] = double{x[n - 1 - i]} * 0.37;
      double lanes[3][16] = {}, part[3][16] = {}, got[3];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t l = i % 16;
        lanes[0][l] += double{x[i]} * qk[i] * double{key[i]};
        part[1][l] += double{x[i]} * double{x[i]};
        part[2][l] += double{key[i]} * double{key[i]};
        if (i % 512 != 511 && i + 1 != n) continue;
        for (int s = 1; s < 3; ++s) {
          for (int j = 0; j < 16; ++j) lanes[s][j] += std::exchange(part[s][j], 0.0);
        }
      }
      k->engram_sums(x.data(), key.data(), qk.data(), n, got);
      for (int s = 0; s < 3; ++s) {
        double want = 0;
        for (const double v : lanes[s]) want += v;
        EXPECT_EQ(got[s], want) << k->isa << " " << n << " " << s;
      }
      std::vector<float> plain = x;
      k->add(plain.data(), value.data(), n);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(plain[i], value[i] + x[i]) << k->isa;
      std::vector<float> sum = x;
      k->add_gated(sum.data(), value.data(), 0.3f, n);
      for (int64_t i = 0; i < n; ++i) {
        const float product = 0.3f * value[i];
        ASSERT_EQ(sum[i], numeric::round_bf16(x[i] + product)) << k->isa;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
