#include "checkpoint/engram_hash.h"

#include <gtest/gtest.h>

#include "checkpoint/config.h"

namespace deepinfer::checkpoint {
namespace {

// The first outputs of NumPy's default_rng (spec/model.md 20).
TEST(NumpyRng, RawOutputs) {
  NumpyRng a(10007);
  for (uint64_t want : {15187255322829266483u, 959186003677246517u, 7126631698937927467u, 14663106486854050627u})
    EXPECT_EQ(a.next(), want);
  NumpyRng b(140098);
  for (uint64_t want : {13420388419549774097u, 10208617735032736636u, 6128116274024149523u}) EXPECT_EQ(b.next(), want);
}

TEST(Engram, OfficialConstants) {
  const ModelConfig c = official_config();
  ASSERT_EQ(c.engram.size(), 2u);
  EXPECT_EQ(c.engram[0].multipliers,
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(c.engram[1].multipliers,
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  const int64_t first[] = {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                           277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463};
  const int64_t second[] = {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                            711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889};
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(c.engram[0].primes[i], 16000000 + first[i]);
    EXPECT_EQ(c.engram[1].primes[i], 16000000 + second[i]);
  }
  EXPECT_EQ(c.engram[0].rows, 384006168);
  EXPECT_EQ(c.engram[1].rows, 384016682);
}

TEST(Engram, ConstantsOfTheSmallModels) {
  const ModelConfig c = tiny_config();
  EXPECT_EQ(c.engram[0].primes, (std::vector<int64_t>{1009, 1013, 1019, 1021, 1031, 1033}));
  EXPECT_EQ(c.engram[1].primes, (std::vector<int64_t>{1039, 1049, 1051, 1061, 1063, 1069}));
  EXPECT_EQ(c.engram[0].multipliers,
            (std::vector<int64_t>{1853913003275055, 117088135214507, 869950158561757, 1789929991071049}));
  EXPECT_EQ(c.engram[1].multipliers,
            (std::vector<int64_t>{665943142243495, 1975531624133523, 263163075593545, 1700650575290549}));
  EXPECT_EQ(engram_multipliers(1, 6518, 4),
            (std::vector<int64_t>{1165024188618383, 73579779355419, 546688531676735, 1124816392056923}));
  EXPECT_EQ(engram_multipliers(3, 6518, 4),
            (std::vector<int64_t>{418487743269309, 1241450986874947, 165375261986983, 1068711990854569}));
}

// Row numbers of the vectors in section 20, from the constants of the config.
std::vector<int64_t> rows(const EngramInfo& e, int64_t heads, const std::vector<int64_t>& classes) {
  std::vector<int64_t> out;
  uint64_t h = static_cast<uint64_t>(classes[0] * e.multipliers[0]);
  for (size_t k = 1; k < classes.size(); ++k) {
    h ^= static_cast<uint64_t>(classes[k] * e.multipliers[k]);
    for (int64_t a = 0; a < heads; ++a) {
      const size_t column = (k - 1) * static_cast<size_t>(heads) + static_cast<size_t>(a);
      out.push_back(static_cast<int64_t>(h % static_cast<uint64_t>(e.primes[column])) + e.offsets[column]);
    }
  }
  return out;
}

TEST(Engram, RowVectors) {
  const std::vector<int64_t> classes = {13, 11, 7, 5};
  const ModelConfig c = official_config();
  EXPECT_EQ(
      rows(c.engram[0], 8, classes),
      (std::vector<int64_t>{4449004,   17571959,  46401655,  53039289,  78999797,  82320982,  107981968, 124752916,
                            128589888, 149698784, 168612388, 191210133, 192700258, 217447344, 238569718, 240777402,
                            268272278, 283332992, 296780604, 319505055, 334654785, 341379115, 357302990, 369904649}));
  EXPECT_EQ(
      rows(c.engram[1], 8, classes),
      (std::vector<int64_t>{15143247,  22529278,  37793046,  53302599,  69057693,  89259704,  103058958, 125960436,
                            134948014, 147996107, 160568522, 186665204, 198000652, 219433471, 239157167, 240398986,
                            267543071, 280694543, 301590959, 305974983, 327383740, 337689011, 365818642, 378459855}));
  const ModelConfig t = tiny_config();
  EXPECT_EQ(rows(t.engram[0], 2, classes), (std::vector<int64_t>{745, 1387, 2995, 3761, 4448, 6026}));
  EXPECT_EQ(rows(t.engram[1], 2, classes), (std::vector<int64_t>{704, 1666, 2192, 3370, 4659, 6150}));
  EXPECT_EQ(rows(t.engram[0], 2, {13, 2, 2, 2}), (std::vector<int64_t>{821, 1847, 2553, 3566, 4942, 5392}));
  EXPECT_EQ(rows(t.engram[1], 2, {13, 2, 2, 2}), (std::vector<int64_t>{644, 1413, 2235, 3490, 5186, 5980}));
}

}  // namespace
}  // namespace deepinfer::checkpoint
