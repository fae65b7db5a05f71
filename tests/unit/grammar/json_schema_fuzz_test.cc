// Random schemas: the grammar accepts exactly the instances that the validator accepts, and what it generates is valid.
// The validator itself is compared with json-schema.org's cases (json_schema_cases_test.cc) and, outside this
// repository's tests, with PyPI jsonschema.
#include <random>

#include "tests/unit/grammar/json_testing.h"

namespace deepinfer::grammar {
namespace {

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  std::string schema() {
    with_refs_ = chance(40);
    std::string s = object_schema(1 + static_cast<int>(below(3)));
    if (!with_refs_) return s;
    const std::string defs = R"("$defs": {"d1": )" + schema(2) + R"(, "d2": )" + schema(2) + "}";
    s.pop_back();
    return s + (s.size() > 1 ? ", " : "") + defs + "}";
  }

  std::string value(int depth = 3) {
    const uint32_t k = below(100);
    if (k < 10) return "null";
    if (k < 20) return chance(50) ? "true" : "false";
    if (k < 40)
      return pick({"0", "1", "2", "3", "5", "-1", "10", "-7", "100", "1.5", "0.5", "-0.25", "12", "0.75", "1000"});
    if (k < 58 || depth == 0)
      return pick({R"("")", R"("a")", R"("b")", R"("ab")", R"("abc")", R"("foo")", R"("x1")", R"("é")", R"("\"q")",
                   R"("zz\\z")", R"("\u00e9\n")"});
    if (k < 76) return list(below(4), [&] { return value(depth - 1); });
    return object(below(5), [&] { return value(depth - 1); });
  }

 private:
  uint32_t below(uint32_t n) { return random_() % n; }
  bool chance(uint32_t percent) { return below(100) < percent; }
  std::string pick(std::vector<std::string> from) { return from[below(static_cast<uint32_t>(from.size()))]; }
  std::string name() { return pick({R"("a")", R"("b")", R"("c")", R"("foo")", R"("x1")"}); }
  std::string pattern() {
    return pick({R"("^a")", R"("b$")", R"("^[a-z]+$")", R"("o")", R"("^.{2}$")", R"("x[0-9]")", R"("^(a|b)*$")"});
  }

  template <class F>
  std::string list(uint32_t n, F&& item) {
    std::string out = "[";
    for (uint32_t i = 0; i < n; ++i) out += (i ? ", " : "") + item();
    return out + "]";
  }
  template <class F, class N>
  std::string object(uint32_t n, F&& item, N&& key) {
    std::vector<std::string> used;
    std::string out = "{";
    for (uint32_t i = 0; i < n; ++i) {
      std::string k = key();
      if (std::find(used.begin(), used.end(), k) != used.end()) continue;
      out += (used.empty() ? "" : ", ") + k + ": " + item();
      used.push_back(k);
    }
    return out + "}";
  }
  template <class F>
  std::string object(uint32_t n, F&& item) {
    return object(n, item, [&] { return name(); });
  }
  std::string names(uint32_t n) {
    std::vector<std::string> used;
    while (used.size() < n) {
      std::string k = name();
      if (std::find(used.begin(), used.end(), k) == used.end()) used.push_back(k);
    }
    return list(n, [&, i = 0u]() mutable { return used[i++]; });
  }

  std::string schema(int depth) {
    if (depth <= 0 || chance(6))
      return pick(
          {"true", "false", "{}", R"({"type": "string"})", R"({"type": "integer"})", R"({"const": )" + value(1) + "}"});
    return object_schema(depth);
  }

  std::string object_schema(int depth) {
    std::vector<std::string> used;
    std::string out = "{";
    for (uint32_t i = 1 + below(3); i > 0; --i) {
      const std::string k = pick(kKeywords);
      if (std::find(used.begin(), used.end(), k) != used.end() || (k == "$ref" && !with_refs_)) continue;
      out += (used.empty() ? "\"" : ", \"") + k + "\": " + keyword(k, depth - 1);
      used.push_back(k);
      if (k == "if" && chance(70)) out += ", \"then\": " + schema(depth - 1);
      if (k == "if" && chance(70)) out += ", \"else\": " + schema(depth - 1);
      if (k == "contains" && chance(40)) out += ", \"minContains\": " + std::to_string(below(3));
      if (k == "contains" && chance(40)) out += ", \"maxContains\": " + std::to_string(below(3));
    }
    return out + "}";
  }

  std::string keyword(const std::string& k, int depth) {
    auto sub = [&] { return schema(depth); };
    if (k == "type")
      return pick({R"("null")", R"("boolean")", R"("integer")", R"("number")", R"("string")", R"("array")",
                   R"("object")", R"(["string", "null"])", R"(["object", "array"])"});
    if (k == "enum") return list(1 + below(4), [&] { return value(1); });
    if (k == "const") return value(1);
    if (k == "properties") return object(1 + below(3), sub);
    if (k == "required") return names(1 + below(2));
    if (k == "additionalProperties") return chance(50) ? "false" : sub();
    if (k == "patternProperties") return object(1 + below(2), sub, [&] { return pattern(); });
    if (k == "propertyNames")
      return pick({R"({"maxLength": 2})", R"({"pattern": "^[a-z]$"})", R"({"enum": ["a", "b", "foo"]})",
                   R"({"not": {"const": "a"}})"});
    if (k == "uniqueItems") return chance(90) ? "true" : "false";
    if (k.ends_with("Properties") || k.ends_with("Items")) return std::to_string(below(4));
    if (k.ends_with("Length")) return std::to_string(below(5));
    if (k == "pattern") return pattern();
    if (k.ends_with("inimum") || k.ends_with("aximum"))
      return pick({"0", "1", "-5", "10", "2.5", "0.5", "-0.25", "100", "7"});
    if (k == "multipleOf") return pick({"2", "3", "0.5", "5", "10", "0.25"});
    if (k == "prefixItems" || k == "allOf" || k == "anyOf" || k == "oneOf") return list(1 + below(3), sub);
    if (k == "dependentRequired") return "{" + name() + ": " + names(1 + below(2)) + "}";
    if (k == "dependentSchemas") return "{" + name() + ": " + sub() + "}";
    if (k == "$ref") return pick({R"("#/$defs/d1")", R"("#/$defs/d2")"});
    return sub();  // items, contains, not, if
  }

  inline static const std::vector<std::string> kKeywords{"type",
                                                         "type",
                                                         "type",
                                                         "enum",
                                                         "const",
                                                         "properties",
                                                         "properties",
                                                         "properties",
                                                         "required",
                                                         "required",
                                                         "additionalProperties",
                                                         "patternProperties",
                                                         "propertyNames",
                                                         "minProperties",
                                                         "maxProperties",
                                                         "items",
                                                         "items",
                                                         "prefixItems",
                                                         "contains",
                                                         "minItems",
                                                         "maxItems",
                                                         "uniqueItems",
                                                         "uniqueItems",
                                                         "minLength",
                                                         "maxLength",
                                                         "pattern",
                                                         "minimum",
                                                         "maximum",
                                                         "exclusiveMinimum",
                                                         "exclusiveMaximum",
                                                         "multipleOf",
                                                         "allOf",
                                                         "anyOf",
                                                         "oneOf",
                                                         "oneOf",
                                                         "not",
                                                         "if",
                                                         "dependentRequired",
                                                         "dependentSchemas",
                                                         "$ref",
                                                         "$ref"};

  std::mt19937 random_;
  bool with_refs_ = false;
};

TEST(JsonSchemaFuzz, GrammarEqualsValidator) {
  JsonSchemaOptions any_order;
  any_order.any_order = true;
  int compiled = 0, unsatisfiable = 0, good = 0, bad = 0;
  for (uint32_t seed = 0; seed < 2500; ++seed) {
    Generator g(seed);
    const std::string schema = g.schema();
    auto model = SchemaModel::parse(schema);
    if (!model.ok()) continue;  // references in a circle
    auto validator = validator_of(schema);
    const CompiledSchema free(schema, any_order), ordered(schema);
    unsatisfiable += !free.ok() && free.status.message().find("no valid document") != std::string::npos;
    compiled += free.ok();
    for (int i = 0; i < 25; ++i) {
      // In the spelling that listed values have.
      std::string text;
      append_json(json(g.value()).root(), text);
      const bool valid = validator->is_valid(json(text).root());
      (valid ? good : bad)++;
      if (free.ok()) {
        EXPECT_EQ(free.accepts(text), valid) << "seed " << seed << "\n" << schema << "\n" << text;
      } else if (free.status.message().find("no valid document") != std::string::npos) {
        EXPECT_FALSE(valid) << "seed " << seed << "\n" << schema << "\n" << text;
      }
      EXPECT_FALSE(ordered.ok() && !valid && ordered.accepts(text)) << "seed " << seed << "\n"
                                                                    << schema << "\n"
                                                                    << text;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(compiled, 1800);
  EXPECT_GT(unsatisfiable, 20);
  EXPECT_GT(good, 10'000);
  EXPECT_GT(bad, 10'000);
}

// A random text of the grammar; empty if none was finished within the bound.
std::string sample(const std::shared_ptr<Compiled>& compiled, std::mt19937& random) {
  Matcher m(compiled);
  std::vector<uint32_t> mask(compiled->vocabulary().mask_words());
  std::string text;
  while (text.size() < 600) {
    if (!m.fill_mask(mask).ok()) return "";
    std::vector<uint32_t> allowed, closing;
    for (uint32_t t = 0; t < 256; ++t) {
      if (!(mask[t / 32] >> (t % 32) & 1)) continue;
      allowed.push_back(t);
      if (std::string_view("\"}]").find(static_cast<char>(t)) != std::string_view::npos) closing.push_back(t);
    }
    const bool end = mask[256 / 32] >> (256 % 32) & 1;
    EXPECT_EQ(end, m.is_complete());
    EXPECT_TRUE(end || !allowed.empty()) << "dead end after " << text;
    if (end && (allowed.empty() || random() % 2)) return text;
    const std::vector<uint32_t>& from = !closing.empty() && random() % 100 < 30 + text.size() / 4 ? closing : allowed;
    if (from.empty()) return "";
    const uint32_t t = from[random() % from.size()];
    EXPECT_TRUE(m.accept(t));
    text += static_cast<char>(t);
  }
  return "";
}

TEST(JsonSchemaFuzz, SampledTextsAreValid) {
  std::mt19937 random(5);
  int sampled = 0;
  for (uint32_t seed = 5000; seed < 5600; ++seed) {
    Generator g(seed);
    const std::string schema = g.schema();
    const CompiledSchema grammar(schema);
    if (!grammar.ok()) continue;
    auto validator = validator_of(schema);
    for (int i = 0; i < 8; ++i) {
      const std::string text = sample(grammar.compiled, random);
      if (text.empty()) continue;
      ++sampled;
      auto document = JsonDocument::parse(text);
      // Two members of one name can be written where the schema does not name them.
      if (!document.ok() && document.status().message().find("occurs twice") != std::string::npos) continue;
      ASSERT_TRUE(document.ok()) << "seed " << seed << " " << document.status().message() << "\n"
                                 << schema << "\n"
                                 << text;
      EXPECT_TRUE(validator->is_valid(document.value().root())) << "seed " << seed << "\n" << schema << "\n" << text;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(sampled, 1000);
}

}  // namespace
}  // namespace deepinfer::grammar
