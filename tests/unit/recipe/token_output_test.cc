#include "recipe/token_output.h"

#include <gtest/gtest.h>

#include "recipe/logprobs.h"
#include "text/tokenizer.h"

namespace deepinfer::recipe {
namespace {

enum : int32_t {
  kEos = 1,
  kA,
  kB,
  kLess,
  kNewline,
  kMixed,
  kEmoji1,
  kEmoji2,
  kEmoji3,
  kBroken,
  kUser = 20,
  kThink,
  kClose,
  kDsml
};

OutputVocabulary small_vocabulary() {
  OutputVocabulary v;
  v.set(kEos, "<｜end▁of▁sentence｜>", TokenKind::kSilent);
  v.set(kA, "a", TokenKind::kText);
  v.set(kB, "b", TokenKind::kText);
  v.set(kLess, "<", TokenKind::kText);
  v.set(kNewline, "\n", TokenKind::kText);
  v.set(kMixed, "c<", TokenKind::kText);
  v.set(kEmoji1, "\xF0\x9F", TokenKind::kText);
  v.set(kEmoji2, "\x98", TokenKind::kText);
  v.set(kEmoji3, "\x80!", TokenKind::kText);
  v.set(kBroken, "\xE7", TokenKind::kText);
  v.set(kUser, "<｜User｜>", TokenKind::kLiteral);
  v.set(kThink, "<think>", TokenKind::kLiteral);
  v.set(kClose, "</think>", TokenKind::kThinkClose);
  v.set(kDsml, "｜DSML｜", TokenKind::kDsml);
  return v;
}

struct Heard : OutputSink {
  std::string text;  // r: and c: pieces, and [id] where a log-probability came
  std::vector<int32_t> reasoning_ids, content_ids;
  void on_reasoning(std::string_view t, SourceRange) override { text.append("r:").append(t).append(" "); }
  void on_content(std::string_view t, SourceRange) override { text.append("c:").append(t).append(" "); }
  void on_call_begin(int, std::string_view) override {}
  void on_call_arguments(int, std::string_view) override {}
  void on_call_end(int, bool) override {}
  void on_logprob(const TokenLogprob& t, bool reasoning) override {
    (reasoning ? reasoning_ids : content_ids).push_back(t.id);
    EXPECT_EQ(t.logprob, -0.5 * t.id);
    EXPECT_EQ(t.top.size(), 1u);
  }
};

struct Outcome {
  Heard heard;
  int64_t completion = 0;
  std::optional<int64_t> reasoning;
};

Outcome decode(const std::vector<int32_t>& ids, InitialStage initial, bool in_one_push,
               std::vector<std::string> stops = {}) {
  static const OutputVocabulary vocabulary = small_vocabulary();
  ParserOptions options;
  options.markers = true;
  options.parse_tool_calls = true;
  options.initial = initial;
  options.stop_sequences = std::move(stops);
  Outcome result;
  TokenOutput output(options, &vocabulary, &result.heard, true);
  std::vector<TopLogprob> tops;
  std::vector<TokenLogprob> tokens;
  for (int32_t id : ids) tops.push_back({id, -1.0});
  for (size_t i = 0; i < ids.size(); ++i) tokens.push_back({ids[i], -0.5 * ids[i], std::span(tops).subspan(i, 1)});
  if (in_one_push) {
    output.push(tokens);
  } else {
    for (const TokenLogprob& t : tokens) output.push({&t, 1});
  }
  output.finish(FinishReason::kStop);
  result.completion = output.completion_tokens();
  result.reasoning = output.reasoning_tokens();
  return result;
}

using Ids = std::vector<int32_t>;

TEST(TokenOutputTest, CountsAndAttributesTokens) {
  for (bool in_one_push : {false, true}) {
    const Outcome r = decode({kA, kLess, kClose, kNewline, kB, kEos}, InitialStage::kReasoningStart, in_one_push);
    EXPECT_EQ(r.heard.reasoning_ids, (Ids{kA, kLess}));
    EXPECT_EQ(r.heard.content_ids, (Ids{kB}));  // the dropped newline and the markup have no entry
    EXPECT_EQ(r.completion, 6);
    EXPECT_EQ(r.reasoning, 2);
  }
}

TEST(TokenOutputTest, MarkupHasNoEntryButATokenThatIsPartlyTextHas) {
  for (bool in_one_push : {false, true}) {
    const Outcome r = decode({kA, kMixed, kDsml, kB}, InitialStage::kContent, in_one_push);
    EXPECT_EQ(r.heard.content_ids, (Ids{kA, kMixed}));
    const Outcome plain = decode({kA, kLess, kDsml, kB}, InitialStage::kContent, in_one_push);
    EXPECT_EQ(plain.heard.content_ids, (Ids{kA}));
  }
}

TEST(TokenOutputTest, AMarkerThatPrintsHasAnEntry) {
  const Outcome r = decode({kDsml, kLess, kDsml}, InitialStage::kContent, false);
  EXPECT_EQ(r.heard.content_ids, (Ids{kDsml}));
  EXPECT_EQ(r.heard.text, "c:｜DSML｜ ");
}

TEST(TokenOutputTest, ReasoningTokensAreThoseThatComeOutAsReasoning) {
  for (bool in_one_push : {false, true}) {
    // Leading and trailing newlines and the markup of a call do not count.
    EXPECT_EQ(decode({kNewline, kA, kNewline, kLess, kDsml, kB}, InitialStage::kReasoningStart, in_one_push).reasoning,
              1);
    EXPECT_EQ(
        decode({kA, kNewline, kB, kDsml, kNewline, kClose, kB}, InitialStage::kReasoningStart, in_one_push).reasoning,
        4);
    EXPECT_EQ(decode({kClose, kA}, InitialStage::kReasoningStart, in_one_push).reasoning, 0);
  }
}

TEST(TokenOutputTest, PartsOfACharacterComeWithTheWhole) {
  const Outcome r = decode({kA, kEmoji1, kEmoji2, kEmoji3}, InitialStage::kContent, false);
  EXPECT_EQ(r.heard.text, "c:a c:😀! ");
  EXPECT_EQ(r.heard.content_ids, (Ids{kA, kEmoji1, kEmoji2, kEmoji3}));
  // Bytes that never become a character.
  for (bool in_one_push : {false, true}) {
    EXPECT_EQ(decode({kBroken, kA}, InitialStage::kContent, in_one_push).heard.content_ids, (Ids{kBroken, kA}));
    EXPECT_EQ(decode({kBroken, kLess, kDsml}, InitialStage::kContent, in_one_push).heard.content_ids, (Ids{kBroken}));
    EXPECT_EQ(decode({kBroken, kUser, kA}, InitialStage::kContent, in_one_push).heard.content_ids,
              (Ids{kBroken, kUser, kA}));
    EXPECT_EQ(decode({kBroken, kClose, kA}, InitialStage::kReasoning, in_one_push).heard.reasoning_ids, (Ids{kBroken}));
  }
  const Outcome cut = decode({kA, kEmoji1}, InitialStage::kReasoning, false);
  EXPECT_EQ(cut.heard.reasoning_ids, (Ids{kA}));
  EXPECT_EQ(cut.reasoning, 2);  // the dropped tail counts
}

TEST(TokenOutputTest, LaterPushesDoNotCountAfterAStop) {
  EXPECT_EQ(decode({kA, kB, kA, kA}, InitialStage::kContent, false, {"b"}).completion, 2);
  EXPECT_EQ(decode({kA, kB, kA, kA}, InitialStage::kContent, true, {"b"}).completion, 4);
}

TEST(TokenOutputTest, UnknownIdsAreSilent) {
  const Outcome r = decode({kA, 7000, -5, 1 << 30, kB}, InitialStage::kContent, false);
  EXPECT_EQ(r.heard.text, "c:a c:b ");
  EXPECT_EQ(r.completion, 5);
}

TEST(TokenOutputTest, BundledVocabularyKnowsItsMarkup) {
  Result<text::Tokenizer> tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const OutputVocabulary v(tokenizer.value());
  const auto kind = [&](std::string_view name) { return v.at(*tokenizer.value().find_added(name)).kind; };
  EXPECT_EQ(kind("</think>"), TokenKind::kThinkClose);
  EXPECT_EQ(kind("<think>"), TokenKind::kLiteral);
  EXPECT_EQ(kind("｜DSML｜"), TokenKind::kDsml);
  EXPECT_EQ(kind("<｜User｜>"), TokenKind::kLiteral);
  EXPECT_EQ(kind("<｜end▁of▁sentence｜>"), TokenKind::kSilent);
  const std::vector<text::TokenId> ids = tokenizer.value().encode("Hello, 米!");
  std::string text;
  for (text::TokenId id : ids) {
    EXPECT_EQ(v.at(id).kind, TokenKind::kText);
    text += v.at(id).bytes;
  }
  EXPECT_EQ(text, "Hello, 米!");
}

TEST(LogprobsTest, BytesAreTrueAndTextIsPrintable) {
  const OutputVocabulary v = small_vocabulary();
  const TopLogprob top[] = {{kEmoji1, -0.375}, {kEos, -9999.0}};
  std::string out;
  append_logprob_entry(out, v, {kEmoji1, -0.1, top});
  EXPECT_EQ(out,
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.1,\"bytes\":[240,159],\"top_logprobs\":["
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.375,\"bytes\":[240,159]},"
            "{\"token\":\"<｜end▁of▁sentence｜>\",\"logprob\":-9999.0,\"bytes\":[60,239,189,156,101,110,100,226,150,"
            "129,111,102,226,150,"
            "129,115,101,110,116,101,110,99,101,239,189,156,62]}]}");
  std::string number;
  append_logprob(number, static_cast<double>(-0.3f));
  EXPECT_EQ(number, "-0.3");
}

}  // namespace
}  // namespace deepinfer::recipe
