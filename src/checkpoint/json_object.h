// Reads one JSON object key by key with exact types (internal to checkpoint/, needs simdjson).
//
//   JsonObject text(object, "config.json: text_config", &warnings);
//   text.integer("hidden_size", &c.hidden_size, 1, 1 << 20);
//   DI_RETURN_IF_ERROR(text.finish());          // the first failure; keys that nobody asked for become warnings
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::checkpoint {

class JsonObject {
 public:
  JsonObject(simdjson::dom::object object, std::string where, std::vector<std::string>* warnings)
      : object_(object), where_(std::move(where)), warnings_(warnings) {}

  // Required keys. The value must lie within [low, high].
  void integer(std::string_view key, int64_t* out, int64_t low, int64_t high);
  void number(std::string_view key, double* out, double low, double high);
  void integers(std::string_view key, std::vector<int64_t>* out, int64_t low, int64_t high, size_t max_items);
  void boolean(std::string_view key, bool* out);
  simdjson::dom::object object(std::string_view key);  // usable only while status() is ok

  // Keys that must hold exactly this value; `required` says whether they must be there.
  void must_be_text(std::string_view key, std::string_view want, bool required = true);
  void must_be_bool(std::string_view key, bool want, bool required = true);
  void must_be_number(std::string_view key, int64_t want, bool required = true);
  void must_be_list(std::string_view key, const std::vector<int64_t>& want, bool required = true);

  bool has(std::string_view key);      // also marks the key as known
  bool present(std::string_view key);  // there and not null
  void ignore(std::string_view key) { known_.emplace(key); }
  std::string_view text(std::string_view key);  // "" where absent or not a string
  void adopt(const Status& failure);  // a failure found inside this object
  void fail(Code code, std::string_view key, std::string_view problem);

  const Status& status() const { return status_; }
  Status finish();

 private:
  bool find(std::string_view key, simdjson::dom::element* out, bool required);

  simdjson::dom::object object_;
  std::string where_;
  std::vector<std::string>* warnings_;
  std::set<std::string, std::less<>> known_;
  Status status_;
};

std::string_view json_type_name(simdjson::dom::element_type type);  // "a string", "an integer", ..

}  // namespace deepinfer::checkpoint
