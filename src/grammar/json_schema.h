// JSON Schema into a grammar: what the grammar accepts is exactly what the schema allows, or the schema is refused.
//
//   DI_ASSIGN_OR_RETURN(Grammar g, compile_json_schema(R"({"type": "object", "properties": {"n": {"type":
//   "integer"}}})"));
//
// Meaning: drafts 2020-12 and 7 (json_schema_model.h), known formats enforced (json_format.h), `pattern` searches,
// lengths count code points, numbers are exact. A keyword that cannot be obeyed exactly is refused with its name and
// JSON pointer, never dropped; so is a schema without any valid document. Refused today: uniqueItems that needs more
// different items (minItems) than are known to exist, unevaluatedItems beside contains, the negations of uniqueItems,
// unevaluated* and counted contains, and products of alternatives beyond the limits of NormalLimits.
//
// uniqueItems is exact for items of every kind: each output remembers the values of its open arrays (Limits:
// unique_items_max, unique_item_bytes_max), and masks leave out what would repeat one, or lead where only repeats are
// left. Equality is that of JSON Schema: numbers by value, strings by characters, objects without regard to order.
//
// Member order: the order of `properties`; then names that only `required` lists; then others. A schema's own
// properties come before those of $ref, allOf, anyOf, oneOf, if, then/else, dependentSchemas, in this order.
// `any_order` lifts that for objects of at most kAnyOrderMax (grammar.h) named members. A named member occurs at most
// once.
//
// White space: at most kMaxWhitespace characters (grammar.h) before and after each of { } [ ] : , inside the document,
// and none around it; `compact` allows none at all. Names and listed values are written in one spelling,
// json.dumps(ensure_ascii=False); integers without fraction and exponent. Free strings may use every escape.
//
// JsonValidator (json_validate.h) checks finished documents against the same schemas.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

struct JsonSchemaOptions {
  bool any_order = false;
  bool compact = false;
  bool dumps_style = false;  // `, ` and `: ` and no other white space, as Python's json.dumps writes
  Limits limits;  // of compile_json_schema; add_json_schema uses its builder's
};

Result<Grammar> compile_json_schema(std::string_view schema, const JsonSchemaOptions& options = {});

// The same as a part of a larger grammar, for example a tool call's arguments.
Result<Expr> add_json_schema(GrammarBuilder& builder, std::string_view schema, const JsonSchemaOptions& options = {});

// Any JSON document, or any JSON object.
Expr any_json(GrammarBuilder& builder, const JsonSchemaOptions& options = {});
Expr any_json_object(GrammarBuilder& builder, const JsonSchemaOptions& options = {});

}  // namespace deepinfer::grammar
