// An engine whose weights are mostly on the SSD: the same answers, and a disk that fails ends only what needed it.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "tests/engine/support.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

using engine::FinishReason;
using engine::ModelExecutor;
using engine::Request;
using testing::Collected;

Request make_request(uint32_t seed) {
  Request r;
  r.prompt = testing::random_prompt(20 + 7 * static_cast<int>(seed), seed);
  r.seed = seed;
  r.max_tokens = 12;
  r.ignore_end = true;
  return r;
}

// With the least memory that works, as the refusal of less names it.
std::unique_ptr<engine::Engine> small_engine(std::shared_ptr<const checkpoint::Checkpoint> c) {
  engine::ModelExecutorOptions sizes{.context_max = 512, .sequences_max = 4, .rows_max = 64, .ram_bytes = 1};
  for (int attempt = 0; attempt < 5; ++attempt) {
    auto executor = ModelExecutor::create(c, ops::make_cpu_ops(2), sizes);
    if (executor.ok()) {
      EXPECT_TRUE(executor.value()->weight_stats().has_value());
      return engine::Engine::create(std::move(executor).value(), std::nullopt, {.end_tokens = {1}}).value();
    }
    const std::string& message = executor.status().message();
    const size_t at = message.find("--ram ");
    sizes.ram_bytes = at != std::string::npos && std::isdigit(message[at + 6]) != 0
                          ? static_cast<uint64_t>(std::atoll(message.c_str() + at + 6)) * 1'000'000
                          : sizes.ram_bytes + (uint64_t{256} << 20);
  }
  ADD_FAILURE() << "no budget works";
  return nullptr;
}

std::vector<Collected> run_all(engine::Engine& engine, int n) {
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (int i = 0; i < n; ++i) streams.push_back(engine.submit(make_request(static_cast<uint32_t>(i))).value());
  std::vector<Collected> out;
  for (auto& s : streams) out.push_back(testing::collect(*s, 1)[0]);
  return out;
}

TEST(EngineOffload, AFailingDiskEndsOnlyWhatNeedsIt) {
  constexpr int kRequests = 6;
  testing::EngineSetup plain;
  plain.context = 512;
  const std::vector<Collected> expected = run_all(*testing::make_engine(plain), kRequests);

  testing::TempDir dir;
  const std::string copy = dir.path() + "/model";
  std::filesystem::copy(testing::tiny_random_dir(), copy, std::filesystem::copy_options::recursive);
  auto c = std::make_shared<const checkpoint::Checkpoint>(checkpoint::Checkpoint::open(copy).value());
  const auto engine = small_engine(c);
  ASSERT_NE(engine, nullptr);
  const auto expect_right = [&](const std::vector<Collected>& got) {
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << i << ": " << got[i].error.message();
      EXPECT_NE(got[i].reason, FinishReason::kFailed) << i;
    }
  };
  expect_right(run_all(*engine, kRequests));

  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().extension() != ".safetensors") continue;
    files.emplace_back(entry.path(), read_file(entry.path(), 1 << 30).value());
    std::filesystem::resize_file(entry.path(), 4096);
  }
  engine->clear_cache();
  int failed = 0;
  const std::vector<Collected> broken = run_all(*engine, kRequests);
  for (int i = 0; i < kRequests; ++i) {
    if (broken[i].reason != FinishReason::kFailed) {
      EXPECT_EQ(broken[i].tokens, expected[i].tokens);  // all that it needed was in memory
      continue;
    }
    ++failed;
    EXPECT_EQ(broken[i].error.code(), Code::kDataLoss) << broken[i].error.message();
    EXPECT_NE(broken[i].error.message().find("the file was cut"), std::string::npos) << broken[i].error.message();
    ASSERT_LE(broken[i].tokens.size(), expected[i].tokens.size());
    for (size_t t = 0; t < broken[i].tokens.size(); ++t) EXPECT_EQ(broken[i].tokens[t], expected[i].tokens[t]);
  }
  EXPECT_GT(failed, 0);

  for (const auto& [path, content] : files) {  // the same file, not a new one in its place
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  expect_right(run_all(*engine, kRequests));
  EXPECT_TRUE(engine->check_accounting().ok());
  EXPECT_GT(engine->stats().weights->experts.failures + engine->stats().weights->rows.failures, 0u);
}

}  // namespace
}  // namespace deepinfer
