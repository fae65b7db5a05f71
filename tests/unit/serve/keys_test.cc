#include "serve/keys.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include "base/file.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::serve {
namespace {

using namespace std::chrono_literals;

TEST(Keys, AreKeptHashedAndReadBack) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/keys";
  EXPECT_TRUE(read_keys(path).value().empty());
  const std::string secret = make_key();
  EXPECT_EQ(secret.size(), 46u);
  EXPECT_NE(secret, make_key());
  ASSERT_TRUE(write_keys(path, {{"alice", hash_key(secret), 7, 2, 1000}, {"bob", hash_key("b"), 8, 0, 0}}).ok());
  EXPECT_EQ(read_file(path, 10'000).value().find(secret), std::string::npos);
  struct stat info = {};
  ::stat(path.c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto ring = KeyRing::load(path).value();
  ASSERT_NE(ring->find(secret), nullptr);
  EXPECT_EQ(ring->find(secret)->name(), "alice");
  EXPECT_EQ(ring->find("di-wrong"), nullptr);
  EXPECT_EQ(ring->find(""), nullptr);
}

TEST(Keys, SayWhichLineIsWrong) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/keys", good = R"({"name":"a","hash":")" + hash_key("x") + "\"";
  for (const auto& [text, what] :
       std::vector<std::pair<std::string, std::string>>{{good + "}\n{", "Line 2"},
                                                        {good + "}\n" + good + "}", "again"},
                                                        {good + ",\"concurrent\":-1}", "concurrent"},
                                                        {R"({"name":"a","hash":"zz"})", "hash"},
                                                        {R"({"hash":"x"})", "name"}}) {
    ASSERT_TRUE(write_file_atomically(path, text).ok());
    const auto ring = KeyRing::load(path);
    ASSERT_FALSE(ring.ok()) << text;
    EXPECT_NE(ring.status().message().find(what), std::string::npos) << ring.status().message();
  }
}

TEST(KeyUse, LimitsWhatIsInWork) {
  KeyUse use({.name = "a", .concurrent = 2});
  EXPECT_EQ(use.begin().status, 0);
  EXPECT_EQ(use.begin().status, 0);
  EXPECT_EQ(use.begin().status, 429);
  EXPECT_EQ(use.balance().requests_left, 0);
  use.end(0);
  EXPECT_EQ(use.begin().status, 0);
}

TEST(KeyUse, RefillsTokensAndSaysHowLongToWait) {
  KeyUse use({.name = "a", .tokens_per_minute = 600});
  const auto t = KeyUse::Clock::now();
  EXPECT_EQ(use.begin(t).status, 0);
  use.end(650, t);  // overdrawn once
  const KeyUse::Refusal refusal = use.begin(t);
  EXPECT_EQ(refusal.status, 429);
  EXPECT_NEAR(refusal.retry_after_s, 5.1, 0.2);
  EXPECT_EQ(use.begin(t + 4s).status, 429);
  EXPECT_EQ(use.begin(t + 6s).status, 0);
  EXPECT_NEAR(use.balance(t + 16s).tokens_left, 110, 2);
  EXPECT_EQ(use.balance(t + 1h).tokens_left, 600);
}

TEST(KeyRing, ReloadKeepsWhatWasCounted) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/keys";
  ASSERT_TRUE(write_keys(path, {{"a", hash_key("a"), 0, 1, 0}, {"b", hash_key("b"), 0, 0, 0}}).ok());
  const auto ring = KeyRing::load(path).value();
  EXPECT_EQ(ring->find("a")->begin().status, 0);
  ASSERT_TRUE(write_keys(path, {{"a", hash_key("a"), 0, 2, 0}, {"c", hash_key("c"), 0, 0, 0}}).ok());
  ASSERT_TRUE(ring->reload().ok());
  EXPECT_EQ(ring->find("b"), nullptr);
  EXPECT_NE(ring->find("c"), nullptr);
  EXPECT_EQ(ring->find("a")->begin().status, 0);
  EXPECT_EQ(ring->find("a")->begin().status, 429);
  ASSERT_TRUE(write_file_atomically(path, "{").ok());
  EXPECT_FALSE(ring->reload().ok());
  EXPECT_NE(ring->find("c"), nullptr);  // a bad file changes nothing
}

}  // namespace
}  // namespace deepinfer::serve
