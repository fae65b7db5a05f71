// Lark grammars, and custom tools whose input follows one.
#include "grammar/lark.h"

#include "grammar/tool_grammar.h"
#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

struct Lark {
  std::shared_ptr<Compiled> compiled;
  Status status;

  explicit Lark(std::string_view source) {
    GrammarBuilder b;
    auto e = add_lark(b, source);
    status = e.status();
    if (!e.ok()) return;
    auto grammar = b.finish(e.value(), true);
    status = grammar.status();
    if (grammar.ok()) compiled = Compiled::create(std::move(grammar).value(), bundled_vocabulary()).value();
  }
  bool accepts(std::string_view text) const { return compiled != nullptr && matches(compiled, text); }
};

TEST(Lark, RulesTerminalsAndCounts) {
  const Lark g(R"lark(
// arithmetic
?start: sum
?sum: product | sum "+" product -> add
?product: atom | product "*" atom
?atom: NUMBER | "-" atom -> neg | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
)lark");
  ASSERT_TRUE(g.compiled) << g.status.message();
  for (const char* text : {"1", "1+2*3", " ( 1.5e3 + 2 ) * -4 ", "-(1)"}) EXPECT_TRUE(g.accepts(text)) << text;
  for (const char* text : {"", "1+", "(1", "1 2", "a", "1\n+2"}) EXPECT_FALSE(g.accepts(text)) << text;
  const Lark counts("start: \"a\"~2 [B] \"c\"..\"e\"+ \"Se\"i?\nB.2: /b{2}/ | \"\\x42\\u00e9\"\n");
  ASSERT_TRUE(counts.compiled) << counts.status.message();
  for (const char* text : {"aac", "aabbcde", "aaBédsE", "aaceSE"}) EXPECT_TRUE(counts.accepts(text)) << text;
  for (const char* text : {"ac", "aab", "aabc", "aaf", "aacs"}) EXPECT_FALSE(counts.accepts(text)) << text;
  EXPECT_TRUE(Lark("start: a?\n?a: /x+/~1..2\n").accepts("xx"));
  EXPECT_TRUE(Lark("start: (\"x\" start \"y\")?").accepts("xxyy"));
}

TEST(Lark, RefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"a: \"x\"", "'start'"},
      {"start: b", "rule 'b' is not defined"},
      {"start: B", "terminal 'B' is not defined"},
      {"start: A\nA: \"x\" A?", "terminal 'A', which needs itself"},
      {"start: a{\"x\"}\na{x}: x", "templates"},
      {"start: /x/i", "flags 'i'"},
      {"start: \"x\"\n%declare A", "%declare"},
      {"%import python.NAME\nstart: NAME", "%import from other modules"},
      {"%import common.UNKNOWN\nstart: UNKNOWN", "common.UNKNOWN"},
      {"start: \"x", "no end"},
      {"start: /x", "no end"},
      {"start: (\"x\"", "closing parenthesis"},
      {"start: \"x\"~3..2", "smaller"},
      {"start: \"x\"\nstart: \"y\"", "defined twice"},
      {"start: /(?<n>a)\\k<n>/", "back"},
      {"start: start \"x\"", "'start'"},
      {"start: \"x\" )", "expected here"},
  };
  for (auto [source, part] : cases) {
    const Lark g(source);
    EXPECT_FALSE(g.status.ok()) << source;
    EXPECT_NE(g.status.message().find(part), std::string::npos) << source << "\n" << g.status.message();
  }
  std::string deep = "start: ";
  for (int i = 0; i < 5000; ++i) deep += "(";
  EXPECT_FALSE(Lark(deep).status.ok());
}

TEST(Lark, CustomToolsFollowTheirGrammar) {
  const auto call = [](const char* name, const char* input) {
    return fmt::format(
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"{}\">\n<｜DSML｜ parameter name=\"input\" "
        "string=\"true\">{}</｜DSML｜ parameter>\n"
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        name, input);
  };
  const auto compiled = compile({ConstraintKind::kTools, R"({"tools": [
    {"name": "sql", "input": {"syntax": "lark", "definition": "start: \"SELECT \" /[a-z]+/ (\" WHERE \" /[a-z]+/ \"=\" /[0-9]+/)?"}},
    {"name": "time", "input": {"syntax": "regex", "definition": "^[0-2][0-9]:[0-5][0-9]$"}}]})"});
  ASSERT_NE(compiled, nullptr);
  const auto accepts = [&](const std::string& text) {
    Matcher m(compiled);
    for (text::TokenId id : bundled_tokenizer().encode(text, text::AddedTokens::kRecognise)) {
      if (!m.accept(static_cast<uint32_t>(id))) return false;
    }
    return m.is_complete();
  };
  EXPECT_TRUE(accepts(call("sql", "SELECT a WHERE b=12")));
  EXPECT_FALSE(accepts(call("sql", "SELECT a; DROP")));
  EXPECT_TRUE(accepts(call("time", "23:59")));
  EXPECT_FALSE(accepts(call("time", "23:60")));
  EXPECT_TRUE(accepts("No call."));
  const auto bad = compile_constraint(
      {ConstraintKind::kTools, R"({"tools": [{"name": "t", "input": {"syntax": "peg", "definition": "x"}}]})"},
      bundled_vocabulary());
  EXPECT_NE(bad.status().message().find("'peg'"), std::string::npos) << bad.status().message();
}

}  // namespace
}  // namespace deepinfer::grammar
