// One request type for every way in which the APIs ask for constrained output, and its compilation.
//
//   Constraint c{ConstraintKind::kJsonSchema, R"({"type": "object"})"};
//   // on the caller's thread; see compiler.h
//   DI_ASSIGN_OR_RETURN(auto compiled, compile_constraint(c, vocabulary));
//
// response_format json_object and json_schema, text.format, Messages output formats: kJsonObject, kJsonSchema;
// response_format regex: kRegex; `so_args` {"schema_type": "regex" | "json" | "ebnf", "schema": ...}: parse_so_args;
// strict or forced tools: kTools with the text of a ToolSet (tool_grammar.h). With thinking on, the mask starts after
// the reasoning: `after_reasoning` tells the engine so; the grammar itself is the same.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace deepinfer::grammar {

enum class ConstraintKind : uint8_t { kJsonObject, kJson, kJsonSchema, kRegex, kEbnf, kTags, kTools };

struct Constraint {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  // Schema, regular expression, grammar, tags (tags.h: parse_tags) or tools (tool_grammar.h: parse_tool_set); empty for
  // kJsonObject and kJson (any JSON).
  std::string source;
  bool any_order = false;        // kJsonSchema: members in any order
  bool after_reasoning = false;  // for the engine: free text until the end of the reasoning
  bool operator==(const Constraint&) const = default;
};

// `so_args` of DeepInfer's API (spec/deepinfer.md G1): {"schema_type": "regex" | "json" | "ebnf", "schema": text}; an
// object instead of the text is taken for json. `trigger_token_ids` and `bound_token_id` are the engine's (when the
// constraint starts).
struct SoArgs {
  Constraint constraint;
  std::vector<uint32_t> trigger_token_ids;
  std::optional<uint32_t> bound_token_id;
};
Result<SoArgs> parse_so_args(std::string_view json);

Result<Grammar> build_constraint(const Constraint& constraint, const Vocabulary& vocabulary, const Limits& limits = {});

Result<std::shared_ptr<Compiled>> compile_constraint(const Constraint& constraint,
                                                     std::shared_ptr<const Vocabulary> vocabulary,
                                                     const Limits& limits = {});

}  // namespace deepinfer::grammar
