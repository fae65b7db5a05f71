// DSML tool calls that follow schemas, and so_args.
#include "grammar/tool_grammar.h"

#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

constexpr const char* kWeather =
    R"({"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": {"type": "object",
  "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "unit": {"enum": ["c", "f", null]}, "at": {"type": ["string", "number"]},
    "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"], "additionalProperties": false}},
  "required": ["city"], "additionalProperties": false}}})";

std::shared_ptr<Compiled> tools(const std::string& list, const std::string& more = "") {
  return compile({ConstraintKind::kTools, R"({"tools": [)" + list + "]" + more + "}"});
}

bool accepts(const std::shared_ptr<Compiled>& compiled, const std::string& text) {
  Matcher m(compiled);
  for (text::TokenId id : bundled_tokenizer().encode(text, text::AddedTokens::kRecognise)) {
    const bool allowed = has_bit(mask_of(m), static_cast<uint32_t>(id));
    EXPECT_EQ(m.accept(static_cast<uint32_t>(id)), allowed);
    if (!allowed) return false;
  }
  return m.is_complete();
}

std::string param(const std::string& name, bool is_string, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</｜DSML｜ parameter>";
}
std::string invoke(const std::string& name, const std::string& params) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + params + "\n</｜DSML｜ invoke>";
}
std::string block(const std::string& invokes) { return "\n\n<｜DSML｜ calls>\n" + invokes + "\n</｜DSML｜ calls>"; }

TEST(ToolGrammar, StrictArgumentsFollowTheSchema) {
  const auto compiled = tools(kWeather);
  const auto call = [](const std::string& params) { return "Let me see." + block(invoke("get_weather", params)); };
  EXPECT_TRUE(accepts(compiled, "No call."));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "Oslo"))));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "São \"Paulo\" <b>\n") + "\n" + param("days", false, "3"))));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "x") + "\n" + param("unit", true, "c"))));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "x") + "\n" + param("unit", false, "null"))));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "x") + "\n" + param("at", true, "17") + "\n" +
                                     param("where", false, "{\"lat\": -1.5}"))));
  EXPECT_TRUE(accepts(compiled, call(param("city", true, "x") + "\n" + param("at", false, "17"))));
  EXPECT_FALSE(accepts(compiled, call("")));
  EXPECT_FALSE(accepts(compiled, call(param("days", false, "3"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", false, "\"Oslo\""))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, ""))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "a city name that is far too long"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + "\n" + param("days", false, "12"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + "\n" + param("days", true, "3"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + "\n" + param("unit", true, "k"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + "\n" + param("other", true, "k"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + "\n" + param("where", false, "{\"lat\":-1.5}"))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x") + param("days", false, "3"))));
  EXPECT_FALSE(accepts(compiled, "x" + block(invoke("get_time", ""))));
  EXPECT_FALSE(accepts(compiled, call(param("city", true, "x")) + "."));
}

TEST(ToolGrammar, RequiredOpenedAndSingleCalls) {
  const std::string call = invoke("get_weather", param("city", true, "Oslo"));
  const auto required = tools(kWeather, R"(, "required": true)");
  EXPECT_TRUE(accepts(required, block(call)));
  EXPECT_TRUE(accepts(required, block(call + "\n" + call)));
  EXPECT_FALSE(accepts(required, "text" + block(call)));
  EXPECT_FALSE(accepts(required, ""));
  const auto opened = tools(kWeather, R"(, "block_opened": true, "parallel": false)");
  EXPECT_TRUE(accepts(opened, call + "\n</｜DSML｜ calls>"));
  EXPECT_FALSE(accepts(opened, call + "\n" + call + "\n</｜DSML｜ calls>"));
}

TEST(ToolGrammar, LooseToolsAndMixtures) {
  const auto mixed = tools(std::string(kWeather) + R"(, {"name": "note"})");
  EXPECT_TRUE(accepts(mixed, block(invoke("note", ""))));
  EXPECT_TRUE(accepts(
      mixed, block(invoke("note", param("any key", true, "a\nb") + "\n" + param("k", false, "[1, {\"a\": null}]")))));
  EXPECT_FALSE(accepts(mixed, block(invoke("note", param("k", false, "[1,")))));
  EXPECT_FALSE(accepts(mixed, block(invoke("get_weather", param("k", true, "x")))));
}

TEST(ToolGrammar, TheMarkerStandsOnlyInMarkup) {
  const auto marker = static_cast<uint32_t>(*bundled_tokenizer().find_added("｜DSML｜"));
  Matcher m(tools(kWeather));
  EXPECT_FALSE(has_bit(mask_of(m), marker));
  ASSERT_TRUE(m.accept_bytes("text <"));
  EXPECT_FALSE(has_bit(mask_of(m), marker));
  ASSERT_TRUE(m.accept_bytes("\n\n<"));
  EXPECT_TRUE(has_bit(mask_of(m), marker));
  ASSERT_TRUE(m.accept(marker));
  EXPECT_EQ(m.forced_bytes(), " calls>\n<");
}

TEST(ToolGrammar, RefusedByName) {
  const auto error = [](const std::string& source) {
    return compile_constraint({ConstraintKind::kTools, source}, bundled_vocabulary()).status().message();
  };
  EXPECT_NE(error(R"({"tools": []})").find("tools"), std::string::npos);
  EXPECT_NE(error(R"({"tools": [{"name": "a\"b"}]})").find("name"), std::string::npos);
  EXPECT_NE(error(R"({"tools": [{"name": "f", "strict": true, "parameters": {"type": "object"}}]})")
                .find("additionalProperties"),
            std::string::npos);
  EXPECT_NE(error(R"({"tools": [{"name": "f", "strict": true, "parameters": {"type": "string"}}]})").find("tool 'f'"),
            std::string::npos);
  EXPECT_NE(error(R"({"tools": [{"name": "f", "strict": true, "parameters": {"type": "strng"}}]})"), "");
}

TEST(ToolGrammar, AThousandCallsParse) {
  std::mt19937_64 random(12);
  const auto compiled = tools(kWeather, R"(, "required": true)");
  int ended = 0;
  for (int i = 0; i < 1000; ++i) {
    const Walk walk = random_walk(compiled, random, 10, 400);
    if (!walk.ended) continue;
    ++ended;
    EXPECT_TRUE(walk.text.ends_with("</｜DSML｜ calls>"));
    EXPECT_NE(walk.text.find("<｜DSML｜ parameter name=\"city\" string=\"true\">"), std::string::npos) << walk.text;
  }
  EXPECT_GT(ended, 500);
}

TEST(SoArgs, Read) {
  auto regex = parse_so_args(R"({"schema_type": "regex", "schema": "a+"})");
  ASSERT_TRUE(regex.ok());
  EXPECT_EQ(regex.value().constraint, (Constraint{ConstraintKind::kRegex, "a+"}));
  auto json = parse_so_args(
      R"({"schema_type": "json", "schema": {"type": "null"}, "trigger_token_ids": [5, 6], "bound_token_id": 7})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json.value().constraint.kind, ConstraintKind::kJsonSchema);
  EXPECT_TRUE(matches(compile(json.value().constraint), "null"));
  EXPECT_EQ(json.value().trigger_token_ids, (std::vector<uint32_t>{5, 6}));
  EXPECT_EQ(json.value().bound_token_id, 7u);
  for (const char* bad :
       {"[]", "{}", R"({"schema_type": "lark", "schema": "x"})", R"({"schema_type": "regex", "schema": {}})",
        R"({"schema_type": "regex", "schema": "x", "bound_token_id": 1})",
        R"({"schema_type": "regex", "schema": "x", "trigger_token_ids": [-1]})",
        R"({"schema_type": "regex", "schema": "x", "trigger_token_ids": [1], "bound_token_id": [1]})",
        R"({"schema_type": "regex", "schema": "x", "serialized": 1})"}) {
    EXPECT_FALSE(parse_so_args(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace deepinfer::grammar
