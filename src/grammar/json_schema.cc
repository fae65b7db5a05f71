#include "grammar/json_schema.h"

#include "grammar/discard.h"
#include "grammar/json_emit.h"

namespace deepinfer::grammar {
namespace {

// What one schema's compilation holds.
struct Work {
  Work(SchemaModel parsed, GrammarBuilder& builder, const JsonSchemaOptions& given)
      : options(given),
        model(std::make_shared<const SchemaModel>(std::move(parsed))),
        normal(model, builder),
        emitter(normal, options) {}

  JsonSchemaOptions options;
  std::shared_ptr<const SchemaModel> model;
  Normaliser normal;
  JsonEmitter emitter;
};

}  // namespace

Result<Expr> add_json_schema(GrammarBuilder& builder, std::string_view schema, const JsonSchemaOptions& options) {
  const Limits& limits = builder.budget().limits();
  SchemaLimits schema_limits;
  schema_limits.bytes_max = limits.source_bytes_max;
  schema_limits.depth_max = static_cast<int>(limits.nesting_max);
  schema_limits.budget = &builder.budget();
  DI_ASSIGN_OR_RETURN(SchemaModel parsed, SchemaModel::parse(schema, schema_limits));
  auto work = std::make_unique<Work>(std::move(parsed), builder, options);
  auto root = work->emitter.run(work->model->root());
  constexpr size_t kLarge = 2'000;
  if (work->model->size() > kLarge) discard(std::move(work));
  return root;
}

Result<Grammar> compile_json_schema(std::string_view schema, const JsonSchemaOptions& options) {
  GrammarBuilder builder(options.limits);
  DI_ASSIGN_OR_RETURN(Expr root, add_json_schema(builder, schema, options));
  auto grammar = builder.finish(root);
  if (!grammar.ok() && grammar.status().code() == Code::kInvalidArgument) {
    return make_error(Code::kInvalidArgument,
                      "the JSON Schema has no valid document: its keywords contradict each other ({})",
                      grammar.status().message());
  }
  return grammar;
}

Expr any_json(GrammarBuilder& builder, const JsonSchemaOptions& options) {
  return JsonParts(builder, options).any_value();
}

Expr any_json_object(GrammarBuilder& builder, const JsonSchemaOptions& options) {
  return JsonParts(builder, options).any_object();
}

}  // namespace deepinfer::grammar
