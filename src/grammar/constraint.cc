#include "grammar/constraint.h"

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/tags.h"

namespace deepinfer::grammar {

Result<Grammar> build_constraint(const Constraint& c, const Vocabulary& vocabulary, const Limits& limits) {
  if (c.source.size() > limits.source_bytes_max) {
    return make_error(Code::kResourceExhausted, "the constraint has {} bytes, more than {} (limit source_bytes_max)", c.source.size(),
                      limits.source_bytes_max);
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
    default:
      return b.finish(any_json_object(b, options));
  }
}

Result<std::shared_ptr<Compiled>> compile_constraint(const Constraint& constraint, std::shared_ptr<const Vocabulary> vocabulary,
                                                     const Limits& limits) {
  DI_ASSIGN_OR_RETURN(Grammar grammar, build_constraint(constraint, *vocabulary, limits));
  return Compiled::create(std::move(grammar), std::move(vocabulary), limits);
}

}  // namespace deepinfer::grammar
