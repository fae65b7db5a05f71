#include "recipe/schema_check.h"

#include <gtest/gtest.h>

namespace deepinfer::recipe {
namespace {

std::string fault(const char* schema) { return check_schema(parse_json(schema).value()).value_or(""); }

std::string strict(const char* text, SchemaUse use = SchemaUse::kTool) {
  Json schema = parse_json(text).value();
  const auto wrong = complete_strict(schema, use);
  return wrong ? *wrong : to_compact_json(schema);
}

TEST(CheckSchema, AcceptsWellFormedSchemas) {
  for (
      const char* good :
      {"true", "{}", R"({"type":["object","null"]})", R"({"enum":[]})", R"({"minLength":2.0})",
       R"x({"pattern":"^(?:a|b)+?[()*]\\($"})x", R"({"type":"object","$anchor":"A","properties":{"a":{"$ref":"#A"}}})",
       R"({"$id":"http://x/s","properties":{"a":{"$ref":"http://x/s"}}})",
       R"({"properties":{"a":{"$ref":"#/definitions/z"}},"definitions":{"z":{"type":"string"}}})",
       R"({"nullable":true})",
       R"({"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"minimum":1,"exclusiveMinimum":true}}})",
       R"({"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}]})",
       R"({"$defs":{"a/b~c":{}},"$ref":"#/$defs/a~1b~0c"})", R"({"$defs":{"é x":{}},"$ref":"#/$defs/%C3%A9%20x"})",
       R"({"anyOf":[{"type":"null"}],"$ref":"#/anyOf/0"})", R"({"$ref":"#"})"}) {
    EXPECT_EQ(fault(good), "") << good;
  }
}

TEST(CheckSchema, RefusesWhatIsNotASchema) {
  for (const char* bad : {"5",
                          "\"x\"",
                          R"({"type":"objekt"})",
                          R"({"type":[]})",
                          R"({"properties":[]})",
                          R"({"required":"a"})",
                          R"({"required":["a","a"]})",
                          R"({"required":[1]})",
                          R"({"required":true})",
                          R"({"enum":"x"})",
                          R"({"minimum":"x"})",
                          R"({"minLength":-1})",
                          R"({"minLength":1.5})",
                          R"x({"pattern":"("})x",
                          R"x({"pattern":"a)"})x",
                          R"({"pattern":"[a"})",
                          R"({"pattern":"*a"})",
                          R"({"pattern":"a\\"})",
                          R"({"anyOf":[]})",
                          R"({"items":5})",
                          R"({"items":[{"type":"string"}]})",
                          R"({"$ref":"http://x/y"})",
                          R"({"$ref":"other.json"})",
                          R"({"$ref":"#/$defs/x"})",
                          R"({"$ref":"#nowhere"})",
                          R"({"exclusiveMinimum":true})",
                          R"({"$schema":"http://foo"})",
                          R"({"description":5})",
                          R"({"additionalProperties":5})",
                          R"({"multipleOf":0})",
                          R"({"uniqueItems":"x"})",
                          R"({"$defs":{"x":{"type":"zz"}}})",
                          R"({"dependentRequired":{"a":"b"}})",
                          R"({"examples":"x"})",
                          R"({"deprecated":"x"})",
                          R"({"properties":{"a":{"not":{"items":7}}}})"}) {
    EXPECT_NE(fault(bad), "") << bad;
  }
}

TEST(CompleteStrict, AddsWhatStrictModeNeeds) {
  EXPECT_EQ(
      strict(
          R"({"type":"object","properties":{"a":{"type":"string","minLength":2},"b":{"type":"object","properties":{"c":{"type":"integer"}}}}})"),
      R"({"type":"object","properties":{"a":{"type":"string","minLength":2},"b":{"type":"object","properties":{"c":{"type":"integer"}},)"
      R"("additionalProperties":false,"required":["c"]}},"additionalProperties":false,"required":["a","b"]})");
  EXPECT_EQ(strict(R"({"type":"object"})"),
            R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})");
  EXPECT_EQ(
      strict(
          R"({"required":["a"],"type":"object","properties":{"a":{"type":["object","null"],"properties":{"z":{"$ref":"#/$defs/q"}}}},"$defs":{"q":{"type":"array","items":{"type":"null"}}}})"),
      R"({"required":["a"],"type":"object","properties":{"a":{"type":["object","null"],"properties":{"z":{"$ref":"#/$defs/q"}},)"
      R"("additionalProperties":false,"required":["z"]}},"$defs":{"q":{"type":"array","items":{"type":"null"}}},"additionalProperties":false})");
}

TEST(CompleteStrict, RefusesInTheWordsOfTheService) {
  EXPECT_EQ(strict(R"({"type":"object","properties":{},"additionalProperties":true})"),
            "additionalProperties should not be true");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"string"}},"required":[]})"),
            "Required properties must match all properties in the object");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a","b"]})"),
            "Required property 'b' not found in object");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"enum":["x"]}}})"),
            "Invalid tool parameters schema : one of `type`, `anyOf`, `$ref` field is required");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"array"}}})"),
            "Invalid tool parameters schema : missing field `items`");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"array"}}})", SchemaUse::kResponseFormat),
            "Invalid json schema: missing field `items`");
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"object"}}})"),
            "An object with no properties is not allowed.");
  EXPECT_EQ(strict(R"({"type":"object"})", SchemaUse::kResponseFormat), "An object with no properties is not allowed.");
  EXPECT_EQ(strict(R"({"type":"array","items":{"type":"string"}})"),
            "The top level of the function parameters schema must be an object.");
  EXPECT_EQ(strict(R"({"type":"array","items":{"type":"string"}})", SchemaUse::kResponseFormat),
            "The top level of the json schema must be an object.");
}

}  // namespace
}  // namespace deepinfer::recipe
