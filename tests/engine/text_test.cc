// Text out of the engine: true bytes of partial characters, stop texts over several tokens, grammar masks, forced
// tokens.
#include "grammar/constraint.h"
#include "tests/engine/support.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

using engine::Event;
using engine::FinishReason;
using engine::Request;

class Text : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
    testing::EngineSetup setup;
    setup.model = "tiny-trained";
    setup.sequences = 4;
    engine = testing::make_engine(setup);
  }
  // A request whose answer is that text, one token a byte.
  Request forced(std::string_view text) const {
    Request r;
    r.prompt = {0, 100, 200};
    for (char c : text) r.forced_tokens.push_back(tokenizer.find_ordinary(std::string_view(&c, 1)).value());
    r.max_tokens = static_cast<int32_t>(text.size());
    return r;
  }

  const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  std::unique_ptr<engine::Engine> engine;
};

// fixtures/bugs 8: an emoji of four tokens.
TEST_F(Text, BytesOfPartialCharacters) {
  const std::string emoji = "\xF0\x9F\x98\x80";
  Request r = forced("a" + emoji + "b");
  r.logprobs = true;
  r.top_logprobs = 3;
  auto stream = engine->submit(r).value();
  std::string bytes, text;
  int tokens = 0;
  for (Event e; stream->next(&e);) {
    text += e.text;
    EXPECT_EQ(e.text.find("\xEF\xBF\xBD"), std::string::npos);
    if (e.token < 0) continue;
    ++tokens;
    bytes += e.logprob.bytes;
    ASSERT_EQ(e.top.size(), 3u);
    for (const auto& t : e.top) EXPECT_EQ(t.bytes, tokenizer.token_bytes(t.token));
  }
  EXPECT_EQ(tokens, 6);
  EXPECT_EQ(bytes, "a" + emoji + "b");
  EXPECT_EQ(text, bytes);
}

// fixtures/bugs 10.
TEST_F(Text, StopTextsOverTokens) {
  Request r = forced("ABCDEFGHIJKLMNOPQRSTUVWXYZ");
  r.stop = {"DEFGHIJ"};
  auto stream = engine->submit(r).value();
  std::string text;
  FinishReason reason = FinishReason::kFailed;
  for (Event e; stream->next(&e);) {
    text += e.text;
    EXPECT_EQ(e.text.find_first_of("DEFGHIJ"), std::string::npos);
    if (!e.finished) continue;
    reason = e.reason;
    EXPECT_EQ(e.stop_text, "DEFGHIJ");
    EXPECT_EQ(e.usage.output_tokens, 10);
  }
  EXPECT_EQ(text, "ABC");
  EXPECT_EQ(reason, FinishReason::kStopText);

  r.stop = {"DEFZ", "YZ!"};
  const testing::Collected whole = testing::run(*engine, r)[0];
  EXPECT_EQ(whole.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
  EXPECT_EQ(whole.reason, FinishReason::kMaxTokens);
}

// The text of the events is that of the tokens, whatever the stop texts hold back in between.
TEST_F(Text, TextIsThatOfTheTokens) {
  for (int i = 0; i < 4; ++i) {
    Request r;
    r.prompt = testing::random_prompt(20, static_cast<uint32_t>(i));
    r.seed = static_cast<uint64_t>(i);
    r.max_tokens = 40;
    r.ignore_end = true;
    r.stop = {"never in it", "qqq"};
    const testing::Collected got = testing::run(*engine, r)[0];
    std::string want;
    for (int32_t t : got.tokens) {
      if (!text::is_silent(tokenizer, t)) want += tokenizer.token_bytes(t);
    }
    if (want.find("\xEF\xBF\xBD") == std::string::npos && got.reason == FinishReason::kMaxTokens) {
      text::Detokenizer detokenizer(tokenizer);
      std::string decoded;
      for (int32_t t : got.tokens) decoded += detokenizer.push(t);
      EXPECT_EQ(got.text, decoded);
    }
  }
}

TEST_F(Text, GrammarMasks) {
  auto vocabulary = grammar::Vocabulary::from_tokenizer(tokenizer).value();
  auto compiled = grammar::compile_constraint({.kind = grammar::ConstraintKind::kRegex, .source = "[0-9]{3}-(cat|dog)"},
                                              vocabulary);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  std::vector<std::string> texts;
  for (int i = 0; i < 6; ++i) {
    Request r;
    r.prompt = testing::random_prompt(10 + i, static_cast<uint32_t>(i));
    r.seed = static_cast<uint64_t>(i);
    r.n = 2;
    r.max_tokens = 40;
    r.grammar = compiled.value();
    r.min_tokens = i == 5 ? 30 : 0;  // the grammar's end goes before
    for (const testing::Collected& c : testing::run(*engine, r)) {
      EXPECT_EQ(c.reason, FinishReason::kStopToken) << c.error.message();
      ASSERT_EQ(c.text.size(), 7u) << c.text;
      EXPECT_TRUE(c.text.ends_with("-cat") || c.text.ends_with("-dog")) << c.text;
      texts.push_back(c.text);
    }
  }
  Request r;
  r.prompt = {0, 5};
  r.grammar = compiled.value();
  r.forced_tokens = {tokenizer.find_ordinary("x").value()};
  r.max_tokens = 10;
  const testing::Collected bad = testing::run(*engine, r)[0];
  EXPECT_EQ(bad.reason, FinishReason::kFailed);
  EXPECT_NE(bad.error.message().find("forced_tokens[0]"), std::string::npos);
}

TEST_F(Text, GrammarBehindATriggerAndABound) {
  auto vocabulary = grammar::Vocabulary::from_tokenizer(tokenizer).value();
  auto compiled = grammar::compile_constraint({.kind = grammar::ConstraintKind::kRegex, .source = "[0-9]{3}-(cat|dog)"},
                                              vocabulary);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const std::vector<int32_t> ids = tokenizer.encode("=>"), go = tokenizer.encode(" so");
  ASSERT_EQ(go.size(), 1u);
  Request r;
  r.prompt = {0, 5};
  r.seed = 3;
  r.max_tokens = 40;
  r.grammar = compiled.value();
  r.grammar_after = ids;
  // Free until the sequence comes (here: by force), then the grammar.
  r.forced_tokens = tokenizer.encode("free text");
  const size_t free_tokens = r.forced_tokens.size();
  r.forced_tokens.insert(r.forced_tokens.end(), ids.begin(), ids.end());
  const testing::Collected c = testing::run(*engine, r)[0];
  EXPECT_EQ(c.reason, FinishReason::kStopToken) << c.error.message();
  EXPECT_TRUE(c.text.starts_with("free text=>")) << c.text;
  EXPECT_EQ(c.text.size(), std::string("free text=>123-cat").size()) << c.text;
  // Behind the bound the sequence is forced.
  r.grammar_bound = go[0];
  r.forced_tokens.resize(free_tokens);
  r.forced_tokens.push_back(go[0]);
  EXPECT_TRUE(testing::run(*engine, r)[0].text.starts_with("free text so=>"));
  // Without the sequence the answer stays free.
  r.forced_tokens.clear();
  r.grammar_bound = -1;
  r.sampling.temperature = 0;
  Request plain = r;
  plain.grammar = nullptr;
  plain.grammar_after.clear();
  EXPECT_EQ(testing::run(*engine, r)[0].tokens, testing::run(*engine, plain)[0].tokens);
  for (auto change : {+[](Request& q) { q.grammar = nullptr; }, +[](Request& q) { q.grammar_after.clear(); },
                      +[](Request& q) { q.grammar_after[0] = -1; }, +[](Request& q) { q.grammar_bound = 1 << 30; }}) {
    Request bad = r;
    bad.grammar_bound = 5;
    change(bad);
    EXPECT_EQ(engine->submit(bad).status().code(), Code::kInvalidArgument);
  }
}

TEST_F(Text, PromptLogprobsEqualThoseOfGeneration) {
  Request r;
  r.prompt = testing::random_prompt(150, 3);
  r.max_tokens = 20;
  r.sampling.temperature = 0;
  r.full_prefill = true;
  r.ignore_end = true;
  r.logprobs = true;
  const testing::Collected answer = testing::run(*engine, r)[0];
  Request whole = r;
  whole.prompt.insert(whole.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  whole.prompt_logprobs = true;
  whole.max_tokens = 1;
  auto stream = engine->submit(whole).value();
  testing::collect(*stream, 1);
  ASSERT_EQ(stream->prompt_logprobs().size(), 170u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(stream->prompt_logprobs()[150 + i].token.logprob, answer.logprobs[i]);
  }
}

}  // namespace
}  // namespace deepinfer
