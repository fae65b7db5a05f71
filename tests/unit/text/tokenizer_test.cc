#include "text/tokenizer.h"

#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/full_tokenizer.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

const Tokenizer& bundled() {
  static const Tokenizer tokenizer = [] {
    Result<Tokenizer> loaded = Tokenizer::load("models/tiny/tokenizer.json");
    if (!loaded.ok()) ADD_FAILURE() << loaded.status().to_string();
    return std::move(loaded).value();
  }();
  return tokenizer;
}

TEST(Tokenizer, RoundTripsAnyText) {
  for (const std::string_view text :
       {"", "Hello, world!", "你好，世界 123456", "naïve café 👩‍👧\n\n  x\t", "\x01\x02 ab"}) {
    EXPECT_EQ(bundled().decode(bundled().encode(text)), text);
  }
}

TEST(Tokenizer, AddedTokensAreRecognisedOnlyWhenAllowed) {
  const std::string_view text = "<｜User｜>Hi<｜Assistant｜>";
  const TokenId user = *bundled().find_added("<｜User｜>"), assistant = *bundled().find_added("<｜Assistant｜>");
  const std::vector<TokenId> recognised = bundled().encode(text, AddedTokens::kRecognise);
  EXPECT_EQ(recognised.front(), user);
  EXPECT_EQ(recognised.back(), assistant);
  for (const TokenId id : bundled().encode(text)) EXPECT_FALSE(bundled().is_added(id));
  const auto prompt = bundled().encode_prompt(text, {{0, 12, user}});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt.value().front(), user);
  for (const TokenId id : std::span(prompt.value()).subspan(1)) EXPECT_FALSE(bundled().is_added(id));
}

TEST(Tokenizer, RefusesSpansThatDoNotFit) {
  EXPECT_FALSE(bundled().encode_prompt("abc", {{0, 4, 0}}).ok());
  EXPECT_FALSE(bundled().encode_prompt("abc", {{2, 3, 0}, {0, 1, 0}}).ok());
  EXPECT_FALSE(bundled().encode_prompt("abc", {{0, 1, 1 << 20}}).ok());
}

TEST(Tokenizer, RangesCoverWholeCharacters) {
  const std::string_view text = "a😀b";
  const Encoding encoding = bundled().encode_with_ranges(text);
  EXPECT_EQ(encoding.ranges.back().end, text.size());
  const std::vector<TokenRange> points = to_code_points(text, encoding.ranges);
  EXPECT_EQ(points.front(), (TokenRange{0, 1}));
  EXPECT_EQ(points.back(), (TokenRange{2, 3}));
  for (size_t i = 1; i + 1 < points.size(); ++i) EXPECT_EQ(points[i], (TokenRange{1, 2}));
}

// Some text of every kind, with random bytes in it.
std::string random_text(std::mt19937_64& random, size_t pieces) {
  const std::string_view parts[] = {"the ", "quick", "tokenizer", " 12345", "\n\n  ",   "你好", "，", "世界",
                                    "😀",   "é",     "<think>",   "::",     "aaaaaaaa", "\t",   "()"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    if (random() % 8 == 0) {
      text += static_cast<char>(random());
    } else {
      text += parts[random() % std::size(parts)];
    }
  }
  return text;
}

TEST(Tokenizer, DecodesToTheRepairedText) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const std::string text = random_text(random, random() % 200);
    const Encoding encoding = bundled().encode_with_ranges(text);
    EXPECT_EQ(bundled().decode(encoding.ids), replace_broken_utf8(text));
    size_t at = 0;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      EXPECT_EQ(encoding.ranges[i].begin, at);
      at = encoding.ranges[i].end;
      EXPECT_EQ(at - encoding.ranges[i].begin, bundled().token_bytes(encoding.ids[i]).size());
    }
  }
}

TEST(Tokenizer, NothingDependsOnTheCacheOrOnOtherThreads) {
  std::mt19937_64 random(6);
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(random_text(random, random() % 300));
    bundled().forget_words();
    expected.push_back(bundled().encode(texts.back()));
  }
  const auto run = [&](size_t first) {
    for (size_t round = 0; round < 3; ++round) {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t at = (i * 7 + first) % texts.size();
        if (bundled().encode(texts[at]) != expected[at]) ADD_FAILURE() << texts[at];
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) threads.emplace_back(run, 31 * t);
  for (std::thread& thread : threads) thread.join();
}

// Pieces as long as the text: anything that is not linear would run into the test's time limit.
TEST(Tokenizer, LongPieces) {
  for (const std::string_view unit : {"a", " ", "7", "\n", "的", "ab", "=", "\u200d", "aB9"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(bundled().decode(bundled().encode(text)), text) << unit;
  }
}

TEST(Tokenizer, FullSizeVocabulary) {
  const std::optional<Tokenizer> full = testing::load_full_tokenizer(".");
  if (!full) GTEST_SKIP() << testing::kFullTokenizerHint;
  EXPECT_EQ(full->find_added("<｜Assistant｜>"), 128804);
  EXPECT_EQ(full->find_added("</think>"), 128822);
  EXPECT_EQ(full->find_added("｜DSML｜"), 128825);
  EXPECT_EQ(full->vocab_size(), 129265);
  EXPECT_EQ(full->encode("Hello, world!"), (std::vector<TokenId>{19923, 14, 2058, 3}));
  EXPECT_EQ(full->find_ordinary("Hello"), 19923);
  std::string letters(1'000'000, 'a');
  EXPECT_EQ(full->decode(full->encode(letters)), letters);
}

TEST(Detokenizer, AnyCuttingOfTheBytesGivesTheSameText) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = random_text(random, random() % 40);
    Detokenizer whole(bundled()), cut(bundled());
    const std::string expected(whole.push_bytes(bytes));
    std::string got;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = std::min<size_t>(1 + random() % 5, bytes.size() - at);
      const std::string_view out = cut.push_bytes(std::string_view(bytes).substr(at, n));
      EXPECT_TRUE(is_valid_utf8(out));
      EXPECT_LE(cut.pending().size(), 3u);
      got += out;
      at += n;
    }
    EXPECT_EQ(got, expected);
    // What came out and what is held back are together the repaired bytes.
    const std::string repaired = replace_broken_utf8(bytes);
    EXPECT_EQ(got + (cut.pending().empty() ? "" : replace_broken_utf8(cut.pending())), repaired);
    EXPECT_EQ(cut.finish(), whole.pending().size());
  }
}

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  Detokenizer detokenizer(bundled());
  std::string out;
  for (const TokenId id : bundled().encode("x😀")) out += detokenizer.push(id);
  EXPECT_EQ(out, "x😀");
  EXPECT_EQ(detokenizer.push_bytes("\xf0\x9f"), "");
  EXPECT_EQ(detokenizer.push_bytes("a"),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(detokenizer.push(*bundled().find_added("<｜end▁of▁sentence｜>")), "");
  EXPECT_EQ(detokenizer.push(*bundled().find_added("</think>")), "</think>");
  detokenizer.push_bytes("\xe4\xbd");
  EXPECT_EQ(detokenizer.finish(), 2u);
}

}  // namespace
}  // namespace deepinfer::text
