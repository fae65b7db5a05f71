// Experts and Engram tables outside of GPU memory: the same bits as with all of them on the GPU, whatever fits, with
// experts in host memory and with experts on the SSD; and errors as sentences.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/store/weight_store.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/make.h"
#include "ops/host_experts.h"
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

// The host's experts are a fixed set: how many of the others fit, and which, changes nothing. Another set is another
// numeric class.
TEST_P(CudaOffload, HostExpertsGiveTheSameBitsWhateverFits) {
  const auto c = testing::open_checkpoint(GetParam());
  const int owned = static_cast<int>(c->config().n_routed_experts / 3), least = experts_of(c->config());
  const auto make_owned = [&](int slots) {
    return make_model(c, {.expert_slots_max = slots, .host = ops::make_cpu_ops(4), .host_experts = owned});
  };
  const std::unique_ptr<Model> plain = make_model(c, {}).value(), whole = make_owned(0).value();
  EXPECT_EQ(plain->ops().capabilities().numeric_class.find('+'), std::string::npos);
  EXPECT_EQ(whole->ops().capabilities().numeric_class,
            ops::host_numeric_class(plain->ops().capabilities().numeric_class, owned,
                                    ops::make_cpu_ops(1)->capabilities().numeric_class));
  const Result<std::vector<float>> without = all_logits(*plain), expected = all_logits(*whole);
  ASSERT_TRUE(without.ok() && expected.ok());
  double error = 0, norm = 0;  // small sums rounded to bf16 may well be equal
  for (size_t i = 0; i < without->size(); ++i) {
    const double d = double{expected.value()[i]} - without.value()[i];
    error += d * d, norm += double{without.value()[i]} * without.value()[i];
  }
  const std::unique_ptr<Model> cached = make_model(c, {.expert_slots_max = least}).value();
  ASSERT_TRUE(all_logits(*cached).ok());
  const uint64_t all_asked = ops::cuda::expert_traffic(cached->ops()).asked,
                 asked = ops::cuda::expert_traffic(whole->ops()).asked;
  std::printf("%s: %d of the host's, relative difference of all logits %.2e; the GPU used %llu experts of %llu\n",
              GetParam(), owned, std::sqrt(error / norm), static_cast<unsigned long long>(asked),
              static_cast<unsigned long long>(all_asked));
  EXPECT_LT(asked, all_asked - all_asked / 8);
  for (const int slots : {least - owned, least, 2 * least}) {
    const auto drafter = static_cast<int>(c->config().dspark_n_routed_experts);
    Result<std::unique_ptr<Model>> m = make_owned(std::max(slots, drafter));
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    for (int round = 0; round < 2; ++round) {  // graphs are recorded in the first
      const Result<std::vector<float>> got = all_logits(*m.value());
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_TRUE(got.value() == expected.value()) << slots << " slots, round " << round;
    }
    EXPECT_EQ(ops::cuda::expert_traffic(m.value()->ops()).host_experts, owned);
    EXPECT_NE(ops::cuda::placement(m.value()->ops()).find("The host computes"), std::string::npos);
  }
  Result<std::unique_ptr<Model>> all = make_model(
      c, {.host = ops::make_cpu_ops(2), .host_experts = static_cast<int>(c->config().n_routed_experts)});
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_TRUE(all_logits(*all.value()).ok());
}

TEST_P(CudaOffload, TheNumberIsChosenFromRatesOrRefused) {
  const auto c = testing::open_checkpoint(GetParam());
  const int least = experts_of(c->config());
  Result<std::unique_ptr<Model>> m = make_model(
      c, {.expert_slots_max = least, .host = ops::make_cpu_ops(4), .host_experts = ops::kAutoHostExperts});
  ASSERT_TRUE(m.ok()) << m.status().to_string();
  const int owned = ops::cuda::expert_traffic(m.value()->ops()).host_experts;
  EXPECT_EQ(m.value()->ops().capabilities().numeric_class.find('+') != std::string::npos, owned > 0);
  std::printf("%s: %s\n", GetParam(), ops::cuda::placement(m.value()->ops()).c_str());
  EXPECT_TRUE(all_logits(*m.value()).ok());
  const int more = static_cast<int>(c->config().n_routed_experts) + 1;
  const Result<std::unique_ptr<Model>> many = make_model(c, {.host = ops::make_cpu_ops(1), .host_experts = more});
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().code(), Code::kInvalidArgument);
  Result<std::shared_ptr<WeightStore>> store =
      WeightStore::open(*c, {.ram_bytes = checkpoint::least_store_bytes(c->config())});
  ASSERT_TRUE(store.ok());
  const Result<std::unique_ptr<Model>> both =
      make_model(c, {.host = ops::make_cpu_ops(1), .host_experts = 1}, store.value());
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.status().code(), Code::kUnsupported);
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

TEST(CudaOffloadLimits, LoadingTellsHowFarItIs) {
  std::vector<std::pair<uint64_t, uint64_t>> told;
  const auto progress = [&told](uint64_t done, uint64_t total) { told.emplace_back(done, total); };
  ASSERT_TRUE(make_model(testing::open_checkpoint("tiny-random"), {.progress = progress}).ok());
  ASSERT_GT(told.size(), 2u);
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].second, told[0].second);
    EXPECT_TRUE(i == 0 ? told[i].first > 0 : told[i].first >= told[i - 1].first) << i;
  }
  EXPECT_EQ(told.back().first, told.back().second);
}

}  // namespace
}  // namespace deepinfer
