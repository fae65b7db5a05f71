// Structural tags: free text in which a trigger starts a tag that must then be written to the end.
//
//   TagSet tags;
//   tags.triggers = {"<function="};
//   tags.items = {{"<function=add>", ContentKind::kJsonSchema, schema, "</function>"}};
//   DI_ASSIGN_OR_RETURN(Expr e, add_tags(builder, tags));
//
// Where any trigger has been written, one of the items whose `begin` starts with it must follow: begin, content, end;
// then free text again. An unfinished trigger is plain text. `at_least_one`: the text begins with a tag.
// `stop_after_first`: nothing comes after the first tag. An added token (GrammarBuilder::set_added_tokens) inside a
// trigger, begin or end is written with that token; a trigger spelled in ordinary tokens counts too. Free text holds no
// added tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

enum class ContentKind : uint8_t { kJsonSchema, kRegex, kEbnf };

struct TagItem {
  std::string begin;
  ContentKind kind = ContentKind::kJsonSchema;
  std::string content;  // schema text, regular expression or grammar
  std::string end;
};

struct TagSet {
  std::vector<TagItem> items;
  std::vector<std::string> triggers;
  bool at_least_one = false;
  bool stop_after_first = false;
};

// Reads {"items": [{"begin", "content": {"json_schema" | "regex" | "gbnf": ...}, "end"}], "triggers": [...],
// "at_least_one"?, "stop_after_first"?}; other members are refused by name.
Result<TagSet> parse_tags(std::string_view json);

Result<Expr> add_tags(GrammarBuilder& builder, const TagSet& tags);

}  // namespace deepinfer::grammar
