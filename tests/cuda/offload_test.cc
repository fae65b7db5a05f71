// Experts and Engram tables outside of GPU memory: the same bits as with all of them on the GPU, whatever fits, with
// experts in host memory and with experts on the SSD; and errors as sentences.
#include <gtest/gtest.h>


#include "checkpoint/store/weight_store.h"
#include "ops/cuda/make.h"
#include "tests/model/offload_support.h"
#include "tests/model/support.h"

namespace deepinfer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::WeightStore;
using model::Model;
using testing::all_logits;

Result<std::unique_ptr<Model>> make_model(std::shared_ptr<const Checkpoint> c, const ops::cuda::Options& options,
                                          std::shared_ptr<WeightStore> store = nullptr) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> made, ops::cuda::make(0, options));
  return Model::create(std::move(c), std::move(made), testing::small_model(std::move(store)));
}

int experts_of(const checkpoint::ModelConfig& c) {
  return static_cast<int>(std::max(c.n_routed_experts, c.has_drafter() ? c.dspark_n_routed_experts : 0));
}

class CudaOffload : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaOffload, HostMemoryGivesTheSameBits) {
  const auto c = testing::open_checkpoint(GetParam());
  const std::unique_ptr<Model> whole = make_model(c, {}).value();
  const Result<std::vector<float>> expected = all_logits(*whole);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  const int least = experts_of(c->config());
  for (const int slots : {least, least + 1, 3 * least}) {
    Result<std::unique_ptr<Model>> m = make_model(c, {.expert_slots_max = slots});
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    for (int round = 0; round < 2; ++round) {  // graphs are recorded in the first
      const Result<std::vector<float>> got = all_logits(*m.value());
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_TRUE(got.value() == expected.value()) << slots << " slots, round " << round;
    }
    const ops::cuda::ExpertTraffic t = ops::cuda::expert_traffic(m.value()->ops());
    EXPECT_EQ(t.slots, slots);
    EXPECT_GT(t.missing, static_cast<uint64_t>(least));
    EXPECT_GE(t.asked, t.missing);
    if (slots == 3 * least) {
      EXPECT_GT(t.asked, t.missing + t.asked / 8);
    }
    std::printf("%s: %d slots, %llu experts asked for, %llu copied\n", GetParam(), slots,
                static_cast<unsigned long long>(t.asked), static_cast<unsigned long long>(t.missing));
  }
}

TEST_P(CudaOffload, TheSsdGivesTheSameBits) {
  const auto c = testing::open_checkpoint(GetParam());
  const Result<std::vector<float>> expected = all_logits(*make_model(c, {}).value());
  ASSERT_TRUE(expected.ok());
  const uint64_t least = checkpoint::least_store_bytes(c->config());
  for (const uint64_t spare : {uint64_t{0}, uint64_t{1} << 22, uint64_t{1} << 30}) {
    Result<std::shared_ptr<WeightStore>> store = WeightStore::open(*c, {.ram_bytes = least + spare});
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    Result<std::unique_ptr<Model>> m = make_model(c, {.expert_slots_max = experts_of(c->config())}, store.value());
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    const Result<std::vector<float>> got = all_logits(*m.value());
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_TRUE(got.value() == expected.value()) << spare << " bytes to spare";
    EXPECT_GT(store.value()->stats().experts.uses, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOffload, ::testing::Values("tiny-random", "tiny-wide-random", "tiny-trained"));

TEST(CudaOffloadLimits, TooFewSlotsAndTooLittleMemoryAreRefused) {
  const auto c = testing::open_checkpoint("tiny-random");
  const Result<std::unique_ptr<Model>> few = make_model(c, {.expert_slots_max = experts_of(c->config()) - 1});
  ASSERT_FALSE(few.ok());
  EXPECT_EQ(few.status().code(), Code::kResourceExhausted);
  EXPECT_NE(few.status().message().find("experts of a layer"), std::string::npos) << few.status().message();
  const Result<std::unique_ptr<Model>> little = make_model(c, {.memory_bytes = 8 << 20});
  ASSERT_FALSE(little.ok());
  EXPECT_EQ(little.status().code(), Code::kResourceExhausted);
  EXPECT_NE(little.status().message().find("--device cpu"), std::string::npos) << little.status().message();
}

}  // namespace
}  // namespace deepinfer
