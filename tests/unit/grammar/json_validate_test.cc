#include "grammar/json_validate.h"

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

TEST(JsonValidate, ErrorsNameBothPaths) {
  auto v = validator_of(
      R"({"properties": {"a/b": {"items": {"minLength": 2}}, "n": {"type": "integer", "maximum": 3}, "z": {}}, "required": ["z"], "additionalProperties": false})");
  JsonDocument d = json(R"({"a/b": ["xx", "é"], "n": 4, "extra": 1})");
  const std::vector<JsonError> errors = v->validate(d.root());
  std::vector<std::string> places;
  for (const JsonError& e : errors) places.push_back(e.instance_path + " " + e.schema_path);
  const std::vector<std::string> want{" #/required", "/a~1b/1 #/properties/a~1b/items/minLength",
                                      "/n #/properties/n/maximum", "/extra #/additionalProperties"};
  EXPECT_EQ(places, want);
  EXPECT_EQ(v->validate(d.root(), 2).size(), 2u);
  EXPECT_TRUE(v->validate(json(R"({"z": 1})").root()).empty());
}

TEST(JsonValidate, UnevaluatedKeywords) {
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  for (
      const Case& c :
      {Case{R"({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false})",
            {R"({"a": 1})"},
            {R"({"b": 1})"}},
       Case{
           R"({"anyOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}], "unevaluatedProperties": false})",
           {R"({"a": null, "b": 1})", R"({"b": 1})"},
           {R"({"a": 1, "b": 1})", R"({"a": null, "c": 1})"}},
       Case{
           R"({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"properties": {"x": {}}}, "unevaluatedProperties": false})",
           {R"({"k": 1, "x": 1})", "{}"},
           {R"({"k": 2})", R"({"x": 1})"}},
       Case{R"({"prefixItems": [{}], "contains": {"type": "null"}, "unevaluatedItems": {"type": "string"}})",
            {R"([1, null, "s"])"},
            {"[1, null, 2]", "[1]"}}}) {
    auto v = validator_of(c.schema);
    for (const char* text : c.good) EXPECT_TRUE(v->is_valid(json(text).root())) << c.schema << text;
    for (const char* text : c.bad) EXPECT_FALSE(v->is_valid(json(text).root())) << c.schema << text;
  }
}

TEST(JsonValidate, BadPatternsAreNamed) {
  auto model = SchemaModel::parse(R"({"items": {"pattern": "([a-z"}})");
  ASSERT_TRUE(model.ok());
  JsonValidator v(std::make_shared<const SchemaModel>(std::move(model).value()));
  const Status s = v.prepare();
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.message().find("#/items"), std::string::npos) << s.message();
}

TEST(JsonValidate, LongEnumsAndUniqueItems) {
  std::string values;
  for (int i = 0; i < 2000; ++i) values += (i ? "," : "") + std::to_string(i);
  auto v = validator_of(R"({"items": {"enum": [)" + values + R"(]}, "uniqueItems": true})");
  EXPECT_TRUE(v->is_valid(json("[" + values + "]").root()));
  EXPECT_FALSE(v->is_valid(json("[1, 2000]").root()));
  EXPECT_FALSE(v->is_valid(json("[7, 8, 7.0]").root()));
}

}  // namespace
}  // namespace deepinfer::grammar
