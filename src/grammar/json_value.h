// A JSON document as the grammar room needs it: member order kept, numbers kept as written, doubled names refused.
//
//   auto doc = JsonDocument::parse(R"({"type": "integer", "minimum": 1e2})");
//   if (!doc.ok()) return doc.status();
//   const JsonValue* minimum = doc->root().find("minimum");   // minimum->text() == "1e2"
//
// Values are small handles into the document's arena and live as long as the document (moving it is fine). Strings are
// decoded UTF-8; a lone surrogate escape is an error, because no UTF-8 text can hold it. Limits: JsonLimits.
// Grammar of texts: RFC 8259.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::grammar {

struct JsonLimits {
  size_t bytes_max = 16u << 20;
  int depth_max = 1'000;  // nesting of arrays and objects; what walks documents recurses this deep
};

enum class JsonKind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct JsonMember;

class JsonValue {
 public:
  JsonKind kind() const { return kind_; }
  bool is_bool() const { return kind_ == JsonKind::kTrue || kind_ == JsonKind::kFalse; }
  bool is_true() const { return kind_ == JsonKind::kTrue; }
  bool is_number() const { return kind_ == JsonKind::kNumber; }
  bool is_string() const { return kind_ == JsonKind::kString; }
  bool is_array() const { return kind_ == JsonKind::kArray; }
  bool is_object() const { return kind_ == JsonKind::kObject; }

  // The decoded string, or the number as written.
  std::string_view text() const { return {text_, size_}; }
  // Number of items or members.
  uint32_t size() const { return size_; }
  const JsonValue* items() const { return items_; }
  const JsonMember* members() const { return members_; }
  const JsonValue& operator[](uint32_t i) const { return items_[i]; }
  // The member's value, or nullptr; linear in the number of members.
  const JsonValue* find(std::string_view name) const;

  static JsonValue of_kind(JsonKind kind) { JsonValue v; v.kind_ = kind; return v; }
  static JsonValue of_text(JsonKind kind, std::string_view text);
  static JsonValue of_items(const JsonValue* items, uint32_t n);
  static JsonValue of_members(const JsonMember* members, uint32_t n);

 private:
  JsonKind kind_ = JsonKind::kNull;
  uint32_t size_ = 0;
  union {
    const char* text_ = nullptr;
    const JsonValue* items_;
    const JsonMember* members_;
  };
};

struct JsonMember {
  std::string_view name;
  JsonValue value;
};

class JsonDocument {
 public:
  static Result<JsonDocument> parse(std::string_view text, const JsonLimits& limits = {});

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();
  const JsonValue& root() const { return root_; }

 private:
  struct Arena;
  JsonDocument();
  std::unique_ptr<Arena> arena_;
  JsonValue root_;
  friend class JsonParser;
};

// Equality as JSON Schema means it: numbers by value, objects without regard to order.
bool json_equal(const JsonValue& a, const JsonValue& b);
// A hash that is equal for values that are json_equal.
uint64_t json_hash(const JsonValue& value);

// Appends the text that Python's json.dumps(ensure_ascii=False) writes for a string, quotes included.
void append_json_string(std::string_view text, std::string& out);
// The value as compact text (no white space), numbers as written.
void append_json(const JsonValue& value, std::string& out);

// Number of code points of valid UTF-8.
size_t count_code_points(std::string_view utf8);

}  // namespace deepinfer::grammar
