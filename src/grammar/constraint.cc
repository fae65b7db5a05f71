#include "grammar/constraint.h"

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_value.h"
#include "grammar/regex.h"
#include "grammar/tags.h"
#include "grammar/tool_grammar.h"

namespace deepinfer::grammar {
namespace {

Status bad_so_args(std::string_view what) { return make_error(Code::kInvalidArgument, "so_args: {}", what); }

// A token id: an integer from 0 to 2^31 - 1.
std::optional<uint32_t> token_id(const JsonValue& v) {
  const std::string_view text = v.is_number() ? v.text() : std::string_view();
  if (text.empty() || text.size() > 10 || text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  uint64_t id = 0;
  for (char c : text) id = id * 10 + static_cast<uint64_t>(c - '0');
  return id <= INT32_MAX ? std::optional<uint32_t>(static_cast<uint32_t>(id)) : std::nullopt;
}

}  // namespace

Result<SoArgs> parse_so_args(std::string_view json) {
  DI_ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::parse(json));
  const JsonValue& root = document.root();
  if (!root.is_object()) return bad_so_args("an object is expected");
  const JsonValue* type = root.find("schema_type");
  const JsonValue* schema = root.find("schema");
  if (type == nullptr || !type->is_string() || schema == nullptr)
    return bad_so_args("'schema_type' and 'schema' are needed");
  SoArgs args;
  if (type->text() == "regex") args.constraint.kind = ConstraintKind::kRegex;
  else if (type->text() == "json") args.constraint.kind = ConstraintKind::kJsonSchema;
  else if (type->text() == "ebnf") args.constraint.kind = ConstraintKind::kEbnf;
  else return bad_so_args(fmt::format("schema_type '{}' is not one of regex, json and ebnf", type->text()));
  if (schema->is_string()) args.constraint.source = schema->text();
  else if (type->text() == "json" && schema->is_object()) append_json(*schema, args.constraint.source);
  else return bad_so_args("'schema' must be a string");
  for (uint32_t i = 0; i < root.size(); ++i) {
    const JsonMember& m = root.members()[i];
    if (m.name == "trigger_token_ids") {
      for (uint32_t k = 0; m.value.is_array() && k < m.value.size(); ++k) {
        const auto id = token_id(m.value[k]);
        if (!id) return bad_so_args("'trigger_token_ids' must be a list of token ids");
        args.trigger_token_ids.push_back(*id);
      }
      if (args.trigger_token_ids.empty()) return bad_so_args("'trigger_token_ids' must be a list of token ids");
    } else if (m.name == "bound_token_id") {
      args.bound_token_id = token_id(m.value);
      if (!args.bound_token_id) return bad_so_args("'bound_token_id' must be one token id");
    } else if (m.name != "schema_type" && m.name != "schema") {
      return bad_so_args(fmt::format("'{}' is not supported", m.name));
    }
  }
  if (args.bound_token_id && args.trigger_token_ids.empty())
    return bad_so_args("'bound_token_id' needs 'trigger_token_ids'");
  return args;
}

Result<Grammar> build_constraint(const Constraint& c, const Vocabulary& vocabulary, const Limits& limits) {
  if (c.source.size() > limits.source_bytes_max) {
    return make_error(Code::kResourceExhausted, "the constraint has {} bytes, more than {} (limit source_bytes_max)",
                      c.source.size(), limits.source_bytes_max);
  }
  JsonSchemaOptions options;
  options.any_order = c.any_order;
  options.limits = limits;
  if (c.kind == ConstraintKind::kJsonSchema) return compile_json_schema(c.source, options);
  GrammarBuilder b(limits);
  b.set_added_tokens(vocabulary.added_tokens());
  switch (c.kind) {
    case ConstraintKind::kRegex: {
      DI_ASSIGN_OR_RETURN(Text t, parse_regex(b, c.source, RegexMode::kWhole));
      return b.finish(b.utf8(t));
    }
    case ConstraintKind::kEbnf: {
      DI_ASSIGN_OR_RETURN(Expr e, add_ebnf(b, c.source));
      return b.finish(e, /*strict_rules=*/true);
    }
    case ConstraintKind::kTags: {
      DI_ASSIGN_OR_RETURN(TagSet tags, parse_tags(c.source));
      DI_ASSIGN_OR_RETURN(Expr e, add_tags(b, tags));
      return b.finish(e);
    }
    case ConstraintKind::kTools: {
      DI_ASSIGN_OR_RETURN(ToolSet tools, parse_tool_set(c.source));
      DI_ASSIGN_OR_RETURN(Expr e, add_tools(b, tools));
      return b.finish(e);
    }
    case ConstraintKind::kJson:
      return b.finish(any_json(b, options));
    default:
      return b.finish(any_json_object(b, options));
  }
}

Result<std::shared_ptr<Compiled>> compile_constraint(const Constraint& constraint,
                                                     std::shared_ptr<const Vocabulary> vocabulary,
                                                     const Limits& limits) {
  DI_ASSIGN_OR_RETURN(Grammar grammar, build_constraint(constraint, *vocabulary, limits));
  return Compiled::create(std::move(grammar), std::move(vocabulary), limits);
}

}  // namespace deepinfer::grammar
