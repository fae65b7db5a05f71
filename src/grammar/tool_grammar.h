// Tool calls in DSML whose arguments follow the tools' schemas (spec/protocol.md 4.2, 4.5).
//
//   ToolSet set;
//   set.tools = {{"get_weather", R"({"type": "object", "properties": {"city": {"type": "string"}},
//   "additionalProperties": false})", true}};
//   set.required = true;
//   DI_ASSIGN_OR_RETURN(Expr e, add_tools(builder, set));      // the builder knows the added tokens
//
// Output: free text and then at most one block of calls (`required`: just the block), and the end:
//
//   <｜DSML｜ calls>\n  invoke {\n invoke}  \n</｜DSML｜ calls>
//
// NAME is one of the tools. A strict tool's members come in schema order, required ones all; `string="true"` stands
// exactly before strings, which are raw text in the schema's set, `string="false"` before JSON in json.dumps style. A
// tool that is not strict takes any parameters. A custom tool's input follows its own grammar. The markers are the DSML
// token where the tokenizer has one; free text and raw values cannot hold that token. Refused: a strict tool that is
// not a closed object (additionalProperties false), or that counts or patterns its members.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

struct ToolSpec {
  std::string name;
  std::string parameters;  // a JSON Schema; only read if strict
  bool strict = false;
  // A custom tool (spec 9.8): its one parameter `input` is raw text in this language. "lark" (lark.h), "regex"
  // (regex.h), or "".
  std::string input_syntax, input_definition;
};

struct ToolSet {
  std::vector<ToolSpec> tools;
  bool required = false;      // no free text: a block of calls
  bool block_opened = false;  // the prompt ends with the opening line of the block (spec 3.3); implies required
  bool parallel = true;       // more than one call in a block
};

// Reads {"tools": [...], "required"?, "block_opened"?, "parallel"?}; a tool is {"name", "parameters"?, "strict"?} or
// that under "function", as in Chat Completions; a custom tool with a grammar is {"name", "input": {"syntax",
// "definition"}}.
Result<ToolSet> parse_tool_set(std::string_view json);

Result<Expr> add_tools(GrammarBuilder& builder, const ToolSet& set);

}  // namespace deepinfer::grammar
