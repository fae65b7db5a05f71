#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "text/detokenizer.h"

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
  for (const std::string_view text : {"", "Hello, world!", "你好，世界 123456", "naïve café 👩‍👧\n\n  x\t", "\x01\x02 ab"}) {
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

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  Detokenizer detokenizer(bundled());
  std::string out;
  for (const TokenId id : bundled().encode("x😀")) out += detokenizer.push(id);
  EXPECT_EQ(out, "x😀");
  EXPECT_EQ(detokenizer.push_bytes("\xf0\x9f"), "");
  EXPECT_EQ(detokenizer.push_bytes("a"), "\xef\xbf\xbd" "a");
  EXPECT_EQ(detokenizer.push(*bundled().find_added("<｜end▁of▁sentence｜>")), "");
  EXPECT_EQ(detokenizer.push(*bundled().find_added("</think>")), "</think>");
  detokenizer.push_bytes("\xe4\xbd");
  EXPECT_EQ(detokenizer.finish(), 2u);
}

}  // namespace
}  // namespace deepinfer::text
