#include "grammar/json_value.h"

#include <random>

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  auto document = JsonDocument::parse(text, limits);
  return document.ok() ? "" : document.status().message();
}

TEST(JsonValue, KeepsOrderNumbersAndDecodesStrings) {
  JsonDocument d = json(R"( {"z": 1.50e+2, "a": [true, null, "\u00e9\ud83d\ude00\n\/"], "": {}} )");
  const JsonValue& root = d.root();
  ASSERT_EQ(root.size(), 3u);
  EXPECT_EQ(root.members()[0].name, "z");
  EXPECT_EQ(root.members()[2].name, "");
  EXPECT_EQ(root.find("z")->text(), "1.50e+2");
  EXPECT_EQ((*root.find("a"))[2].text(), "é😀\n/");
  EXPECT_EQ(root.find("b"), nullptr);
  std::string out;
  append_json(root, out);
  EXPECT_EQ(out, R"({"z":1.50e+2,"a":[true,null,"é😀\n/"],"":{}})");
  JsonDocument moved = std::move(d);
  EXPECT_EQ(moved.root().find("a")->size(), 3u);
}

TEST(JsonValue, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           "nul",
                           "{\"a\":1,}",
                           "[1,]",
                           "[1 2]",
                           "{\"a\" 1}",
                           "{a:1}",
                           "01",
                           "1.",
                           ".5",
                           "-",
                           "1e",
                           "+1",
                           "\"\t\"",
                           "\"\\x41\"",
                           "\"\\u12\"",
                           "\"\\ud83d\"",
                           "\"\\ude00x\"",
                           "\"\xff\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xc0\xaf\"",
                           "\"a",
                           "[",
                           "{",
                           "1 2",
                           "NaN",
                           "{\"a\":1,\"a\":2}"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
  EXPECT_NE(error_of("{\"a\":1, \"b\":2, \"a\":3}").find("\"a\" occurs twice"), std::string::npos);
}

TEST(JsonValue, NamesTheLimitsItReaches) {
  EXPECT_NE(error_of(std::string(1'001, '[')).find("1000 levels"), std::string::npos);
  EXPECT_NE(error_of("[1]", {.bytes_max = 2}).find("limit is 2"), std::string::npos);
  EXPECT_EQ(error_of(std::string(999, '[') + std::string(999, ']')), "");
}

TEST(JsonValue, EqualityIsByValue) {
  auto equal = [](std::string_view a, std::string_view b) {
    JsonDocument x = json(a), y = json(b);
    const bool same = json_equal(x.root(), y.root());
    EXPECT_EQ(same, json_equal(y.root(), x.root()));
    EXPECT_TRUE(!same || json_hash(x.root()) == json_hash(y.root())) << a << " " << b;
    return same;
  };
  EXPECT_TRUE(equal("1", "1.0"));
  EXPECT_TRUE(equal("100", "1e2"));
  EXPECT_TRUE(equal("-0", "0.0"));
  EXPECT_TRUE(equal(R"({"a": 1, "b": [2]})", R"({"b": [2.0], "a": 1})"));
  EXPECT_FALSE(equal("1", "true"));
  EXPECT_FALSE(equal("0", "false"));
  EXPECT_FALSE(equal("1", "\"1\""));
  EXPECT_FALSE(equal("[1, 2]", "[2, 1]"));
  EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": 1, "b": null})"));
  EXPECT_FALSE(equal("123456789012345678901234567890", "123456789012345678901234567891"));
}

TEST(JsonValue, StringsAreWrittenAsPythonDoes) {
  std::string out;
  append_json_string(std::string_view("\"\\/\b\f\n\r\t\0\x1f\x7fé", 13), out);
  EXPECT_EQ(out, "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7fé\"");
}

TEST(JsonValue, DamagedTextsNeverCrash) {
  std::mt19937 random(7);
  const std::string good = R"({"a": [1, -2.5e3, "x\u0041\n", {"b": null}], "c": true, "d": "é😀"})";
  int parsed = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (int k = 1 + static_cast<int>(random() % 3); k > 0; --k) {
      const size_t at = random() % text.size();
      if (random() % 2) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, 1 + random() % 4);
      }
    }
    auto document = JsonDocument::parse(text);
    if (!document.ok()) continue;
    ++parsed;
    std::string out;
    append_json(document.value().root(), out);
    JsonDocument again = json(out);
    EXPECT_TRUE(json_equal(again.root(), document.value().root())) << text;
  }
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace deepinfer::grammar
