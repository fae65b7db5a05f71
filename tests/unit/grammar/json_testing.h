// What the JSON Schema tests share: documents and schemas from text, and a grammar's verdict on a whole text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/json_schema.h"
#include "grammar/json_validate.h"
#include "grammar/matcher.h"

namespace deepinfer::grammar {

// One token per byte, and an end token.
inline std::shared_ptr<const Vocabulary> byte_vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = [] {
    std::vector<Vocabulary::Entry> entries(257);
    for (int i = 0; i < 256; ++i) entries[static_cast<size_t>(i)].bytes = std::string(1, static_cast<char>(i));
    return Vocabulary::create(std::move(entries), {256}).value();
  }();
  return vocabulary;
}

inline JsonDocument json(std::string_view text) {
  auto document = JsonDocument::parse(text);
  EXPECT_TRUE(document.ok()) << document.status().message() << "\n" << text;
  return std::move(document).value();
}

// Verdicts must not depend on how fast the machine is.
inline JsonSchemaOptions without_time_limit(JsonSchemaOptions options) {
  options.limits.compile_ms = 0;
  return options;
}

// A schema's grammar, ready to judge texts; `status` tells why it was refused.
struct CompiledSchema {
  Status status;
  std::shared_ptr<Compiled> compiled;

  explicit CompiledSchema(std::string_view schema, const JsonSchemaOptions& options = {}) {
    auto grammar = compile_json_schema(schema, without_time_limit(options));
    status = grammar.status();
    if (!grammar.ok()) return;
    auto bound = Compiled::create(std::move(grammar).value(), byte_vocabulary());
    status = bound.status();
    if (bound.ok()) compiled = bound.value();
  }
  bool ok() const { return compiled != nullptr; }
  bool accepts(std::string_view text) const {
    Matcher m(compiled);
    const bool good = m.accept_bytes(text) && m.is_complete();
    EXPECT_TRUE(m.status().ok()) << m.status().message();
    return good;
  }
};

inline std::unique_ptr<JsonValidator> validator_of(std::string_view schema) {
  auto model = SchemaModel::parse(schema);
  EXPECT_TRUE(model.ok()) << model.status().message() << "\n" << schema;
  if (!model.ok()) return nullptr;
  auto validator = std::make_unique<JsonValidator>(std::make_shared<const SchemaModel>(std::move(model).value()));
  const Status prepared = validator->prepare();
  EXPECT_TRUE(prepared.ok()) << prepared.message();
  return validator;
}

}  // namespace deepinfer::grammar
