#include "grammar/tool_grammar.h"

#include <algorithm>

#include "grammar/json_emit.h"
#include "grammar/json_schema.h"
#include "grammar/json_value.h"
#include "grammar/lark.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kToolsMax = 4096;
constexpr std::string_view kOpen = "<｜DSML｜ calls>\n", kClose = "\n</｜DSML｜ calls>";
constexpr std::string_view kInvoke = "<｜DSML｜ invoke name=\"", kInvokeEnd = "\n</｜DSML｜ invoke>";
constexpr std::string_view kParameter = "<｜DSML｜ parameter name=\"", kParameterEnd = "</｜DSML｜ parameter>";

Status bad(std::string_view what) { return make_error(Code::kInvalidArgument, "tools: {}", what); }

class ToolWriter {
 public:
  ToolWriter(GrammarBuilder& b, const ToolSet& set) : b_(b), set_(set) { json_.dumps_style = true; }

  Result<Expr> write() {
    if (set_.tools.empty() || set_.tools.size() > kToolsMax)
      return bad(fmt::format("there must be 1 to {} tools", kToolsMax));
    std::vector<Expr> invokes;
    for (const ToolSpec& tool : set_.tools) {
      if (tool.name.empty() || tool.name.find_first_of("\"\n<>") != std::string::npos) {
        return bad(fmt::format("'{}' cannot be the name of a tool", tool.name));
      }
      Result<Expr> parameters = !tool.input_syntax.empty() ? custom_input(tool)
                                : tool.strict              ? strict_parameters(tool)
                                                           : Result<Expr>(any_parameters());
      if (!parameters.ok()) return parameters.status().with_context(fmt::format("tool '{}'", tool.name));
      invokes.push_back(
          b_.sequence({mark(kInvoke), b_.literal(tool.name + "\">\n"), parameters.value(), mark(kInvokeEnd)}));
    }
    const Expr invoke = b_.choice(invokes);
    const Expr more = set_.parallel ? b_.repeat(b_.sequence({b_.literal("\n"), invoke}), 0, kUnbounded) : b_.empty();
    const Expr calls = b_.sequence({invoke, more, mark(kClose)});
    if (!b_.ok()) return b_.status();
    if (set_.block_opened) return calls;
    const Expr block = b_.sequence({b_.literal("\n\n"), mark(kOpen), calls});
    // A required block may also come without the two newlines that part it from text.
    if (set_.required) return b_.choice({block, b_.sequence({mark(kOpen), calls})});
    return b_.sequence({b_.utf8(b_.any_text()), b_.optional(block)});
  }

 private:
  Expr mark(std::string_view literal) { return b_.literal(literal, Spelling::kAddedTokens); }

  Expr parameter(Expr name, Text strings, Expr others) {
    const Expr raw = b_.sequence({b_.literal("\" string=\"true\">"), b_.utf8(strings)});
    const Expr json = b_.sequence({b_.literal("\" string=\"false\">"), others});
    return b_.sequence({mark(kParameter), name, b_.choice({raw, json}), mark(kParameterEnd)});
  }

  // Any names with any values.
  Expr any_parameters() {
    if (any_) return *any_;
    CharSet name_chars = ~CharSet::of(U"\"\n<>");
    const Expr name = b_.utf8(b_.repeat(b_.chars(name_chars), 1, kUnbounded));
    const Expr one = parameter(name, b_.any_text(), any_json(b_, json_));
    any_ = b_.optional(b_.sequence({one, b_.repeat(b_.sequence({b_.literal("\n"), one}), 0, kUnbounded)}));
    return *any_;
  }

  Result<Expr> custom_input(const ToolSpec& tool) {
    Expr input = b_.none();
    if (tool.input_syntax == "lark") {
      DI_ASSIGN_OR_RETURN(input, add_lark(b_, tool.input_definition));
    } else if (tool.input_syntax == "regex") {
      DI_ASSIGN_OR_RETURN(Text text, parse_regex(b_, tool.input_definition, RegexMode::kWhole));
      input = b_.utf8(text);
    } else {
      return bad(
          fmt::format("the syntax '{}' of a custom tool's grammar is not one of lark and regex", tool.input_syntax));
    }
    if (b_.is_none(input)) return bad("no text at all fits the grammar of its input");
    return b_.sequence({mark(kParameter), b_.literal("input\" string=\"true\">"), input, mark(kParameterEnd)});
  }

  Result<Expr> strict_parameters(const ToolSpec& tool) {
    const std::string_view source =
        tool.parameters.empty()
            ? std::string_view(R"({"type": "object", "properties": {}, "additionalProperties": false})")
            : std::string_view(tool.parameters);
    SchemaLimits limits;
    limits.bytes_max = b_.budget().limits().source_bytes_max;
    limits.depth_max = static_cast<int>(b_.budget().limits().nesting_max);
    DI_ASSIGN_OR_RETURN(SchemaModel parsed, SchemaModel::parse(source, limits));
    auto model = std::make_shared<const SchemaModel>(std::move(parsed));
    Normaliser normal(model, b_);
    JsonEmitter emitter(normal, json_);
    DI_ASSIGN_OR_RETURN(const NormalForm* form, normal.expand(normal.of_node(model->root())));
    std::vector<Expr> ways;
    for (const Shape& shape : form->shapes) {
      if (!shape.object) continue;
      DI_ASSIGN_OR_RETURN(Expr way, members(*shape.object, emitter));
      ways.push_back(way);
    }
    DI_RETURN_IF_ERROR(emitter.define_rules());
    const Expr all = b_.choice(ways);
    if (b_.is_none(all)) return bad("the parameters of a strict tool must be an object that some arguments satisfy");
    return all;
  }

  Result<Expr> members(const ObjectShape& shape, JsonEmitter& emitter) {
    const bool closed = std::any_of(shape.rules.begin(), shape.rules.end(), [](const ObjectShape::Rule& r) {
      return !r.pattern && r.value == kNothing && r.scope->patterns.empty();
    });
    if (!closed || !shape.names.empty() || !shape.some.empty() || shape.min > 0 || shape.max) {
      return make_error(
          Code::kUnsupported,
          "the parameters of a strict tool must be an object with additionalProperties false and without rules on the "
          "number or the names of its members");
    }
    struct Slot {
      Expr parameter;
      bool required;
    };
    std::vector<Slot> slots;
    for (const ObjectShape::Member& m : shape.members) {
      if (m.presence == Presence::kForbidden) continue;
      if (m.name.find_first_of("\"\n<>") != std::string_view::npos)
        return bad(fmt::format("'{}' cannot be the name of a parameter", m.name));
      const JsonEmitter::Split value = emitter.split(m.value);
      slots.push_back({parameter(b_.literal(m.name), value.strings, value.others), m.presence == Presence::kRequired});
    }
    // rest[k]: slots from k on, behind a parameter that was written.
    std::vector<Expr> rest(slots.size() + 1, b_.empty());
    for (size_t k = slots.size(); k-- > 0;) {
      const Expr here = b_.sequence({b_.literal("\n"), slots[k].parameter});
      rest[k] = b_.sequence({slots[k].required ? here : b_.optional(here), rest[k + 1]});
    }
    std::vector<Expr> ways;
    for (size_t k = 0; k < slots.size(); ++k) {
      ways.push_back(b_.sequence({slots[k].parameter, rest[k + 1]}));
      if (slots[k].required) return b_.choice(ways);
    }
    ways.push_back(b_.empty());
    return b_.choice(ways);
  }

  GrammarBuilder& b_;
  const ToolSet& set_;
  JsonSchemaOptions json_;
  std::optional<Expr> any_;
};

Result<ToolSpec> parse_tool(const JsonValue& entry) {
  const JsonValue* function = entry.is_object() ? entry.find("function") : nullptr;
  const JsonValue& v = function != nullptr ? *function : entry;
  if (!v.is_object()) return bad("each tool must be an object");
  ToolSpec tool;
  const JsonValue* name = v.find("name");
  if (name == nullptr || !name->is_string()) return bad("a tool has no name");
  tool.name = name->text();
  if (const JsonValue* parameters = v.find("parameters");
      parameters != nullptr && parameters->kind() != JsonKind::kNull) {
    append_json(*parameters, tool.parameters);
  }
  if (const JsonValue* input = v.find("input"); input != nullptr) {
    const JsonValue *syntax = input->find("syntax"), *definition = input->find("definition");
    if (syntax == nullptr || definition == nullptr || !syntax->is_string() || !definition->is_string()) {
      return bad("'input' of a custom tool needs 'syntax' and 'definition'");
    }
    tool.input_syntax = syntax->text();
    tool.input_definition = definition->text();
  }
  if (const JsonValue* strict = v.find("strict"); strict != nullptr) tool.strict = strict->is_true();
  return tool;
}

}  // namespace

Result<ToolSet> parse_tool_set(std::string_view json) {
  DI_ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::parse(json));
  const JsonValue& root = document.root();
  if (!root.is_object()) return bad("an object is expected");
  ToolSet set;
  for (uint32_t i = 0; i < root.size(); ++i) {
    const JsonMember& m = root.members()[i];
    if (m.name == "tools" && m.value.is_array()) {
      for (uint32_t k = 0; k < m.value.size(); ++k) {
        DI_ASSIGN_OR_RETURN(ToolSpec tool, parse_tool(m.value[k]));
        set.tools.push_back(std::move(tool));
      }
    } else if (m.name == "required" && m.value.is_bool()) {
      set.required = m.value.is_true();
    } else if (m.name == "block_opened" && m.value.is_bool()) {
      set.block_opened = m.value.is_true();
    } else if (m.name == "parallel" && m.value.is_bool()) {
      set.parallel = m.value.is_true();
    } else {
      return bad(fmt::format("'{}' is unknown or has the wrong type", m.name));
    }
  }
  return set;
}

Result<Expr> add_tools(GrammarBuilder& builder, const ToolSet& set) { return ToolWriter(builder, set).write(); }

}  // namespace deepinfer::grammar
