// Arrays of unique items whose values cannot be listed: equality, dead ends, masks, rollback, limits.
#include <random>

#include "grammar/json_follow.h"
#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

// Bytes, and tokens that end items, begin them, and hold several.
std::shared_ptr<const Vocabulary> rough_vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = [] {
    std::vector<Vocabulary::Entry> entries(256);
    for (int i = 0; i < 256; ++i) entries[static_cast<size_t>(i)].bytes = std::string(1, static_cast<char>(i));
    for (const char* t : {R"(",")",      R"(", ")",    R"("a")",       R"("a",)",     R"(,"a")", R"(a")",
                          R"(a","a)",    R"(a","a"])", R"(["a","a"])", R"(["a","b")", R"("])",   R"("],[")",
                          "1,",          ",1",         "1,1",          "1, 1",        "[1,1]",   "[1",
                          "1]",          "10",         ",10,",         "1.0",         ".0",      "e0",
                          "e0,",         "ab",         R"(\u0061)",    R"(\u00)",     "61",      R"(\u0061",)",
                          "{}",          ",{}",        "{},{}",        "[],[]",       ",[],",    R"({"k":1)",
                          R"({"k":1},)", R"(},{"k":)", ":1},",         "true",        "false",   "true,true",
                          "null,",       " ",          "  ",           ", ",          " ,",      "a",
                          R"("b","b")",  "00",         "aa\"",         "aa",          ",\"aa"}) {
      entries.push_back({t});
    }
    const auto end = static_cast<uint32_t>(entries.size());
    entries.push_back({""});
    return Vocabulary::create(std::move(entries), {end}).value();
  }();
  return vocabulary;
}

const char* const kSchemas[] = {
    R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 2, "pattern": "^[ab]*$"}, "uniqueItems": true})",
    R"({"type": "array", "items": {"type": "string", "pattern": "^(a|b+)$"}, "uniqueItems": true, "minItems": 2})",
    R"({"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{2}$"}, "uniqueItems": true, "maxItems": 9})",
    R"({"type": "array", "items": {"type": "number"}, "uniqueItems": true})",
    R"({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 150}, "uniqueItems": true})",
    R"({"type": "array", "items": {"type": "integer", "multipleOf": 5}, "uniqueItems": true, "minItems": 2})",
    R"({"uniqueItems": true})",
    R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "properties": {"k": {"type": "integer"}, "l": {"type": "string"}}}})",
    R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "properties": {"k": {"enum": [1, 2]}, "a": {"type": "boolean"}},
        "required": ["k"], "additionalProperties": false}})",
    R"({"type": "array", "uniqueItems": true, "items": {"type": "array", "uniqueItems": true, "items": {"type": ["string", "number"]}}})",
    R"({"type": "array", "uniqueItems": true, "prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "items": {"type": ["boolean", "string"]}})",
    R"({"type": "array", "uniqueItems": true, "items": {"type": "string"}, "contains": {"const": "a"}})",
    R"({"anyOf": [{"type": "array", "items": {"type": "string"}, "uniqueItems": true, "maxItems": 3},
                  {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 3}]})",
    R"({"type": "object", "properties": {"a": {"items": {"type": "string"}, "type": "array", "uniqueItems": true},
        "b": {"type": "array", "items": {"$ref": "#/properties/a"}, "uniqueItems": true}}})",
};

bool has(const std::vector<uint32_t>& mask, uint32_t t) { return mask[t >> 5] >> (t & 31) & 1; }

std::shared_ptr<Compiled> bind(std::string_view schema, bool any_order = false, const Limits& limits = {}) {
  JsonSchemaOptions options;
  options.any_order = any_order;
  auto grammar = compile_json_schema(schema, without_time_limit(options));
  EXPECT_TRUE(grammar.ok()) << grammar.status().message() << "\n" << schema;
  return grammar.ok() ? Compiled::create(std::move(grammar).value(), rough_vocabulary(), limits).value() : nullptr;
}

// A walk through masks that likes to write what was written before. Every token is tried where `thorough`.
std::string walk(const std::shared_ptr<Compiled>& compiled, std::mt19937& random, bool thorough) {
  const Vocabulary& v = *rough_vocabulary();
  std::vector<uint32_t> mask(v.mask_words());
  Matcher m(compiled);
  std::string text;
  std::vector<uint32_t> past;
  while (text.size() < 90) {
    EXPECT_TRUE(m.fill_mask(mask).ok()) << m.status().message();
    std::vector<uint32_t> allowed, likely;
    for (uint32_t t = 0; t + 1 < v.size(); ++t) {
      if (thorough) {
        const bool fits = m.accept(t);
        if (fits) m.rollback(1);
        EXPECT_EQ(fits, has(mask, t)) << "after " << text << " token " << v.bytes(t);
      }
      if (!has(mask, t)) continue;
      allowed.push_back(t);
      if (t >= 256 || std::string_view("\"ab10,]}{").find(static_cast<char>(t)) != std::string_view::npos)
        likely.push_back(t);
    }
    const bool end = has(mask, v.end_tokens()[0]);
    EXPECT_EQ(end, m.is_complete());
    EXPECT_TRUE(end || !allowed.empty()) << "dead end after " << text;
    if (end && (allowed.empty() || random() % 3 == 0)) return text;
    const std::vector<uint32_t>& from = likely.empty() || random() % 12 == 0 ? allowed : likely;
    if (from.empty() || testing::Test::HasFailure()) return "";
    uint32_t t = from[random() % from.size()];
    if (!past.empty() && random() % 2 == 0) {
      const uint32_t again = past[random() % past.size()];
      if (has(mask, again)) t = again;
    }
    EXPECT_TRUE(m.accept(t));
    past.push_back(t);
    text += v.bytes(t);
  }
  return "";
}

TEST(UniqueItems, MasksAreExactAndLeadOn) {
  std::mt19937 random(3);
  for (const char* schema : kSchemas) {
    auto validator = validator_of(schema);
    auto compiled = bind(schema);
    int finished = 0;
    for (int i = 0; i < 80 && !HasFailure(); ++i) {
      const std::string text = walk(compiled, random, i < 20);
      if (text.empty()) continue;
      ++finished;
      auto document = JsonDocument::parse(text);
      if (!document.ok() && document.status().message().find("occurs twice") != std::string::npos) continue;
      ASSERT_TRUE(document.ok()) << text;
      EXPECT_TRUE(validator->is_valid(document.value().root())) << schema << "\n" << text;
    }
    EXPECT_GT(finished, 15) << schema;
    ASSERT_FALSE(HasFailure()) << schema;
  }
}

TEST(UniqueItems, EqualityOfValues) {
  const CompiledSchema any(R"({"uniqueItems": true})");
  for (const char* text :
       {"[1, 1]", "[1, 1.0]", "[1e0, 1]", "[0, -0]", "[100, 1E2]", R"(["a", "\u0061"])", R"(["😀", "\ud83d\ude00"])",
        R"(["/", "\/"])", R"([{"a": 1, "b": [2]}, {"b": [2.0], "a": 10e-1}])", "[[], [ ]]", "[null, 2, null]",
        R"(["\"\\\n", "\u0022\u005c\u000A"])", R"([[1], ["1"], [1]])"}) {
    EXPECT_FALSE(any.accepts(text)) << text;
  }
  for (const char* text : {"[1, true]", "[0, false]", R"([1, "1"])", "[1, 10, 100, 11, 1.5, 1e1000]",
                           R"(["a", "A", "ab", ""])", R"([{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1}])",
                           "[[1, 2], [2, 1]]", R"([["a"], "a"])", R"({"a": 1})", "[]"}) {
    EXPECT_TRUE(any.accepts(text)) << text;
  }
}

TEST(UniqueItems, ValuesRunOut) {
  // 102 values: more than are listed as members in any order.
  const CompiledSchema numbers(
      R"({"items": {"type": "integer", "minimum": 0, "maximum": 101}, "uniqueItems": true, "type": "array"})");
  std::string text = "[";
  for (int i = 0; i <= 101; ++i) text += (i ? "," : "") + std::to_string(i);
  Matcher m(numbers.compiled);
  ASSERT_TRUE(m.accept_bytes(text));
  EXPECT_FALSE(m.accept_bytes(","));
  EXPECT_TRUE(m.accept_bytes("]"));
  EXPECT_TRUE(m.is_complete());
  // Each beginning of a value is only open as long as it leads to a new one.
  const CompiledSchema pairs(
      R"({"items": {"type": "string", "pattern": "^[a-c]x?$"}, "uniqueItems": true, "minItems": 2})");
  EXPECT_FALSE(Matcher(pairs.compiled).accept_bytes(R"(["a", "ax", "a)"));
  EXPECT_TRUE(Matcher(pairs.compiled).accept_bytes(R"(["a", "bx", "a)"));
}

TEST(UniqueItems, RollbackForkAndRestore) {
  auto compiled = bind(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})");
  std::vector<uint32_t> a(compiled->vocabulary().mask_words()), b = a;
  Matcher m(compiled);
  ASSERT_TRUE(m.accept_bytes(R"(["a", "b", )"));
  Matcher fork = m.fork();
  ASSERT_TRUE(m.accept_bytes(R"("c", "b)"));
  EXPECT_FALSE(m.accept_bytes("\""));
  EXPECT_TRUE(fork.accept_bytes(R"("bb", "c"])"));
  auto restored = Matcher::restore(compiled, m.serialise());
  ASSERT_TRUE(restored.ok());
  ASSERT_TRUE(m.fill_mask(a).ok());
  ASSERT_TRUE(restored.value().fill_mask(b).ok());
  EXPECT_EQ(a, b);
  m.rollback(1);
  EXPECT_TRUE(m.accept_bytes(R"("c"])"));
  EXPECT_TRUE(m.is_complete());
}

TEST(UniqueItems, LimitsAreNamed) {
  Limits limits;
  limits.unique_items_max = 5;
  limits.unique_item_bytes_max = 20;
  auto compiled = bind(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})", false, limits);
  Matcher many(compiled);
  EXPECT_FALSE(many.accept_bytes(R"(["1", "2", "3", "4", "5", "6", "7")"));
  EXPECT_NE(many.status().message().find("unique_items_max"), std::string::npos) << many.status().message();
  Matcher lengthy(compiled);
  EXPECT_FALSE(lengthy.accept_bytes(R"(["12345678901234567890")"));
  EXPECT_NE(lengthy.status().message().find("unique_item_bytes_max"), std::string::npos) << lengthy.status().message();
}

TEST(UniqueItems, SurvivesTheLossOfAllStates) {
  Limits limits;
  limits.memory_bytes_max = 4 << 20;
  auto compiled = bind(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})", false, limits);
  Matcher m(compiled);
  std::vector<uint32_t> mask(compiled->vocabulary().mask_words());
  ASSERT_TRUE(m.accept_bytes("["));
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE(m.accept_bytes("\"item number " + std::to_string(i) + "\",")) << i << m.status().message();
    ASSERT_TRUE(m.fill_mask(mask).ok()) << m.status().message();
  }
  EXPECT_FALSE(m.accept_bytes("\"item number 7\""));
  EXPECT_TRUE(m.accept_bytes("\"item number 150\"]"));
}

TEST(UniqueItems, AnyOrderBeyondAWord) {
  std::string schema = R"({"type": "object", "additionalProperties": false, "properties": {)", required;
  for (int i = 0; i < 150; ++i)
    schema += std::string(i ? "," : "") + "\"m" + std::to_string(i) + "\": {\"type\": \"integer\"}";
  schema += R"(}, "required": ["m3", "m70", "m149"]})";
  JsonSchemaOptions options;
  options.any_order = true;
  const CompiledSchema s(schema, options);
  ASSERT_TRUE(s.ok()) << s.status.message();
  EXPECT_TRUE(s.accepts(R"({"m149": 1, "m70": 2, "m64": 0, "m3": 4, "m63": 1})"));
  EXPECT_FALSE(s.accepts(R"({"m149": 1, "m70": 2})"));
  EXPECT_FALSE(s.accepts(R"({"m149": 1, "m70": 2, "m3": 4, "m70": 1})"));
}

TEST(FollowJson, EqualValuesAreFollowed) {
  for (const char* value :
       {"1", "-12.50", "0", "1e300", R"("a\"é😀\\/")", "[1, [], {}]", R"({"a": "x", "ab": [true, null]})"}) {
    const JsonDocument document = json(value);
    for (const char* spelled :
         {"1", "1.0", "10e-1", "-12.5", "-1.25e1", "0", "-0.0", "0.1e301", R"("a\"\u00E9\ud83d\ude00\\\/")",
          R"("a\u0022é😀\u005c/")", "[ 1 , [ ] ,{}]", R"({ "\u0061b" : [true,null] , "a":"x"})"}) {
      const JsonDocument other = json(spelled);
      const bool equal = json_equal(document.root(), other.root());
      std::string a, b;
      append_canonical_json(document.root(), a);
      append_canonical_json(other.root(), b);
      EXPECT_EQ(a == b, equal) << value << " " << spelled;
      const std::string_view text = spelled;
      for (size_t n = 0; n < text.size() && equal; ++n) {
        ByteSet next;
        EXPECT_TRUE(follow_json(text.substr(0, n), document.root(), &next)) << text.substr(0, n) << " of " << value;
        EXPECT_TRUE(next.has(static_cast<uint8_t>(text[n]))) << text.substr(0, n) << " of " << value;
      }
    }
  }
  ByteSet next;
  EXPECT_FALSE(follow_json(R"("ab)", json(R"("ac")").root(), &next));
  EXPECT_FALSE(follow_json("12", json("13").root(), &next));
  EXPECT_FALSE(follow_json(R"({"a": 1, "c)", json(R"({"a": 1, "b": 2})").root(), &next));
}

}  // namespace
}  // namespace deepinfer::grammar
