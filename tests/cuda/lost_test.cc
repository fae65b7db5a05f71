// A GPU that does not answer any more: a sentence within the limit, no call that waits, a new start when it is back.
#include <gtest/gtest.h>

#include <chrono>

#include "ops/cuda/make.h"
#include "tests/cuda/hog.h"
#include "tests/model/offload_support.h"
#include "tests/model/support.h"

namespace deepinfer {
namespace {

using model::Model;
using testing::all_logits;

constexpr double kLimit_s = 0.5;

std::unique_ptr<Model> make_model(const ops::cuda::Options& options) {
  Result<std::unique_ptr<ops::Ops>> ops = ops::cuda::make(0, options);
  EXPECT_TRUE(ops.ok()) << ops.status().to_string();
  return Model::create(testing::open_checkpoint("tiny-random"), std::move(ops).value(), testing::small_model(nullptr))
      .value();
}

TEST(LostGpu, EndsWithASentenceAndNeverHangs) {
  std::unique_ptr<Model> m = make_model({.step_limit_s = kLimit_s});
  const Result<std::vector<float>> expected = all_logits(*m);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  {
    const testing::GpuHog hog;
    ASSERT_TRUE(hog.holds());
    const auto begin = std::chrono::steady_clock::now();
    for (int again = 0; again < 3; ++again) {
      const Result<std::vector<float>> got = all_logits(*m);
      ASSERT_FALSE(got.ok());
      EXPECT_EQ(got.status().code(), Code::kUnavailable);
      EXPECT_NE(got.status().message().find("taken for lost"), std::string::npos) << got.status().message();
      EXPECT_NE(got.status().message().find("--device cpu"), std::string::npos) << got.status().message();
    }
    std::printf("three steps on a lost GPU took %.2f s, the limit is %.2f s\n",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), kLimit_s);
    std::vector<std::byte> page(256);
    EXPECT_FALSE(m->ops().kv_read(m->kv_memory().pages, page).ok());
    EXPECT_FALSE(m->ops().kv_write(m->kv_memory().pages, page).ok());
    m->ops().kv_copy(m->kv_memory().pages, m->kv_memory().pages + 256, 256);
  }
  EXPECT_FALSE(all_logits(*m).ok()) << "what was queued may have run half: it stays lost";
  m.reset();
  const Result<std::vector<float>> anew = all_logits(*make_model({}));
  ASSERT_TRUE(anew.ok()) << anew.status().to_string();
  EXPECT_TRUE(anew.value() == expected.value());
}

TEST(LostGpu, AModelGoesWhileItsGpuDoesNotAnswer) {
  std::unique_ptr<Model> m = make_model({.step_limit_s = kLimit_s});
  ASSERT_TRUE(all_logits(*m).ok());
  const testing::GpuHog hog;
  ASSERT_TRUE(hog.holds());
  EXPECT_FALSE(all_logits(*m).ok());
  m.reset();
}

}  // namespace
}  // namespace deepinfer
