#include "grammar/json_schema.h"

#include <fstream>

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

std::string refusal(std::string_view schema, const JsonSchemaOptions& options = {}) {
  auto grammar = compile_json_schema(schema, without_time_limit(options));
  return grammar.ok() ? "" : grammar.status().message();
}

void expect(const CompiledSchema& g, std::vector<std::string> good, std::vector<std::string> bad) {
  ASSERT_TRUE(g.ok()) << g.status.message();
  for (const std::string& text : good) EXPECT_TRUE(g.accepts(text)) << text;
  for (const std::string& text : bad) EXPECT_FALSE(g.accepts(text)) << text;
}

// Alternatives of alternatives (user trouble 1): S(n) = oneOf [{l: S(n-1)}, {r: S(n-1)}], without required and closed
// objects, so that every level needs the exact complement of the one below.
std::string nested_one_of(int n) {
  if (n == 0) return R"({"type":"integer"})";
  const std::string below = nested_one_of(n - 1);
  return R"({"oneOf":[{"type":"object","properties":{"l":)" + below + R"(}},{"type":"object","properties":{"r":)" +
         below + "}}]}";
}

TEST(JsonSchema, NestedOneOfIsExact) {
  const std::string schema = nested_one_of(9);
  const CompiledSchema g(schema);
  ASSERT_TRUE(g.ok()) << g.status.message();
  auto validator = validator_of(schema);
  std::string chain = "1";
  for (int level = 1; level <= 9; ++level) {
    // Besides a chain, members that make both sides of oneOf hold, or neither.
    for (const std::string& text :
         {R"({"l": )" + chain + R"(, "r": 1.5})", R"({"l": )" + chain + R"(, "r": )" + chain + "}",
          R"({"r": )" + chain + "}", R"({"l": )" + chain + "}", std::string("{}"), chain}) {
      EXPECT_EQ(g.accepts(text), validator->is_valid(json(text).root())) << text;
    }
    chain = R"({"l": )" + chain + R"(, "r": "x"})";
  }
  EXPECT_TRUE(g.accepts(chain));
}

// User trouble 3: escapes under a length bound.
TEST(JsonSchema, EscapesCountOnce) {
  const CompiledSchema g(R"({"type":"string","maxLength":80})");
  ASSERT_TRUE(g.ok());
  Matcher m(g.compiled);
  std::vector<uint32_t> mask(g.compiled->vocabulary().mask_words());
  auto allows = [&](char c) {
    EXPECT_TRUE(m.fill_mask(mask).ok());
    const auto t = static_cast<uint8_t>(c);
    return (mask[t / 32] >> (t % 32) & 1) != 0;
  };
  ASSERT_TRUE(m.accept_bytes("\""));
  EXPECT_TRUE(allows('\\'));
  ASSERT_TRUE(m.accept_bytes("\\"));
  for (char c : std::string("n\"\\ubfrt")) EXPECT_TRUE(allows(c)) << c;
  EXPECT_FALSE(allows('x'));
  auto repeat = [](const std::string& unit, int n) {
    std::string out = "\"";
    for (int i = 0; i < n; ++i) out += unit;
    return out + "\"";
  };
  for (const char* unit : {"a", "é", "😀", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\\""}) {
    EXPECT_TRUE(g.accepts(repeat(unit, 80))) << unit;
    EXPECT_FALSE(g.accepts(repeat(unit, 81))) << unit;
  }
}

TEST(JsonSchema, MemberOrder) {
  // Own properties, then those of $ref, allOf, anyOf, oneOf, then/else, dependentSchemas; then names that are only
  // required; then others.
  const std::string schema =
      R"({"properties": {"own": {}}, "required": ["own", "late"], "dependentSchemas": {"own": {"properties": {"dep": {}}, "required": ["dep"]}},
    "if": true, "then": {"properties": {"then": {}}, "required": ["then"]}, "oneOf": [{"properties": {"one": {}}, "required": ["one"]}],
    "anyOf": [{"properties": {"any": {}}, "required": ["any"]}], "allOf": [{"properties": {"all": {}}, "required": ["all"]}],
    "$ref": "#/$defs/r", "$defs": {"r": {"properties": {"ref": {}}, "required": ["ref"]}}})";
  const std::string right =
      R"({"own": 1, "ref": 1, "all": 1, "any": 1, "one": 1, "then": 1, "dep": 1, "late": 1, "x": 1})";
  const std::string other = R"({"late": 1, "dep": 1, "then": 1, "own": 1, "ref": 1, "all": 1, "any": 1, "one": 1})";
  expect(CompiledSchema(schema), {right}, {other});
  JsonSchemaOptions free;
  free.any_order = true;
  expect(CompiledSchema(schema, free), {right, other},
         {R"({"own": 1})",
          R"({"own": 1, "ref": 1, "all": 1, "any": 1, "one": 1, "then": 1, "dep": 1, "late": 1, "own": 2})"});
}

TEST(JsonSchema, NamesWithoutAPlaceMayStandAnywhereBehind) {
  expect(CompiledSchema(R"({"properties": {"p": {}}, "dependentRequired": {"q": ["x", "y"]}})"),
         {R"({"p": 1, "q": 1, "x": 1, "y": 1})", R"({"p": 1, "z": 0, "y": 1, "x": 1, "q": 1})", R"({"x": 1})"},
         {R"({"q": 1, "x": 1})", R"({"x": 1, "y": 1, "q": 1, "q": 2})", R"({"x": 1, "p": 1})"});
}

TEST(JsonSchema, NumbersAreExact) {
  expect(CompiledSchema(R"({"type": "number", "minimum": 0.05, "exclusiveMaximum": 12.5})"),
         {"0.05", "0.050", "0.06", "1", "12", "12.49999", "12.4999999999999999999999", "0.1"},
         {"0.049", "12.5", "12.50", "13", "100", "0", "-1", "5e1", "00.1"});
  expect(CompiledSchema(R"({"type": "number", "minimum": 0})"), {"0", "1e-5", "2.5E+3", "1e300"}, {"-1", "-1e-5"});
  expect(CompiledSchema(R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})"), {"1e-05", "0.5", "1", "1.0"},
         {"0", "0.0", "1.01", "1e1", "1e0000", "-0"});
  expect(CompiledSchema(R"({"type": "number", "maximum": -2.5})"), {"-2.5", "-3", "-2.50", "-1e9"},
         {"-2.4", "2.5", "0", "-0", "-2"});
  expect(CompiledSchema(R"({"type": "integer", "minimum": -12, "maximum": 345})"), {"-12", "0", "345", "99", "-1"},
         {"-13", "346", "01", "1.5", "-", "3450", "1e2"});
  expect(CompiledSchema(R"({"multipleOf": 0.25, "minimum": 0, "maximum": 3})"),
         {"0", "0.25", "0.5", "0.750", "2.75", "3.00"}, {"0.1", "0.255", "3.25", "2.6"});
  expect(CompiledSchema(R"({"type": "integer", "multipleOf": 1200})"), {"0", "1200", "-2400", "120000"},
         {"100", "1300", "200"});
  expect(CompiledSchema(R"({"type": "integer", "not": {"multipleOf": 3}, "minimum": 1})"), {"1", "2", "100"},
         {"3", "99", "0"});
  expect(CompiledSchema(R"({"type": "number", "not": {"type": "integer"}})"), {"0.5", "-1.25"}, {"1", "1.0", "2e1"});
}

TEST(JsonSchema, UniqueItemsOverListedValues) {
  expect(CompiledSchema(R"({"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": true, "minItems": 1})"),
         {R"(["a"])", R"(["b", "a"])", R"([3, "a", "b"])"}, {"[]", R"(["a", "a"])", R"([3, "b", 3])", R"(["c"])"});
  expect(CompiledSchema(R"({"items": {"type": ["boolean", "null"]}, "uniqueItems": true})"),
         {"[]", "[true, null, false]"}, {"[true, true]"});
  expect(
      CompiledSchema(
          R"({"items": {"type": "integer", "minimum": -1.5, "exclusiveMaximum": 3}, "uniqueItems": true, "maxItems": 3})"),
      {"[2, -1, 0]", "[]"}, {"[1, 1]", "[3]", "[-2]", "[-1, 0, 1, 2]"});
  EXPECT_NE(
      refusal(
          R"({"properties": {"t": {"items": {"enum": [[1], {}]}, "prefixItems": [{"const": 1}], "uniqueItems": true, "minItems": 3}}})")
          .find("\"uniqueItems\" at #/properties/t/uniqueItems"),
      std::string::npos);
}

TEST(JsonSchema, FewNamesAreMembersAndOccurOnce) {
  expect(CompiledSchema(R"({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}})"),
         {"{}", R"({"b": 1, "a": 2})", R"({"a": 1})"}, {R"({"a": 1, "a": 2})", R"({"c": 1})", R"({"a": "x"})"});
}

TEST(JsonSchema, BrokenRulesAboutFurtherMembers) {
  const CompiledSchema g(
      R"({"type": "object", "properties": {"p": {}}, "not": {"additionalProperties": {"type": "string"}}, "maxProperties": 3,
    "allOf": [{"not": {"patternProperties": {"^x": {"minimum": 5}}}}]})");
  expect(g, {R"({"x": 1})", R"({"p": "s", "x1": 1, "b": "s"})", R"({"x": 4, "b": 2})", R"({"b": "s", "x": 4})"},
         {R"({"x": 5})", R"({"b": 1})", "{}", R"({"x": "s"})", R"({"p": 1, "x": 6, "y": 1})",
          R"({"x": 1, "a": 1, "b": 1, "c": 1})"});
}

TEST(JsonSchema, UnevaluatedKeywords) {
  expect(
      CompiledSchema(
          R"({"anyOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}],
    "unevaluatedProperties": false})"),
      {R"({"a": null, "b": 1})", R"({"b": 1})", R"({"a": null})"},
      {R"({"a": 1, "b": 1})", R"({"a": null, "c": 1})", "{}"});
  expect(CompiledSchema(R"({"allOf": [{"prefixItems": [{"type": "null"}]}], "unevaluatedItems": {"type": "string"}})"),
         {"[]", "[null]", R"([null, "s"])"}, {"[1]", "[null, null]"});
}

TEST(JsonSchema, ContradictionsAreRefused) {
  for (const char* schema : {"false", R"({"enum": []})", R"({"type": "integer", "minimum": 5, "maximum": 3})",
                             R"({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3})",
                             R"({"allOf": [{"type": "string"}, {"type": "integer"}]})",
                             R"({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 1})",
                             R"({"type": "string", "pattern": "^a$", "not": {"const": "a"}})",
                             R"({"type": "object", "required": ["a"], "properties": {"a": false}})",
                             R"({"type": "array", "minItems": 1, "items": {"$ref": "#"}})",
                             R"({"type": "object", "required": ["a"], "additionalProperties": false})",
                             R"({"type": "string", "format": "ipv4", "maxLength": 3})",
                             R"({"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9})"}) {
    EXPECT_NE(refusal(schema).find("no valid document"), std::string::npos) << schema << "\n" << refusal(schema);
  }
}

TEST(JsonSchema, RefusalsNameKeywordAndPath) {
  for (auto [schema, place] :
       {std::pair{R"({"properties": {"a": {"pattern": "(a"}}})", "\"pattern\" at #/properties/a/pattern"},
        {R"({"items": {"patternProperties": {"(": {}}}})", "\"patternProperties\" at #/items/patternProperties"},
        {R"({"items": {"multipleOf": 0.123456789}})", "\"multipleOf\" at #/items/multipleOf"}}) {
    EXPECT_NE(refusal(schema).find(place), std::string::npos) << refusal(schema);
  }
}

TEST(JsonSchema, LargeInputsEndWithinTheLimits) {
  // 100,000 enum values.
  std::string values;
  for (int i = 0; i < 100'000; ++i) values += (i ? ",\"value " : "\"value ") + std::to_string(i) + "\"";
  expect(CompiledSchema(R"({"enum": [)" + values + "]}"), {"\"value 99999\""}, {"\"value 100000\"", "\"value\""});
  expect(CompiledSchema(R"({"type": "string", "not": {"enum": [)" + values + "]}}"), {"\"value 100000\""},
         {"\"value 99999\""});
  // 10,000 levels.
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += R"({"not":)";
  EXPECT_NE(refusal(deep + "{}" + std::string(10'000, '}')).find("levels"), std::string::npos);
  // More alternatives than can be combined.
  std::string pairs;
  for (int i = 0; i < 40; ++i) {
    const std::string n = std::to_string(i);
    pairs +=
        (i ? "," : "") + std::string(R"({"anyOf":[{"required":["a)") + n + R"("]},{"required":["b)" + n + R"("]}]})";
  }
  EXPECT_NE(refusal(R"({"allOf":[)" + pairs + "]}").find("alternatives"), std::string::npos);
}

// Long chains must not be walked on the call stack.
TEST(JsonSchema, LongChainsEndWithinTheLimits) {
  constexpr int kLong = 5'000;
  auto chain = [](const std::string& letter, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) {
      out += "\"" + letter + std::to_string(i) +
             R"(": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/)" + letter +
             std::to_string(i + 1) + "\"}}}, ";
    }
    return out + "\"" + letter + std::to_string(n) + R"(": {"type": "object"})";
  };
  EXPECT_EQ(refusal(R"({"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": {)" + chain("a", kLong) +
                    ", " + chain("b", kLong) + "}}"),
            "");
  std::string dependencies, members, links;
  for (int i = 0; i < kLong; ++i) {
    const std::string n = std::to_string(i);
    dependencies += (i ? ",\"a" : "\"a") + n + "\":[\"b" + n + "\"]";
    members += (i ? ",\"a" : "\"a") + n + "\":{}";
    links += "\"l" + n + R"(": {"allOf": [{"$ref": "#/$defs/l)" + std::to_string(i + 1) + "\"}]}, ";
  }
  EXPECT_NE(refusal(R"({"dependentRequired": {)" + dependencies + "}}").find("\"dependentRequired\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"minProperties": 2, "properties": {)" + members + "}}").find("\"minProperties\""),
            std::string::npos);
  expect(CompiledSchema(R"({"$ref": "#/$defs/l0", "$defs": {)" + links + R"("l5000": {"type": "null"}}})"), {"null"},
         {"1"});
  const std::string listed = std::string(900, '[') + std::string(900, ']');
  EXPECT_NE(refusal(R"({"minItems": 1, "enum": [)" + listed + R"(], "$ref": "#/$defs/l0", "$defs": {)" + links +
                    R"("l5000": {"items": {"$ref": "#/$defs/l0"}}}})")
                .find("nested too deeply"),
            std::string::npos);
}

TEST(JsonSchema, StopsWhenCancelledOrLate) {
  std::atomic<bool> cancel = true;
  JsonSchemaOptions options;
  options.limits.cancel = &cancel;
  EXPECT_FALSE(compile_json_schema(nested_one_of(9), options).ok());
}

TEST(JsonSchema, WhiteSpaceIsBoundedOrAbsent) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"], "additionalProperties": false})";
  expect(CompiledSchema(schema), {R"({"a": [1, 2]})", R"({"a":[1,2]})", "{\n  \"a\" : [\n    1 ,\n    2\n  ]\n}"},
         {R"({"a": [1, 2]} )", " {\"a\":[]}", "{\"a\":" + std::string(64, ' ') + "[]}",
          "{\"a\":[1" + std::string(64, '\n') + "]}"});
  JsonSchemaOptions compact;
  compact.compact = true;
  expect(CompiledSchema(schema, compact), {R"({"a":[1,2]})"}, {R"({"a": [1,2]})", R"({"a":[1, 2]})"});
}

TEST(JsonSchema, PartsOfLargerGrammars) {
  GrammarBuilder b;
  auto schema = add_json_schema(b, R"({"type": "boolean"})");
  ASSERT_TRUE(schema.ok());
  auto grammar = b.finish(b.sequence({b.literal("<"), schema.value(), b.literal("|"), any_json(b), b.literal("|"),
                                      any_json_object(b), b.literal(">")}));
  ASSERT_TRUE(grammar.ok());
  auto compiled = Compiled::create(std::move(grammar).value(), byte_vocabulary());
  ASSERT_TRUE(compiled.ok());
  for (auto [text, good] :
       {std::pair{R"(<true|[1, {"a": null}]|{"b": 1}>)", true}, {"<1|1|{}>", false}, {"<true|1|[]>", false}}) {
    Matcher m(compiled.value());
    EXPECT_EQ(m.accept_bytes(text) && m.is_complete(), good) << text;
  }
}

}  // namespace
}  // namespace deepinfer::grammar
