#include "recipe/json.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/file.h"

namespace deepinfer::recipe {
namespace {

std::string python(std::string_view text) {
  Result<Json> value = parse_json(text);
  return value.ok() ? to_python_json(value.value()) : "error: " + value.status().message();
}

TEST(JsonTest, PrintsTheFixturesLikePython) {
  Result<std::string> file = read_file(DEEPINFER_TEST_DATA "/recipe/json_python.json", 1 << 20);
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<Json> root = parse_json(file.value());
  ASSERT_TRUE(root.ok()) << root.status().message();
  int cases = 0;
  for (const Json& c : root.value().find("cases")->as_array()) {
    Result<Json> value = parse_json(c.find("json")->as_string());
    ASSERT_TRUE(value.ok()) << c.find("json")->as_string();
    EXPECT_EQ(to_python_json(value.value()), c.find("python")->as_string());
    if (const Json* compact = c.find("compact")) {
      EXPECT_EQ(to_compact_json(value.value()), compact->as_string());
    }
    ++cases;
  }
  EXPECT_EQ(cases, 28);
}

TEST(JsonTest, KeepsNumbersExactly) {
  EXPECT_EQ(python("[9223372036854775807,-9223372036854775808,9223372036854775808]"),
            "[9223372036854775807, -9223372036854775808, 9223372036854775808]");
  EXPECT_EQ(python("1e22"), "1e+22");
  EXPECT_EQ(python("123456789.125"), "123456789.125");
  EXPECT_EQ(python("5e-324"), "5e-324");
  EXPECT_EQ(python("1e-400"), "0.0");
  EXPECT_EQ(python("9999999999999998.0"), "9999999999999998.0");
  const std::string big = "123456789012345678901234567890";
  EXPECT_EQ(to_python_json(parse_json(big).value(), true), big);
  EXPECT_FALSE(parse_json("5.0").value().is_integer());
  EXPECT_TRUE(parse_json("5").value().is_integer());
}

TEST(JsonTest, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  EXPECT_EQ(python(R"({"a":1,"b":2,"a":3,"c":4,"b":5})"), R"({"a": 3, "b": 5, "c": 4})");
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i % 20) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  const Json value = parse_json(many).value();
  ASSERT_EQ(value.as_object().size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(value.as_object()[static_cast<size_t>(i)].key, "k" + std::to_string(i));
    EXPECT_EQ(value.as_object()[static_cast<size_t>(i)].value.to_int64(), i + 20);
  }
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[1,]",
                          "{\"a\":1,}",
                          "{a:1}",
                          "01",
                          "-",
                          "1.",
                          "1e",
                          ".5",
                          "+1",
                          "NaN",
                          "tru",
                          "\"a",
                          "\"\\x\"",
                          "\"\\ud800\"",
                          "\"\\udc00\"",
                          "\"\\ud800\\u0041\"",
                          "\"\\u12g4\"",
                          "\"\x01\"",
                          "\"\xff\"",
                          "\"\xc0\x80\"",
                          "\"\xed\xa0\x80\"",
                          "\"\xf4\x90\x80\x80\"",
                          "\xef\xbb\xbf{}",
                          "{} x",
                          "1e999",
                          "[1 2]"}) {
    EXPECT_FALSE(parse_json(bad).ok()) << bad;
  }
  EXPECT_EQ(parse_json("{\n \"a\": x}").status().message(), "a value is expected at line 2 column 7");
}

TEST(JsonTest, LimitsAreNamed) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_NE(parse_json(deep).status().message().find("json_depth_max"), std::string::npos);
  EXPECT_TRUE(parse_json(deep, {.depth_max = 200}).ok());
  EXPECT_NE(parse_json("[1,2,3]", {.values_max = 3}).status().message().find("json_values_max"), std::string::npos);
  EXPECT_NE(parse_json("[1,2,3]", {.bytes_max = 3}).status().message().find("json_bytes_max"), std::string::npos);
}

TEST(JsonTest, CutOrChangedTextNeverCrashes) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9\ud83d\ude00ü"], "b": {"c": null, "d": true}, "a": false})";
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(parse_json(std::string_view(text).substr(0, i)).ok());
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[i] = static_cast<char>(byte);
      Result<Json> value = parse_json(changed);
      if (!value.ok()) continue;
      // What was read prints to text that reads back the same.
      Result<Json> again = parse_json(to_python_json(value.value()));
      ASSERT_TRUE(again.ok());
      EXPECT_TRUE(again.value() == value.value()) << changed;
    }
  }
}

TEST(JsonTest, EscapesEveryByteAtEveryPlace) {
  for (int c = 0; c < 256; ++c) {
    std::string expected(1, static_cast<char>(c));
    if (c < 0x20) {
      const size_t letter = std::string_view("\n\r\t\b\f").find(static_cast<char>(c));
      expected = letter != std::string_view::npos ? std::string("\\") + "nrtbf"[letter] : fmt::format("\\u{:04x}", c);
    }
    if (c == '"' || c == '\\') expected.insert(0, "\\");
    for (size_t size = 1; size < 40; ++size) {
      for (size_t at = 0; at < size; ++at) {
        std::string text(size, 'x'), out;
        text[at] = static_cast<char>(c);
        append_json_escaped(out, text);
        ASSERT_EQ(out, std::string(at, 'x') + expected + std::string(size - at - 1, 'x'));
      }
    }
  }
}

TEST(JsonTest, SetAndErase) {
  Json value = Json::object();
  value.set("a", 1);
  value.set("b", "x");
  value.set("a", nullptr);
  EXPECT_EQ(to_compact_json(value), R"({"a":null,"b":"x"})");
  value.erase("a");
  EXPECT_EQ(value.find("a"), nullptr);
  EXPECT_EQ(value.find("b")->as_string(), "x");
}

}  // namespace
}  // namespace deepinfer::recipe
