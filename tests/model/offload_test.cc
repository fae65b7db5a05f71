// Weights on the SSD: the same bits as with all of them in memory, whatever fits, and errors of the disk as errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store/weight_store.h"
#include "tests/model/offload_support.h"
#include "tests/model/support.h"
#include "tests/support/forwarding_queue.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::WeightStore;
using model::Model;
using testing::all_logits;
using testing::Kind;

uint64_t least_budget(const checkpoint::ModelConfig& c) { return checkpoint::least_store_bytes(c); }

std::shared_ptr<WeightStore> open_store(const Checkpoint& c, WeightStore::Options options) {
  Result<std::shared_ptr<WeightStore>> s = WeightStore::open(c, options);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(s).value() : nullptr;
}

std::unique_ptr<Model> make_model(std::shared_ptr<const Checkpoint> c, Kind kind, std::shared_ptr<WeightStore> store) {
  Result<std::unique_ptr<Model>> m =
      Model::create(std::move(c), testing::make_ops(kind, 2), testing::small_model(std::move(store)));
  EXPECT_TRUE(m.ok()) << m.status().to_string();
  return std::move(m).value();
}

class Offload : public ::testing::TestWithParam<std::tuple<const char*, Kind>> {};

TEST_P(Offload, SameBitsAsInMemory) {
  const auto& [name, kind] = GetParam();
  if (testing::kSanitized && name != std::string("tiny-random")) GTEST_SKIP() << "sanitizer build";
  const auto c = testing::open_checkpoint(name);
  const Result<std::vector<float>> expected = all_logits(*make_model(c, kind, nullptr));
  ASSERT_TRUE(expected.ok());
  const uint64_t least = least_budget(c->config());
  const checkpoint::StorePlan all = checkpoint::plan_store(c->config(), {uint64_t{1} << 40}).value();
  ASSERT_EQ(all.slots, all.experts);
  constexpr uint64_t kSpare = 8 << 20;  // room to choose residents by
  for (const double share : {0.0, 0.3, 1.0}) {
    const auto budget = least + static_cast<uint64_t>(share * static_cast<double>(all.total_bytes + kSpare - least));
    for (const bool warm : {false, true}) {
      const auto store = open_store(*c, {.ram_bytes = budget, .warm_up = warm, .expect = warm});
      ASSERT_NE(store, nullptr);
      EXPECT_LE(store->plan().total_bytes, budget);
      const auto m = make_model(c, kind, store);
      const Result<std::vector<float>> got = all_logits(*m);
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_TRUE(got.value() == expected.value()) << share << " of all, warm " << warm;
      const checkpoint::StoreStats stats = store->stats();
      EXPECT_GT(stats.experts.uses, 0u);
      EXPECT_LE(stats.experts.slots_used, stats.experts.slots);
      if (share == 0.0) {
        EXPECT_LT(store->plan().slots, store->plan().experts / 4);
        EXPECT_LT(stats.experts.hit_rate(), 0.9);
        EXPECT_GT(stats.rows.lookups, 0u);
      }
      if (share == 1.0) {
        EXPECT_LE(stats.experts.reads + stats.experts.warm_reads, static_cast<uint64_t>(all.experts));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Offload,
                         ::testing::Values(std::tuple("tiny-random", Kind::kPlain),
                                           std::tuple("tiny-random", Kind::kFast),
                                           std::tuple("tiny-trained", Kind::kFast),
                                           std::tuple("tiny-wide-random", Kind::kFast)));

// A queue whose reads fail while `faulty` is set.
class FaultyQueue : public testing::ForwardingQueue {
 public:
  FaultyQueue(std::unique_ptr<IoQueue> inner, const std::atomic<int>* error)
      : ForwardingQueue(std::move(inner)), error_(error) {}
  size_t poll(std::span<Done> done) override { return spoil(done, ForwardingQueue::poll(done)); }
  size_t wait(std::span<Done> done) override { return spoil(done, ForwardingQueue::wait(done)); }

 private:
  size_t spoil(std::span<Done> done, size_t n) const {
    for (size_t i = 0; *error_ != 0 && i < n; ++i) done[i] = {.tag = done[i].tag, .error = *error_};
    return n;
  }
  const std::atomic<int>* error_;
};

TEST(OffloadFaults, DiskErrorsEndStepsNotTheProgram) {
  const auto c = testing::open_checkpoint("tiny-random");
  const Result<std::vector<float>> expected = all_logits(*make_model(c, Kind::kFast, nullptr));
  std::atomic<int> error{0};
  const auto store =
      open_store(*c, {.ram_bytes = least_budget(c->config()),
                      .warm_up = false,
                      .make_queue = [&](const IoQueue::Options& o) -> Result<std::unique_ptr<IoQueue>> {
                        DI_ASSIGN_OR_RETURN(auto inner, IoQueue::create(o));
                        return std::unique_ptr<IoQueue>(std::make_unique<FaultyQueue>(std::move(inner), &error));
                      }});
  ASSERT_NE(store, nullptr);
  const auto m = make_model(c, Kind::kFast, store);
  for (int round = 0; round < 3; ++round) {
    error = EIO;
    const Result<std::vector<float>> failed = all_logits(*m, 2);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), Code::kIo) << failed.status().to_string();
    EXPECT_NE(failed.status().message().find("Input/output error"), std::string::npos) << failed.status().message();
    EXPECT_NE(failed.status().message().find(".safetensors"), std::string::npos) << failed.status().message();
    error = 0;
    const Result<std::vector<float>> again = all_logits(*m);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_TRUE(again.value() == expected.value());
  }
  EXPECT_GT(store->stats().experts.failures + store->stats().rows.failures, 0u);
}

// Reads half of what is asked where that is more than a page, as a system may.
class ShortQueue : public testing::ForwardingQueue {
 public:
  ShortQueue(std::unique_ptr<IoQueue> inner, std::atomic<int>* cuts) : ForwardingQueue(std::move(inner)), cuts_(cuts) {}
  bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) override {
    const size_t half = into.size() / 2 / kIoAlignment * kIoAlignment;
    if (half > 0) ++*cuts_;
    return ForwardingQueue::read(fd, half > 0 ? into.first(half) : into, offset, tag);
  }

 private:
  std::atomic<int>* cuts_;
};

TEST(OffloadFaults, ShortReadsAreContinued) {
  const auto c = testing::open_checkpoint("tiny-random");
  const Result<std::vector<float>> expected = all_logits(*make_model(c, Kind::kFast, nullptr));
  std::atomic<int> cuts{0};
  const auto store =
      open_store(*c, {.ram_bytes = least_budget(c->config()),
                      .make_queue = [&](const IoQueue::Options& o) -> Result<std::unique_ptr<IoQueue>> {
                        DI_ASSIGN_OR_RETURN(auto inner, IoQueue::create(o));
                        return std::unique_ptr<IoQueue>(std::make_unique<ShortQueue>(std::move(inner), &cuts));
                      }});
  ASSERT_NE(store, nullptr);
  const Result<std::vector<float>> got = all_logits(*make_model(c, Kind::kFast, store));
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_TRUE(got.value() == expected.value());
  EXPECT_GT(cuts, 100);
}

TEST(OffloadFaults, ACutFileIsAnError) {
  testing::TempDir dir;
  const std::string copy = dir.path() + "/model";
  std::filesystem::copy(testing::tiny_random_dir(), copy, std::filesystem::copy_options::recursive);
  Result<Checkpoint> opened = Checkpoint::open(copy);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const auto c = std::make_shared<const Checkpoint>(std::move(opened).value());
  const auto store = open_store(*c, {.ram_bytes = least_budget(c->config()), .warm_up = false});
  ASSERT_NE(store, nullptr);
  const auto m = make_model(c, Kind::kFast, store);
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 4096);
  }
  const Result<std::vector<float>> got = all_logits(*m);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), Code::kDataLoss) << got.status().to_string();
  EXPECT_NE(got.status().message().find("the file was cut"), std::string::npos) << got.status().message();
}

// NaN in a dense tensor is refused at load, in an expert or a table row when it is read; in memory all at load.
TEST(OffloadFaults, NanWeightsAreRefused) {
  struct Case {
    const char* tensor;
    uint64_t at;
    std::vector<uint8_t> bytes;
    bool at_load;
  };
  const Case cases[] = {{"layers.2.attn.wkv.weight", 77, {0x7f}, true},
                        {"layers.2.attn.wkv.scale", 3, {0xff}, true},
                        {"head.weight", 2000, {0xc1, 0x7f}, true},
                        {"layers.3.attn.attn_sink", 4, {0, 0, 0xc0, 0x7f}, true},
                        {"embed.weight", 0, {0xff, 0xff}, false},
                        {"layers.3.engram.embed.weight", 0, {0xff}, false},
                        {"layers.6.ffn.experts.3.w2.scale", 5, {0xff}, false}};
  for (const Case& k : cases) {
    testing::TempDir dir;
    const std::string copy = dir.path() + "/model";
    std::filesystem::copy(testing::tiny_random_dir(), copy, std::filesystem::copy_options::recursive);
    {
      const Checkpoint c = Checkpoint::open(copy).value();
      const Checkpoint::FileRange range = c.file_range(k.tensor);
      const bool table = !k.at_load && !std::string(k.tensor).ends_with("scale");
      std::fstream file(c.files()[range.file].path(), std::ios::in | std::ios::out | std::ios::binary);
      // Of tables every value: any row has it.
      for (uint64_t at = k.at; at < range.bytes; at += table ? k.bytes.size() : range.bytes) {
        file.seekp(static_cast<std::streamoff>(range.offset + at));
        file.write(reinterpret_cast<const char*>(k.bytes.data()), static_cast<std::streamsize>(k.bytes.size()));
      }
    }
    const auto c = std::make_shared<const Checkpoint>(Checkpoint::open(copy).value());
    model::Options o;
    o.limits.context_max = 256;
    const Result<std::unique_ptr<Model>> mapped = Model::create(c, testing::make_ops(Kind::kFast, 1), o);
    ASSERT_FALSE(mapped.ok()) << k.tensor;
    EXPECT_EQ(mapped.status().code(), Code::kDataLoss) << k.tensor;
    EXPECT_NE(mapped.status().message().find(k.tensor), std::string::npos) << mapped.status().message();
    Result<std::shared_ptr<WeightStore>> store = WeightStore::open(*c, {.ram_bytes = least_budget(c->config())});
    ASSERT_EQ(store.ok(), !k.at_load) << k.tensor;
    Status status = store.status();
    if (store.ok()) {
      const auto m = make_model(c, Kind::kFast, std::move(store).value());
      status = all_logits(*m).status();
    }
    EXPECT_EQ(status.code(), Code::kDataLoss) << k.tensor;
    EXPECT_NE(status.message().find("NaN"), std::string::npos) << status.message();
  }
}

TEST(OffloadFaults, TooLittleMemorySaysHowMuch) {
  const auto c = testing::open_checkpoint("tiny-random");
  const uint64_t least = least_budget(c->config());
  const Result<std::shared_ptr<WeightStore>> s = WeightStore::open(*c, {.ram_bytes = least - 1});
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::kResourceExhausted);
  EXPECT_NE(s.status().message().find("too few"), std::string::npos) << s.status().message();
}

}  // namespace
}  // namespace deepinfer
