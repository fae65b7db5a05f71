// Against the figures of spec/model.md 17, and against row after row.
#include "model/work.h"

#include <gtest/gtest.h>

#include "checkpoint/config.h"

namespace deepinfer::model {
namespace {

checkpoint::ModelConfig official() {
  checkpoint::ModelConfig config;
  EXPECT_TRUE(config.complete().ok());
  return config;
}

TEST(Work, OfADecodedTokenIsTheTableOfTheOfficialModel) {
  const WorkCounter counter(official());
  struct Row {
    int32_t context;
    double index, total;
  };
  for (const Row& row : {Row{4096, 0.22e9, 35.7e9}, Row{16384, 0.87e9, 36.4e9}, Row{65536, 1.88e9, 37.4e9},
                         Row{262144, 5.91e9, 41.4e9}, Row{1048576, 22.0e9, 57.5e9}}) {
    const Work w = counter.of({.first_position = row.context - 1, .count = 1, .outputs = 1});
    EXPECT_DOUBLE_EQ(w.linear, 2.0 * 16'129'982'464) << row.context;
    EXPECT_NEAR(w.attention, 3.22e9, 0.005e9) << row.context;
    EXPECT_NEAR(w.index, row.index, 0.006e9 + 0.003 * row.index) << row.context;
    EXPECT_NEAR(w.total(), row.total, 0.05e9) << row.context;
  }
}

TEST(Work, OfARowThatOnlyTheEncoderReads) {
  const WorkCounter counter(official());
  const Work w = counter.of({.first_position = 100, .count = 1, .kind = RowKind::kPrefill, .decoder_begin = 200});
  EXPECT_DOUBLE_EQ(w.linear, 2.0 * 7'895'220'224);
}

TEST(Work, OfManyRowsIsTheSumOfEach) {
  for (const int32_t cut : {0, 130, 260, 700}) {
    const WorkCounter counter(official());
    const Work whole = counter.of({.first_position = 100,
                                   .count = 1200,
                                   .kind = RowKind::kPrefill,
                                   .decoder_begin = cut,
                                   .window_begin = 40,
                                   .outputs = 1200});
    Work sum;
    for (int32_t at = 100; at < 1300; ++at) {
      sum += counter.of({.first_position = at,
                         .count = 1,
                         .kind = RowKind::kPrefill,
                         .decoder_begin = cut,
                         .window_begin = 40,
                         .outputs = 1});
    }
    EXPECT_DOUBLE_EQ(whole.linear, sum.linear);
    EXPECT_DOUBLE_EQ(whole.attention, sum.attention);
    EXPECT_DOUBLE_EQ(whole.index, sum.index);
    EXPECT_GT(sum.index, 0);
  }
}

}  // namespace
}  // namespace deepinfer::model
