#include "recipe/schema_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>

namespace deepinfer::recipe {
namespace {

using Fault = std::optional<std::string>;

bool contains(std::initializer_list<std::string_view> list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool is_type_name(const Json& value) {
  return value.is_string() &&
         contains({"string", "number", "integer", "boolean", "object", "array", "null"}, value.as_string());
}

// Whether a pattern's groups, classes and escapes are closed and its quantifiers have something to repeat. What else it
// must be is decided where it is compiled.
bool is_closed_pattern(std::string_view pattern) {
  int depth = 0;
  bool in_class = false, repeatable = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      if (++i == pattern.size()) return false;
      repeatable = true;
    } else if (in_class) {
      in_class = c != ']';
      repeatable = true;
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(') {
      ++depth;
      repeatable = false;
      if (i + 1 < pattern.size() && pattern[i + 1] == '?') ++i;  // (?: and the like
    } else if (c == ')') {
      if (--depth < 0) return false;
      repeatable = true;
    } else if (c == '*' || c == '+' || c == '?') {
      if (!repeatable) return false;
      if (i + 1 < pattern.size() && pattern[i + 1] == '?') ++i;  // lazy
      repeatable = false;
    } else {
      repeatable = c != '|' && c != '^';
    }
  }
  return depth == 0 && !in_class;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) { collect_anchors(root); }

  Fault run() {
    const Json* dialect = root_.find("$schema");
    if (dialect != nullptr && dialect->is_string()) {
      const std::string& name = dialect->as_string();
      draft4_ = name.find("draft-04") != std::string::npos;
      item_lists_ = draft4_ || name.find("draft-06") != std::string::npos ||
                    name.find("draft-07") != std::string::npos || name.find("2019-09") != std::string::npos;
      if (!item_lists_ && name.find("2020-12") == std::string::npos) return "Unknown meta-schema: '" + name + "'";
    }
    return check(root_);
  }

  Fault check(const Json& schema) {
    if (schema.is_bool()) return std::nullopt;
    if (!schema.is_object()) return "a schema must be an object or a boolean, got " + std::string(schema.kind_name());
    for (const JsonMember& m : schema.as_object()) {
      if (Fault fault = keyword(m.key, m.value)) return fault;
    }
    return std::nullopt;
  }

 private:
  static Fault wrong(std::string_view key, std::string_view expected) {
    return fmt::format("keyword '{}' must be {}", key, expected);
  }

  void collect_anchors(const Json& value) {
    if (value.is_object()) {
      for (const JsonMember& m : value.as_object()) {
        if ((m.key == "$anchor" || m.key == "$dynamicAnchor" || m.key == "$id") && m.value.is_string()) {
          anchors_.insert(m.value.as_string());
        }
        collect_anchors(m.value);
      }
    } else if (value.is_array()) {
      for (const Json& item : value.as_array()) collect_anchors(item);
    }
  }

  Fault keyword(const std::string& key, const Json& value) {
    if (key == "type") return type(value);
    if (contains({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}, key)) {
      if (!value.is_object()) return wrong(key, "an object of schemas");
      for (const JsonMember& m : value.as_object()) {
        if (Fault fault = check(m.value)) return fault;
      }
      return std::nullopt;
    }
    if (contains({"anyOf", "allOf", "oneOf", "prefixItems"}, key)) return schema_list(key, value);
    if (key == "items") return value.is_array() && item_lists_ ? schema_list(key, value) : check(value);
    if (contains({"additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else",
                  "unevaluatedItems", "unevaluatedProperties"},
                 key)) {
      return check(value);
    }
    if (key == "enum") return value.is_array() ? Fault() : wrong(key, "an array");
    if (key == "required") return name_list(key, value);
    if (key == "dependentRequired") {
      if (!value.is_object()) return wrong(key, "an object");
      for (const JsonMember& m : value.as_object()) {
        if (Fault fault = name_list(key, m.value)) return fault;
      }
      return std::nullopt;
    }
    if (key == "examples") return value.is_array() ? Fault() : wrong(key, "an array");
    if (contains({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, key)) {
      // Draft 4 wrote the exclusive bounds as booleans.
      const bool fine = value.is_number() || (draft4_ && key.starts_with("exclusive") && value.is_bool());
      return fine ? Fault() : wrong(key, "a number");
    }
    if (key == "multipleOf")
      return value.is_number() && value.as_double() > 0 ? Fault() : wrong(key, "a number above 0");
    if (contains({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
                  "maxContains"},
                 key)) {
      const bool fine =
          value.is_number() && value.as_double() >= 0 && value.as_double() == std::floor(value.as_double());
      return fine ? Fault() : wrong(key, "a non-negative integer");
    }
    if (contains({"uniqueItems", "deprecated", "readOnly", "writeOnly"}, key))
      return value.is_bool() ? Fault() : wrong(key, "a boolean");
    if (contains({"pattern", "format", "$id", "$schema", "$anchor", "$comment", "title", "description",
                  "contentEncoding", "contentMediaType"},
                 key)) {
      if (!value.is_string()) return wrong(key, "a string");
      return key != "pattern" || is_closed_pattern(value.as_string()) ? Fault() : wrong(key, "a regular expression");
    }
    if (key == "$ref" || key == "$dynamicRef") return reference(value);
    return std::nullopt;
  }

  static Fault type(const Json& value) {
    if (is_type_name(value)) return std::nullopt;
    if (value.is_array() && !value.as_array().empty() &&
        std::all_of(value.as_array().begin(), value.as_array().end(), is_type_name)) {
      return std::nullopt;
    }
    return "unknown type " + to_compact_json(value);
  }

  Fault schema_list(std::string_view key, const Json& value) {
    if (!value.is_array() || value.as_array().empty()) return wrong(key, "a non-empty array of schemas");
    for (const Json& item : value.as_array()) {
      if (Fault fault = check(item)) return fault;
    }
    return std::nullopt;
  }

  static Fault name_list(std::string_view key, const Json& value) {
    if (!value.is_array()) return wrong(key, "an array of strings");
    std::set<std::string_view> seen;
    for (const Json& item : value.as_array()) {
      if (!item.is_string()) return wrong(key, "an array of strings");
      if (!seen.insert(item.as_string()).second) return fmt::format("'{}' is twice in {}", item.as_string(), key);
    }
    return std::nullopt;
  }

  // What a JSON pointer leads to ("" is the whole schema), or null.
  const Json* resolve(std::string_view pointer) {
    const Json* at = &root_;
    while (!pointer.empty()) {
      if (pointer.front() != '/') return nullptr;
      pointer.remove_prefix(1);
      const size_t end = std::min(pointer.find('/'), pointer.size());
      std::string token;
      for (size_t i = 0; i < end; ++i) {
        if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
          token += pointer[++i] == '0' ? '~' : '/';
        } else {
          token += pointer[i];
        }
      }
      pointer.remove_prefix(end);
      if (at->is_array()) {
        size_t index = 0;
        const auto parsed = std::from_chars(token.data(), token.data() + token.size(), index);
        if (parsed.ptr != token.data() + token.size() || token.empty() || index >= at->as_array().size())
          return nullptr;
        at = &at->as_array()[index];
      } else {
        at = member(*at, token);
        if (at == nullptr) return nullptr;
      }
    }
    return at;
  }

  // Large objects are indexed, so that many references stay cheap.
  const Json* member(const Json& object, const std::string& key) {
    if (!object.is_object() || object.as_object().size() <= 16) return object.find(key);
    auto& index = members_[&object];
    if (index.empty()) {
      for (const JsonMember& m : object.as_object()) index.emplace(m.key, &m.value);
    }
    const auto found = index.find(key);
    return found == index.end() ? nullptr : found->second;
  }

  Fault reference(const Json& value) {
    if (!value.is_string()) return wrong("$ref", "a string");
    const std::string& ref = value.as_string();
    if (anchors_.contains(ref)) return std::nullopt;
    if (ref.empty() || ref[0] != '#') return fmt::format("$ref '{}' leads outside of the schema", ref);
    const std::string pointer = percent_decoded(std::string_view(ref).substr(1));
    if (!pointer.empty() && pointer[0] != '/') {
      if (anchors_.contains(pointer)) return std::nullopt;
      return fmt::format("Anchor '{}' does not exist", pointer);
    }
    if (resolve(pointer) == nullptr) return fmt::format("Pointer '{}' does not exist", pointer);
    return std::nullopt;
  }

  const Json& root_;
  bool draft4_ = false;
  bool item_lists_ = false;  // items may be a list of schemas, as before draft 2020-12
  std::set<std::string, std::less<>> anchors_;
  std::unordered_map<const Json*, std::unordered_map<std::string_view, const Json*>> members_;
};

bool has_type(const Json& schema, std::string_view name) {
  const Json* type = schema.find("type");
  if (type == nullptr) return false;
  if (type->is_string()) return type->as_string() == name;
  if (!type->is_array()) return false;
  return std::any_of(type->as_array().begin(), type->as_array().end(),
                     [&](const Json& t) { return t.is_string() && t.as_string() == name; });
}

class Completer {
 public:
  explicit Completer(SchemaUse use) : use_(use) {}

  Fault run(Json& schema) {
    if (!is_object_schema(schema)) {
      return use_ == SchemaUse::kTool ? "The top level of the function parameters schema must be an object."
                                      : "The top level of the json schema must be an object.";
    }
    // A tool without parameters is one; an answer without properties is none.
    if (use_ == SchemaUse::kTool && schema.find("properties") == nullptr) schema.set("properties", Json::object());
    top_ = &schema;
    return complete(schema);
  }

 private:
  static bool is_object_schema(const Json& schema) {
    const Json* type = schema.find("type");
    return type != nullptr && type->is_string() && type->as_string() == "object";
  }

  std::string invalid(std::string_view what) const {
    return fmt::format("{}{}",
                       use_ == SchemaUse::kTool ? "Invalid tool parameters schema : " : "Invalid json schema: ", what);
  }

  Fault complete_members(Json* container) {
    if (container == nullptr || !container->is_object()) return std::nullopt;
    for (JsonMember& m : container->as_object()) {
      if (Fault fault = complete(m.value)) return fault;
    }
    return std::nullopt;
  }

  Fault complete(Json& schema) {
    const Json* any_of = schema.find("anyOf");
    if (schema.find("type") == nullptr && any_of == nullptr && schema.find("$ref") == nullptr) {
      return invalid("one of `type`, `anyOf`, `$ref` field is required");
    }
    if (Fault fault = complete_members(schema.find("$defs"))) return fault;
    if (Fault fault = complete_members(schema.find("definitions"))) return fault;
    if (any_of != nullptr) {
      for (Json& option : schema.find("anyOf")->as_array()) {
        if (Fault fault = complete(option)) return fault;
      }
    }
    if (has_type(schema, "array")) {
      Json* items = schema.find("items");
      if (items == nullptr) return invalid("missing field `items`");
      if (Fault fault = complete(*items)) return fault;
    }
    return has_type(schema, "object") ? complete_object(schema) : Fault();
  }

  Fault complete_object(Json& schema) {
    JsonArray names;
    if (const Json* properties = schema.find("properties"); properties != nullptr && properties->is_object()) {
      for (const JsonMember& m : properties->as_object()) names.emplace_back(m.key);
    }
    const bool may_be_empty = use_ == SchemaUse::kTool && &schema == top_;
    if (names.empty() && !may_be_empty) return "An object with no properties is not allowed.";
    if (const Json* additional = schema.find("additionalProperties")) {
      if (!additional->is_bool()) return invalid("additionalProperties must be a boolean");
      if (additional->as_bool()) return "additionalProperties should not be true";
    }
    if (Fault fault = complete_members(schema.find("properties"))) return fault;
    if (const Json* required = schema.find("required"); required != nullptr && required->is_array()) {
      std::set<std::string_view> listed, all;
      for (const Json& name : names) all.insert(name.as_string());
      for (const Json& name : required->as_array()) {
        if (!all.contains(name.as_string()))
          return fmt::format("Required property '{}' not found in object", name.as_string());
        listed.insert(name.as_string());
      }
      if (listed != all) return "Required properties must match all properties in the object";
    }
    schema.set("additionalProperties", false);
    if (schema.find("required") == nullptr) schema.set("required", Json(std::move(names)));
    return std::nullopt;
  }

  const SchemaUse use_;
  const Json* top_ = nullptr;
};

}  // namespace

std::optional<std::string> check_schema(const Json& schema) { return Checker(schema).run(); }

std::optional<std::string> complete_strict(Json& schema, SchemaUse use) { return Completer(use).run(schema); }

}  // namespace deepinfer::recipe
