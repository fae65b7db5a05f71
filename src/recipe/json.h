// JSON for request bodies and prompts: an owned tree that keeps key order and the exact value of every number.
//
//   Result<Json> body = parse_json(bytes, JsonLimits{});
//   if (const Json* n = body.value().find("n")) ...
//   std::string line = to_python_json(body.value());   // {"a": 1, "b": "é"}
//
// Parsing is strict RFC 8259 on untrusted bytes: valid UTF-8, no byte order mark, no lone surrogate escape, no trailing
// text, no number beyond a double's range. A repeated key keeps its first position and its last value. Depth, bytes and
// number of values are limited; the error says which limit. Integers that fit 64 bits stay integers, longer ones keep
// their digits; a number written with '.' or an exponent is a double. Printing follows spec/protocol.md 4.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace deepinfer::recipe {

class Json;
struct JsonMember;
using JsonArray = std::vector<Json>;
using JsonObject = std::vector<JsonMember>;

// An integer that fits neither int64 nor uint64: its digits as written.
struct BigInteger {
  std::string digits;
  bool operator==(const BigInteger&) const = default;
};

class Json {
 public:
  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool v) : value_(v) {}
  Json(int v) : value_(static_cast<int64_t>(v)) {}
  Json(int64_t v) : value_(v) {}
  Json(uint64_t v);  // kept as int64 where it fits, so that equal integers compare equal
  Json(double v) : value_(v) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(std::string_view v) : value_(std::string(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(BigInteger v) : value_(std::move(v)) {}
  Json(JsonArray v);
  Json(JsonObject v);
  static Json array();
  static Json object();

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<JsonArray>(value_); }
  bool is_object() const { return std::holds_alternative<JsonObject>(value_); }
  bool is_integer() const;
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }

  // The accessors below require the kind they name.
  bool as_bool() const { return std::get<bool>(value_); }
  const std::string& as_string() const { return std::get<std::string>(value_); }
  std::string& as_string() { return std::get<std::string>(value_); }
  const JsonArray& as_array() const { return std::get<JsonArray>(value_); }
  JsonArray& as_array() { return std::get<JsonArray>(value_); }
  const JsonObject& as_object() const { return std::get<JsonObject>(value_); }
  JsonObject& as_object() { return std::get<JsonObject>(value_); }
  double as_double() const;                  // any number
  std::optional<int64_t> to_int64() const;   // an integer that fits; otherwise nothing

  // Member of an object; null pointer when absent or when this is not an object.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  // Replaces the member in place or appends it. The value must be an object.
  Json& set(std::string_view key, Json value);
  void erase(std::string_view key);

  // "null", "boolean", "integer", "number", "string", "array", "object"
  std::string_view kind_name() const;

  // Same kind and value, members in the same order. 1 and 1.0 differ.
  bool operator==(const Json& other) const;

  using Variant =
      std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, BigInteger, JsonArray, JsonObject>;
  const Variant& variant() const { return value_; }

 private:
  Variant value_;
};

struct JsonMember {
  std::string key;
  Json value;
  bool operator==(const JsonMember&) const = default;
};

struct JsonLimits {
  size_t bytes_max = 48u << 20;    // the API's body limit
  int depth_max = 128;             // nested arrays and objects
  size_t values_max = 1'000'000;   // bounds memory: a value costs about 50 bytes, its text may be one
};

// kInvalidArgument "TEXT at line L column C" for what is not JSON; kResourceExhausted names the limit.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// Python's json.dumps(ensure_ascii=False). Integers beyond 64 bits print as doubles like the recipe (exact_integers
// false) or with all digits like Python.
void append_python_json(std::string& out, const Json& value, bool exact_integers = false);
std::string to_python_json(const Json& value, bool exact_integers = false);

// No white space; doubles in the form of the recipe's compact text (1.5e-7, 0.00001). Long integers as doubles.
void append_compact_json(std::string& out, const Json& value);
std::string to_compact_json(const Json& value);

// The string with its quotes, escaped as in 4.3. `text` is valid UTF-8.
void append_json_string(std::string& out, std::string_view text);
// The same without quotes.
void append_json_escaped(std::string& out, std::string_view text);
// A finite double as Python's repr prints it.
void append_python_double(std::string& out, double value);

}  // namespace deepinfer::recipe
