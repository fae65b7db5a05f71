// Structural tags: triggers in ordinary and in added tokens, the two switches, what is refused.
#include "grammar/tags.h"

#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

constexpr const char* kItems =
    R"("items": [{"begin": "<｜DSML｜ invoke name=\"f\">", "content": {"regex": "[0-9]+"}, "end": "</｜DSML｜ invoke>"},
  {"begin": "<｜DSML｜ invoke name=\"g\">", "content": {"json_schema": {"type": "boolean"}}, "end": "</｜DSML｜ invoke>"}],
  "triggers": ["<｜DSML｜ invoke"])";

Constraint tags(const std::string& extra) { return {ConstraintKind::kTags, "{" + std::string(kItems) + extra + "}"}; }

// Cuts text into tokens, added ones recognised or not.
bool accepts(const std::shared_ptr<Compiled>& compiled, const std::string& text,
             text::AddedTokens added = text::AddedTokens::kRecognise) {
  Matcher m(compiled);
  for (text::TokenId id : bundled_tokenizer().encode(text, added)) {
    const auto mask = mask_of(m);
    if (!has_bit(mask, static_cast<uint32_t>(id))) return false;
    EXPECT_TRUE(m.accept(static_cast<uint32_t>(id)));
  }
  return m.is_complete();
}

TEST(Tags, TriggersInBothSpellings) {
  const auto compiled = compile(tags(""));
  const std::string call = "<｜DSML｜ invoke name=\"f\">12</｜DSML｜ invoke>",
                    other = "<｜DSML｜ invoke name=\"g\">true</｜DSML｜ invoke>";
  EXPECT_TRUE(accepts(compiled, "Hello."));
  EXPECT_TRUE(accepts(compiled, ""));
  EXPECT_TRUE(accepts(compiled, "a " + call + " b " + other + other));
  EXPECT_FALSE(accepts(compiled, "a <｜DSML｜ invoke name=\"h\">12</｜DSML｜ invoke>"));
  EXPECT_FALSE(accepts(compiled, "a <｜DSML｜ invoke name=\"f\">x</｜DSML｜ invoke>"));
  EXPECT_FALSE(accepts(compiled, "<｜DSML｜ calls>"));  // the marker only where a trigger goes on
  // Spelled in ordinary tokens the trigger counts too; what follows is then held to the item.
  EXPECT_FALSE(accepts(compiled, "a <｜DSML｜ invoke name=\"h\">", text::AddedTokens::kAsText));
  EXPECT_TRUE(accepts(compiled, "a <｜DSML｜ invo", text::AddedTokens::kAsText));
  EXPECT_TRUE(accepts(compiled, "a <｜DSML｜ calls>", text::AddedTokens::kAsText));
}

TEST(Tags, AtLeastOneAndStopAfterFirst) {
  const std::string call = "<｜DSML｜ invoke name=\"f\">12</｜DSML｜ invoke>";
  const auto required = compile(tags(R"(, "at_least_one": true)"));
  EXPECT_FALSE(accepts(required, ""));
  EXPECT_FALSE(accepts(required, "text"));
  EXPECT_TRUE(accepts(required, call + " text " + call));
  const auto one = compile(tags(R"(, "stop_after_first": true)"));
  EXPECT_TRUE(accepts(one, "text"));
  EXPECT_TRUE(accepts(one, "text" + call));
  EXPECT_FALSE(accepts(one, call + "."));
  const auto exactly = compile(tags(R"(, "stop_after_first": true, "at_least_one": true)"));
  EXPECT_TRUE(accepts(exactly, call));
  EXPECT_FALSE(accepts(exactly, "x" + call));
  EXPECT_FALSE(accepts(exactly, call + call));
}

TEST(Tags, RefusedByName) {
  const auto error = [](const std::string& source) {
    return compile_constraint({ConstraintKind::kTags, source}, bundled_vocabulary()).status().message();
  };
  EXPECT_NE(error("[]").find("object"), std::string::npos);
  EXPECT_NE(error(R"({"items": [], "triggers": ["x"]})").find("items"), std::string::npos);
  EXPECT_NE(error(R"({"items": [{"begin": "a", "content": {"regex": "x"}, "end": ""}], "triggers": ["b"]})")
                .find("no trigger"),
            std::string::npos);
  EXPECT_NE(
      error(R"({"items": [{"begin": "a", "content": {"lark": "x"}, "end": ""}], "triggers": ["a"]})").find("lark"),
      std::string::npos);
  EXPECT_NE(
      error(R"({"items": [{"begin": "a", "content": {"regex": "(x"}, "end": ""}], "triggers": ["a"]})").find("tag 'a'"),
      std::string::npos);
  EXPECT_NE(error(R"({"items": [], "triggers": [], "maybe": 1})").find("maybe"), std::string::npos);
  EXPECT_NE(
      error(R"({"items": [{"begin": "", "content": {"regex": "x"}, "end": ""}], "triggers": [""]})").find("empty"),
      std::string::npos);
}

}  // namespace
}  // namespace deepinfer::grammar
