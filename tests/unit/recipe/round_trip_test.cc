// A generated assistant turn is rendered as history, its tokens are parsed as if the model had just written them, and
// the same reasoning, answer and calls must come back (spec/protocol.md 4.2, 8.3).
#include <random>

#include <gtest/gtest.h>

#include "recipe/output_parser.h"
#include "recipe/render.h"
#include "recipe/token_output.h"
#include "recipe/tokenize.h"

namespace deepinfer::recipe {
namespace {

using Random = std::mt19937_64;

struct Collected : OutputSink {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  void on_reasoning(std::string_view text, SourceRange) override { reasoning += text; }
  void on_content(std::string_view text, SourceRange) override { content += text; }
  void on_call_begin(int, std::string_view name) override { calls.push_back({"", std::string(name), ""}); }
  void on_call_arguments(int, std::string_view json) override { calls.back().arguments += json; }
  void on_call_end(int, bool complete) override { EXPECT_TRUE(complete); }
};

// Without newlines at its ends, which the format does not keep. `markup` allows spellings of control tokens.
std::string random_text(Random& random, bool markup) {
  static const char* kPlain[] = {"a",  "word ", "\n", "\n\n", "{\"k\": 1}", "é漢",       "\"",
                                 "\\", "</",    "<",  " 12",  "\t",         "```json\n", "😀"};
  static const char* kMarkup[] = {"</think>", "<think>", "</｜DSML｜ parameter>", "<｜DSML｜ calls>", "｜DSML｜", "<｜User｜>"};
  std::string out;
  for (uint64_t n = random() % 8; n > 0; --n) {
    out += markup && random() % 4 == 0 ? kMarkup[random() % std::size(kMarkup)] : kPlain[random() % std::size(kPlain)];
  }
  while (!out.empty() && out.front() == '\n') out.erase(0, 1);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

Json random_json(Random& random, bool markup, int depth) {
  switch (random() % (depth > 2 ? 6 : 8)) {
    case 0: return nullptr;
    case 1: return (random() & 1) != 0;
    case 2: return static_cast<int64_t>(random());
    case 3: return static_cast<double>(static_cast<int64_t>(random() % 2000) - 1000) / 8.0;
    case 4:
    case 5: return random_text(random, markup) + (random() % 4 == 0 ? "\n" : "");
    case 6: {
      JsonArray list;
      for (uint64_t n = random() % 3; n > 0; --n) list.push_back(random_json(random, markup, depth + 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (uint64_t n = random() % 3; n > 0; --n)
        object.set("k" + std::to_string(n) + random_text(random, markup), random_json(random, markup, depth + 1));
      return object;
    }
  }
}

Message random_turn(Random& random, bool markup) {
  Message m{.role = Role::kAssistant};
  m.reasoning = random_text(random, markup);
  m.content.text = random_text(random, markup);
  static const char* kKeys[] = {"city", "a b", "q\"uote", "é", "n-1", "x>y", "path/to", "=", "string"};
  for (uint64_t n = random() % 4; n > 0; --n) {
    Json arguments = Json::object();
    for (uint64_t k = random() % 4; k > 0; --k)
      arguments.set(kKeys[random() % std::size(kKeys)], random_json(random, markup, 0));
    m.tool_calls.push_back(
        {"c" + std::to_string(n), "tool_" + std::to_string(random() % 3), to_compact_json(arguments)});
  }
  return m;
}

struct Rendered {
  Prompt prompt;
  std::vector<TokenSpan> tokens;  // of the turn, from behind <think> to before the end-of-sentence token
  std::string text;
};

Rendered render_turn(const Message& turn, Version version, const text::Tokenizer& tokenizer,
                     const SpecialIds& specials) {
  Conversation c;
  c.tools.push_back({.name = "tool_0"});
  c.messages.push_back({.role = Role::kUser, .content = {.text = "q"}});
  c.messages.push_back(turn);
  Rendered out;
  out.prompt = render(c, version);
  const std::vector<TokenSpan> all = encode_with_spans(out.prompt, tokenizer, specials).value();
  // The turn's <think> follows the first assistant header; its end is the only end-of-sentence token.
  size_t begin = 0, end = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (begin == 0 && all[i].id == specials[SpecialToken::kAssistant]) begin = i + 2;
    if (all[i].id == specials[SpecialToken::kEos]) end = i;
  }
  out.tokens.assign(all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end));
  out.text = out.prompt.text.substr(all[begin].begin, all[end].begin - all[begin].begin);
  return out;
}

void expect_turn(const Message& turn, const Collected& got, const std::string& text) {
  EXPECT_EQ(got.reasoning, *turn.reasoning) << text;
  EXPECT_EQ(got.content, turn.content.text) << text;
  ASSERT_EQ(got.calls.size(), turn.tool_calls.size()) << text;
  for (size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, turn.tool_calls[i].name);
    Result<Json> arguments = parse_json(got.calls[i].arguments);
    ASSERT_TRUE(arguments.ok()) << got.calls[i].arguments;
    EXPECT_TRUE(arguments.value() == parse_json(turn.tool_calls[i].arguments).value()) << got.calls[i].arguments << "\n"
                                                                                       << turn.tool_calls[i].arguments;
  }
}

class RoundTrip : public testing::TestWithParam<Version> {};

TEST_P(RoundTrip, TokensOfATurnParseToTheTurn) {
  const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  const SpecialIds specials = SpecialIds::find(tokenizer, GetParam()).value();
  const OutputVocabulary vocabulary(tokenizer);
  Random random(11);
  for (int round = 0; round < 400; ++round) {
    const Message turn = random_turn(random, true);
    const Rendered rendered = render_turn(turn, GetParam(), tokenizer, specials);
    ParserOptions options;
    options.parse_tool_calls = true;
    options.markers = true;
    options.initial = InitialStage::kReasoningStart;
    Collected got;
    TokenOutput output(options, &vocabulary, &got, false);
    // In pushes of one to three tokens.
    for (size_t i = 0; i < rendered.tokens.size();) {
      std::vector<int32_t> ids;
      for (uint64_t n = 1 + random() % 3; n > 0 && i < rendered.tokens.size(); --n)
        ids.push_back(rendered.tokens[i++].id);
      output.push_ids(ids);
    }
    const FinishReason reason = output.finish(FinishReason::kStop);
    EXPECT_EQ(reason, turn.tool_calls.empty() ? FinishReason::kStop : FinishReason::kToolCalls);
    expect_turn(turn, got, rendered.text);
    if (testing::Test::HasFailure()) FAIL() << "seed 11, round " << round;
  }
}

TEST_P(RoundTrip, TextOfATurnWithoutMarkupParsesToTheTurn) {
  const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  const SpecialIds specials = SpecialIds::find(tokenizer, GetParam()).value();
  Random random(12);
  for (int round = 0; round < 400; ++round) {
    const Message turn = random_turn(random, false);
    const Rendered rendered = render_turn(turn, GetParam(), tokenizer, specials);
    ParserOptions options;
    options.parse_tool_calls = true;
    options.initial = InitialStage::kReasoningStart;
    Collected got;
    OutputParser parser(options, &got);
    for (size_t i = 0; i < rendered.text.size();) {
      const size_t n = 1 + random() % 9;
      parser.feed(std::string_view(rendered.text).substr(i, n));
      i += n;
    }
    parser.finish(FinishReason::kStop);
    expect_turn(turn, got, rendered.text);
    if (testing::Test::HasFailure()) FAIL() << "seed 12, round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, RoundTrip, testing::Values(Version::kV4, Version::kV41));

}  // namespace
}  // namespace deepinfer::recipe
