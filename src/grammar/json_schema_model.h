// A JSON Schema read into nodes: keywords parsed and checked, references resolved inside the document, nothing dropped.
//
//   auto schema = SchemaModel::parse(text);            // Result<SchemaModel>
//   const SchemaNode& root = schema->node(schema->root());
//
// Drafts: 2020-12 unless `$schema` names draft-07; draft-04 and -06 are read as 7, 2019-09 as 2020-12. In draft 7 the
// siblings of `$ref` are ignored, as that draft says. Keywords that no draft knows are annotations. A reference that
// leaves the document, is dangling, or leads back to itself without entering a value is an error that names its path.
// `$dynamicRef` and `$recursiveRef` are plain references where only one place can be meant, and refused otherwise.
// Only nodes that can be reached from the root exist. Limits: SchemaLimits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/json_number.h"
#include "grammar/limits.h"
#include "grammar/json_value.h"

namespace deepinfer::grammar {

struct SchemaLimits {
  size_t bytes_max = 10u << 20;
  int depth_max = 1'000;        // nesting of the schema text
  size_t nodes_max = 200'000;   // subschemas
  Budget* budget = nullptr;     // of the compile, if there is one
};

using SchemaId = int32_t;
inline constexpr SchemaId kNoNode = -1;

// The shapes that a value can have; "number" of the keyword `type` is kInteger | kFraction.
enum TypeBit : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,
  kString = 16,
  kArray = 32,
  kObject = 64
};
inline constexpr uint8_t kAllTypes = 127;

struct NumberKeywords {
  std::optional<Decimal> minimum, maximum, exclusive_minimum, exclusive_maximum, multiple_of;
};

struct StringKeywords {
  std::optional<int64_t> min_length, max_length;
  std::optional<std::string_view> pattern, format;  // format only if it is a known one
};

struct ArrayKeywords {
  std::vector<SchemaId> prefix;
  SchemaId rest = kNoNode;  // items after the prefix
  SchemaId contains = kNoNode;
  int64_t min_contains = 1;
  std::optional<int64_t> max_contains, min_items, max_items;
  bool unique = false;
  SchemaId unevaluated = kNoNode;
  std::string_view prefix_keyword = "prefixItems", rest_keyword = "items";
};

struct NamedNode {
  std::string_view name;
  SchemaId node;
};

struct NameList {
  std::string_view name;
  std::vector<std::string_view> names;
};

struct ObjectKeywords {
  std::vector<NamedNode> properties;
  std::vector<std::string_view> required;
  std::vector<NamedNode> patterns;
  SchemaId additional = kNoNode, names = kNoNode, unevaluated = kNoNode;
  std::optional<int64_t> min_properties, max_properties;
  std::vector<NameList> dependent_required;
  std::vector<NamedNode> dependent_schemas;
};

struct Applicators {
  SchemaId ref = kNoNode;
  std::vector<SchemaId> all_of, any_of, one_of;
  SchemaId negated = kNoNode, condition = kNoNode, consequence = kNoNode, alternative = kNoNode;
};

struct SchemaNode {
  const JsonValue* source = nullptr;
  const JsonValue* resource = nullptr;  // root of the schema resource that holds this node
  SchemaId parent = kNoNode;
  std::string step;                     // JSON pointer tokens below the parent (or below the document's root)
  bool never = false;                   // the schema `false`
  uint8_t types = kAllTypes;
  const JsonValue* constant = nullptr;
  const JsonValue* choices = nullptr;   // `enum`
  std::unique_ptr<NumberKeywords> number;
  std::unique_ptr<StringKeywords> string;
  std::unique_ptr<ArrayKeywords> array;
  std::unique_ptr<ObjectKeywords> object;
  std::unique_ptr<Applicators> applicators;

  // True when every value is valid, as far as this node alone shows.
  bool trivial() const {
    return !never && types == kAllTypes && !constant && !choices && !number && !string && !array && !object &&
           !applicators;
  }
};

class SchemaModel {
 public:
  static Result<SchemaModel> parse(std::string_view text, const SchemaLimits& limits = {});

  SchemaId root() const { return 0; }
  const SchemaNode& node(SchemaId id) const { return nodes_[static_cast<size_t>(id)]; }
  size_t size() const { return nodes_.size(); }
  bool uses_unevaluated() const { return uses_unevaluated_; }
  // "#/properties/a", for messages.
  std::string path(SchemaId id) const;

 private:
  friend class SchemaReader;
  explicit SchemaModel(JsonDocument document) : document_(std::make_unique<JsonDocument>(std::move(document))) {}
  std::unique_ptr<JsonDocument> document_;  // on the heap: nodes point into it
  std::vector<SchemaNode> nodes_;
  bool uses_unevaluated_ = false;
};

// Appends `token` as one reference token of a JSON pointer (RFC 6901).
void append_pointer(std::string_view token, std::string& out);

}  // namespace deepinfer::grammar
