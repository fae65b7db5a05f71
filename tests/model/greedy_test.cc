// greedy.json: the bundled model's continuations on the reference, all prompts in one batch, plain and speculative.
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/model/support.h"
#include "tests/support/golden/greedy.h"

namespace deepinfer {
namespace {

class Greedy : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::vector<testing::GreedyPrompt>> read =
        testing::read_greedy(std::string(DEEPINFER_TEST_DATA) + "/model/greedy.json");
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    prompts_ = read.value();
    ASSERT_EQ(prompts_.size(), 12u);
    Result<std::unique_ptr<model::Model>> model = testing::greedy_model(
        testing::open_checkpoint("tiny-trained"),
        ops::make_reference_ops(ops::ReferenceMode::kExact, available_cores()), static_cast<int>(prompts_.size()));
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(model).value();
  }

  std::vector<testing::GreedyPrompt> prompts_;
  std::unique_ptr<model::Model> model_;
};

TEST_F(Greedy, Plain) {
  const Result<std::vector<std::vector<int32_t>>> got = testing::greedy_plain(*model_, prompts_);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  for (size_t i = 0; i < prompts_.size(); ++i) EXPECT_EQ(got.value()[i], prompts_[i].continuation) << "prompt " << i;
}

TEST_F(Greedy, Speculative) {
  const Result<std::vector<testing::SpeculativeRun>> got = testing::greedy_speculative(*model_, prompts_);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const testing::SpeculativeRun& run = got.value()[i];
    EXPECT_EQ(run.tokens, prompts_[i].continuation) << "prompt " << i;
    EXPECT_EQ(run.accepted, prompts_[i].accepted) << "prompt " << i;
    ASSERT_EQ(run.confidence.size(), prompts_[i].confidence.size()) << "prompt " << i;
    for (size_t r = 0; r < run.confidence.size(); ++r) {
      for (size_t j = 0; j < run.confidence[r].size(); ++j)
        EXPECT_NEAR(run.confidence[r][j], prompts_[i].confidence[r][j], 0.5e-4 + 1e-9);
    }
  }
}

}  // namespace
}  // namespace deepinfer
