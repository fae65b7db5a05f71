// Checks finished JSON against a JSON Schema: exact numbers, known formats, lengths in code points, every keyword.
//
//   JsonValidator validator(std::make_shared<const SchemaModel>(std::move(model)));
//   DI_RETURN_IF_ERROR(validator.prepare());             // compiles every pattern; a bad or unsupported one is named
//   for (const JsonError& e : validator.validate(document.root())) log(e.to_string());
//
// One validator belongs to one thread at a time (its patterns grow while they are used). At most `errors_max` errors
// are listed. Meaning of the keywords: json-schema.org drafts 7 and 2020-12, chosen by the model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/json_schema_model.h"

namespace deepinfer::grammar {

struct JsonError {
  std::string instance_path;  // JSON pointer into the instance, "" for the whole
  std::string schema_path;    // "#/properties/a/minLength"
  std::string message;
  std::string to_string() const;
};

class JsonValidator {
 public:
  explicit JsonValidator(std::shared_ptr<const SchemaModel> model, const Limits& limits = {});
  Status prepare();

  std::vector<JsonError> validate(const JsonValue& instance, size_t errors_max = 20);
  bool is_valid(const JsonValue& instance) { return is_valid(model_->root(), instance); }
  // Against one node of the model.
  bool is_valid(SchemaId node, const JsonValue& instance);
  // Set when a limit was reached (patterns, or nesting); later verdicts are not to be trusted then.
  const Status& status() const { return builder_.status(); }

 private:
  friend class JsonEvaluation;
  Result<Text> pattern(std::string_view source);
  bool is_listed(const JsonValue& choices, const JsonValue& value);

  std::shared_ptr<const SchemaModel> model_;
  GrammarBuilder builder_;
  std::unordered_map<std::string_view, Text> patterns_;
  // Long enums by hash, so that checking each of their own values is not quadratic.
  std::unordered_map<const JsonValue*, std::unordered_multimap<uint64_t, const JsonValue*>> listed_;
};

}  // namespace deepinfer::grammar
