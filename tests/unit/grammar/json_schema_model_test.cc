#include "grammar/json_schema_model.h"

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

std::string refusal(std::string_view schema) {
  auto model = SchemaModel::parse(schema);
  return model.ok() ? "" : model.status().message();
}

TEST(SchemaModel, NamesKeywordAndPath) {
  struct Case {
    const char* schema;
    const char* keyword;
    const char* path;
  };
  for (const Case& c :
       {Case{R"({"properties": {"a/b": {"minLength": -1}}})", "\"minLength\"", "#/properties/a~1b/minLength"},
        Case{R"({"type": "strng"})", "\"type\"", "#/type"}, Case{R"({"type": []})", "\"type\"", "#/type"},
        Case{R"({"items": {"anyOf": [{"maximum": "3"}]}})", "\"maximum\"", "#/items/anyOf/0/maximum"},
        Case{R"({"allOf": []})", "\"allOf\"", "#/allOf"}, Case{R"({"enum": 3})", "\"enum\"", "#/enum"},
        Case{R"({"required": "a"})", "\"required\"", "#/required"},
        Case{R"({"multipleOf": 0})", "\"multipleOf\"", "#/multipleOf"},
        Case{R"({"minItems": 1.5})", "\"minItems\"", "#/minItems"},
        Case{R"({"uniqueItems": 1})", "\"uniqueItems\"", "#/uniqueItems"},
        Case{R"({"pattern": 1})", "\"pattern\"", "#/pattern"},
        Case{R"({"dependentRequired": {"a": {}}})", "\"dependentRequired\"", "#/dependentRequired"},
        Case{R"({"properties": {"x": {"$ref": "#/$defs/no"}}})", "\"$ref\"", "#/properties/x/$ref"},
        Case{R"({"$ref": "https://example.com/other.json"})", "\"$ref\"", "#/$ref"},
        Case{R"({"$ref": "other.json#/a"})", "\"$ref\"", "#/$ref"},
        Case{R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]})", "\"items\"",
             "#/items"}}) {
    const std::string message = refusal(c.schema);
    EXPECT_NE(message.find(c.keyword), std::string::npos) << c.schema << "\n" << message;
    EXPECT_NE(message.find(c.path), std::string::npos) << c.schema << "\n" << message;
  }
  EXPECT_NE(refusal(R"({"properties": {"a": 3}})").find("#/properties/a"), std::string::npos);
  EXPECT_NE(refusal("3"), "");
  EXPECT_NE(refusal("{"), "");
}

TEST(SchemaModel, RefusesReferencesInCircles) {
  EXPECT_NE(refusal(R"({"$ref": "#"})"), "");
  EXPECT_NE(
      refusal(
          R"({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"not": {"$ref": "#/$defs/A"}}, true]}}, "$ref": "#/$defs/A"})"),
      "");
  EXPECT_EQ(refusal(R"({"items": {"$ref": "#"}, "properties": {"a": {"$ref": "#"}}})"), "");
}

TEST(SchemaModel, FollowsReferencesInsideTheDocument) {
  struct Case {
    const char* schema;
    const char* good;
    const char* bad;
  };
  for (
      const Case& c :
      {Case{R"({"$ref": "#foo", "$defs": {"A": {"$anchor": "foo", "type": "integer"}}})", "1", "\"a\""},
       Case{R"({"properties": {"b/c~d%": {"maxLength": 2}, "y": {"$ref": "#/properties/b~1c~0d%25"}}})",
            R"({"y": "ab"})", R"({"y": "abc"})"},
       Case{
           R"({"$id": "https://e.com/a/root.json", "$defs": {"x": {"$id": "sub/x.json", "$defs": {"y": {"type": "null"}}, "$ref": "#/$defs/y"}},
                 "items": {"$ref": "sub/x.json"}})",
           "[null]", "[1]"},
       Case{
           R"({"$id": "https://e.com/a/root.json", "$defs": {"x": {"$id": "sub/x.json", "$defs": {"y": {"$anchor": "t", "type": "null"}}}},
                 "items": {"$ref": "/a/sub/x.json#t"}})",
           "[null]", "[1]"},
       Case{
           R"({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"x": {"$id": "#t", "type": "null"}}, "items": {"$ref": "#t"}})",
           "[null]", "[1]"},
       Case{
           R"({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://e.com/r", "definitions": {"x": {"id": "s", "type": "null"}},
                 "items": {"$ref": "http://e.com/s"}})",
           "[null]", "[1]"},
       Case{R"({"$defs": {"a": {"$dynamicAnchor": "n", "type": "null"}}, "items": {"$dynamicRef": "#n"}})", "[null]",
            "[1]"},
       Case{R"({"x-parts": [{"type": "string"}], "$ref": "#/x-parts/0"})", "\"s\"", "1"}}) {
    auto v = validator_of(c.schema);
    ASSERT_TRUE(v) << c.schema;
    EXPECT_TRUE(v->is_valid(json(c.good).root())) << c.schema;
    EXPECT_FALSE(v->is_valid(json(c.bad).root())) << c.schema;
  }
}

TEST(SchemaModel, DraftsDiffer) {
  // Draft 7 ignores what stands beside $ref; later drafts obey it.
  const std::string beside =
      R"("definitions": {"a": {"type": "array"}}, "properties": {"x": {"$ref": "#/definitions/a", "maxItems": 1}}})";
  const JsonDocument two = json(R"({"x": [1, 2]})");
  EXPECT_TRUE(
      validator_of(R"({"$schema": "http://json-schema.org/draft-07/schema#", )" + beside)->is_valid(two.root()));
  EXPECT_FALSE(validator_of("{" + beside)->is_valid(two.root()));
  // Draft 4's boolean form of exclusive bounds.
  EXPECT_FALSE(
      validator_of(R"({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": true})")
          ->is_valid(json("3").root()));
  // Tuples by `items` and `additionalItems`.
  EXPECT_FALSE(
      validator_of(R"({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}], "additionalItems": false})")
          ->is_valid(json("[1, 2]").root()));
  // Keywords of later drafts are annotations in draft 7.
  EXPECT_TRUE(
      validator_of(R"({"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {"a": ["b"]}})")
          ->is_valid(json(R"({"a": 1})").root()));
}

TEST(SchemaModel, HasLimits) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(10'000, '}');
  EXPECT_NE(refusal(deep).find("levels deep"), std::string::npos);
  EXPECT_NE(refusal(std::string(11u << 20, ' ')).find("limit"), std::string::npos);
  SchemaLimits few;
  few.nodes_max = 3;
  auto model = SchemaModel::parse(R"({"properties": {"a": {}, "b": {}, "c": {}}})", few);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace deepinfer::grammar
