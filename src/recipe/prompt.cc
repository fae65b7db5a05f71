#include "recipe/prompt.h"

namespace deepinfer::recipe {

std::string_view part_kind_name(PartKind kind) {
  static constexpr std::string_view kNames[] = {"template", "effort", "system", "tools", "format", "user",
                                                "reminder", "reasoning", "answer", "call", "tool_result"};
  return kNames[static_cast<size_t>(kind)];
}

void PromptBuilder::trusted(std::string_view wording) {
  static constexpr SpecialToken kInWording[] = {SpecialToken::kDsml, SpecialToken::kThink, SpecialToken::kEndThink};
  size_t start = 0;
  for (size_t i = 0; i < wording.size();) {
    const SpecialToken* found = nullptr;
    // Only '<' and the first byte of U+FF5C can begin a token.
    if (wording[i] == '<' || wording[i] == '\xef') {
      for (const SpecialToken& token : kInWording) {
        if (wording.substr(i).starts_with(special_text(token))) found = &token;
      }
    }
    if (found == nullptr) {
      ++i;
      continue;
    }
    text(wording.substr(start, i - start));
    special(*found);
    i += special_text(*found).size();
    start = i;
  }
  text(wording.substr(start));
}

void PromptBuilder::content(const Content& content, size_t message) {
  size_t start = 0;
  const std::string_view all = content.text;
  for (size_t i = 0; i < content.images.size(); ++i) {
    const size_t offset = content.images[i].offset;
    text(all.substr(start, offset - start));
    special(SpecialToken::kImage);
    prompt_.images.push_back({message, i});
    start = offset;
  }
  text(all.substr(start));
}

void append_parameters(PromptBuilder& out, Version version, const JsonObject& arguments, bool exact_integers) {
  const DsmlTags& tags = dsml_tags(version);
  bool first = true;
  for (const JsonMember& member : arguments) {
    if (!first) out.text("\n");
    first = false;
    out.text("<");
    out.special(SpecialToken::kDsml);
    out.text(tags.parameter);
    out.text(" name=\"");
    out.text(member.key);
    if (member.value.is_string()) {
      out.text("\" string=\"true\">");
      out.text(member.value.as_string());
    } else {
      out.text("\" string=\"false\">");
      append_python_json(out.raw(), member.value, exact_integers);
    }
    out.text("</");
    out.special(SpecialToken::kDsml);
    out.text(tags.parameter);
    out.text(">");
  }
}

void append_call_block(PromptBuilder& out, Version version, const std::vector<ToolCall>& calls) {
  const DsmlTags& tags = dsml_tags(version);
  const auto open = [&](std::string_view before, std::string_view tag, std::string_view after) {
    out.text(before);
    out.special(SpecialToken::kDsml);
    out.text(tag);
    out.text(after);
  };
  open("<", tags.calls, ">\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out.text("\n");
    open("<", tags.invoke, " name=\"");
    out.text(calls[i].name);
    out.text("\">\n");
    Result<Json> arguments = parse_json(calls[i].arguments);
    if (arguments.ok() && arguments.value().is_object()) {
      append_parameters(out, version, arguments.value().as_object(), false);
    } else {
      append_parameters(out, version, {{"arguments", Json(calls[i].arguments)}}, false);
    }
    open("\n</", tags.invoke, ">");
  }
  open("\n</", tags.calls, ">");
}

void append_tool_prompt(PromptBuilder& out, Version version, std::string_view schemas) {
  static const std::string kV4Text = tool_prompt_template(Version::kV4);
  static const std::string kV41Text = tool_prompt_template(Version::kV41);
  const std::string_view wording = version == Version::kV4 ? kV4Text : kV41Text;
  const size_t at = wording.find(kSchemas);
  out.trusted(wording.substr(0, at));
  out.text(schemas);
  out.trusted(wording.substr(at + kSchemas.size()));
}

}  // namespace deepinfer::recipe
