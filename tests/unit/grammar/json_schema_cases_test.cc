// The cases of tests/data/grammar/schemas_*.jsonl: JSON-Schema-Test-Suite (MIT, Julian Berman) and our own.
#include <fstream>

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(std::string(DEEPINFER_TEST_DATA) + "/grammar/" + file);
  EXPECT_TRUE(in.good()) << file;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_set(const JsonValue& object, std::string_view name) {
  const JsonValue* v = object.find(name);
  return v && v->is_true();
}

bool needs(const JsonValue& test, std::string_view what) {
  const JsonValue* list = test.find("needs");
  for (uint32_t i = 0; list && i < list->size(); ++i) {
    if ((*list)[i].text() == what) return true;
  }
  return false;
}

class SchemaCases : public testing::TestWithParam<const char*> {};

TEST_P(SchemaCases, GrammarAndValidatorJudgeRightly) {
  int refused = 0, judged = 0;
  for (const std::string& line : lines_of(GetParam())) {
    JsonDocument d = json(line);
    const JsonValue& c = d.root();
    const std::string id(c.find("id")->text());
    const std::string_view expect = c.find("expect")->text();
    std::string schema;
    append_json(*c.find("schema"), schema);
    const CompiledSchema grammar(schema);
    if (expect == "refuse") {
      EXPECT_FALSE(grammar.ok()) << id;
      continue;
    }
    if (!grammar.ok()) {
      ++refused;
      EXPECT_EQ(expect, "any") << id << ": " << grammar.status.message();
      EXPECT_NE(grammar.status.code(), Code::kInternal) << id << ": " << grammar.status.message();
    }
    auto validator = validator_of(schema);
    const JsonValue& tests = *c.find("tests");
    for (uint32_t i = 0; i < tests.size(); ++i) {
      const std::string_view text = tests[i].find("text")->text();
      const bool valid = is_set(tests[i], "valid");
      auto instance = JsonDocument::parse(text);
      if (validator && !needs(tests[i], "bounded-whitespace")) {
        EXPECT_EQ(instance.ok() && validator->is_valid(instance.value().root()), valid) << id << " validator: " << text;
      }
      if (!grammar.ok()) continue;
      ++judged;
      const bool accepted = grammar.accepts(text);
      if (is_set(tests[i], "optional")) {
        EXPECT_TRUE(valid || !accepted) << id << " grammar: " << text;
      } else {
        EXPECT_EQ(accepted, valid) << id << " grammar: " << text;
      }
    }
  }
  EXPECT_GT(judged, 200);
  EXPECT_LT(refused, 15);
}

INSTANTIATE_TEST_SUITE_P(Files, SchemaCases, testing::Values("schemas_ours.jsonl", "schemas_suite.jsonl"));

}  // namespace
}  // namespace deepinfer::grammar
