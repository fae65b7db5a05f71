// Every golden tensor of the three models against the reference backend (spec/model.md 4.10, fixtures/model/README.md).
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "tests/model/support.h"
#include "tests/support/golden/golden_runs.h"

namespace deepinfer {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, EveryTensorOnTheReference) {
  if (testing::kSanitized && GetParam() != std::string("tiny-random")) GTEST_SKIP() << "sanitizer build";
  const Result<testing::GoldenFile> golden =
      testing::GoldenFile::open(std::string(DEEPINFER_TEST_DATA) + "/model/" + GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().to_string();
  testing::GoldenRunner runner(golden.value(), testing::open_checkpoint(GetParam()), available_cores(),
                               [](const testing::GoldenCase& c) {
                                 EXPECT_TRUE(c.ok) << c.name << ": expected " << c.expected << ", got " << c.got;
                               });
  runner.run_exact();
  runner.run_off();
  runner.finish();
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::Values("tiny-random", "tiny-trained", "tiny-wide-random"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace deepinfer
