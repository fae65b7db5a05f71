// Why prompts miss, and the log that remembers them.
#include "kv/explain.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;

LoggedPrompt prompt(int n, int cached, int changed_at = -1, int32_t tenant = 0) {
  LoggedPrompt p{.tenant = tenant, .cached = cached};
  p.tokens.resize(static_cast<size_t>(n));
  std::iota(p.tokens.begin(), p.tokens.end(), 0);
  if (changed_at >= 0) p.tokens[static_cast<size_t>(changed_at)] = -7;
  return p;
}

Explanation explain(std::vector<LoggedPrompt> prompts) {
  return explain_miss(prompts, prompts.size() - 1, {.block_tokens = 128, .keep = 140});
}

TEST(Explain, EveryReasonHasItsCase) {
  EXPECT_EQ(explain({prompt(1000, 768), prompt(1000, 768)}).why, MissReason::kNone);
  EXPECT_EQ(explain({prompt(200, 0), prompt(200, 0)}).why, MissReason::kShort);
  EXPECT_EQ(explain({prompt(1000, 0)}).why, MissReason::kNew);
  EXPECT_EQ(explain({prompt(1000, 0, -1, 1), prompt(1000, 0, -1, 2)}).why, MissReason::kNew);
  const Explanation differs =
      explain({prompt(1000, 0, 20), prompt(1000, 0, 600), prompt(1000, 0, 700), prompt(1000, 512)});
  EXPECT_EQ(differs.why, MissReason::kGone) << "request 2 had 700 tokens in common, whole blocks up to 640";
  EXPECT_EQ(differs.other, 2u);
  EXPECT_EQ(differs.common, 700);
  EXPECT_EQ(differs.block, 4);
  const Explanation line = explain({prompt(1000, 0), prompt(1000, 256, 300)});
  EXPECT_EQ(line.why, MissReason::kDiffers);
  EXPECT_EQ(line.common, 300);
  EXPECT_EQ(line.block, 2);
  EXPECT_EQ(explain({prompt(1000, 0), prompt(1000, 0, 5)}).why, MissReason::kNew);
  EXPECT_EQ(explain({prompt(1000, 0), prompt(1000, 0)}).why, MissReason::kGone);
}

struct Log : testing::Test {
  std::string path = testing::TempDir() + "prompts_" + std::to_string(::getpid());
  void TearDown() override {
    fs::remove(path);
    fs::remove(path + ".old");
  }
};

TEST_F(Log, ComesBackAlsoAfterARestart) {
  for (int life = 0; life < 2; ++life) {
    auto log = PromptLog::open(path, 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status().message();
    for (int i = 0; i < 3; ++i) log.value()->append(prompt(50 + i, i));
  }
  auto all = PromptLog::read(path);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(all.value()[i].number, i + 1);
    EXPECT_EQ(all.value()[i].tokens, prompt(50 + static_cast<int>(i % 3), 0).tokens);
    EXPECT_EQ(all.value()[i].cached, static_cast<int>(i % 3));
  }
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Log, StaysWithinItsSizeAndSurvivesDamage) {
  {
    auto log = PromptLog::open(path, 40000);
    for (int i = 0; i < 100; ++i) log.value()->append(prompt(500, 0));
    log.value()->append(prompt(20000, 0));
    EXPECT_EQ(log.value()->failures(), 1);
  }
  EXPECT_LE(fs::file_size(path) + fs::file_size(path + ".old"), 40000u);
  const size_t whole = PromptLog::read(path)->size();
  EXPECT_GT(whole, 9u);
  fs::resize_file(path, fs::file_size(path) - 3);
  EXPECT_EQ(PromptLog::read(path)->size(), whole - 1);
  PromptLog::open(path, 40000).value()->append(prompt(10, 0));
  EXPECT_EQ(PromptLog::read(path)->back().tokens.size(), 10u);
  std::ofstream(path, std::ios::app) << "DIPL\xff\xff\xff\xff and so on and so on and so on and so on and so on";
  EXPECT_EQ(PromptLog::read(path)->back().tokens.size(), 10u);
  EXPECT_EQ(PromptLog::open("/nowhere/prompts", 40000).status().code(), Code::kIo);
}

}  // namespace
}  // namespace deepinfer::kv
