#include "grammar/tags.h"

#include <algorithm>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_value.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kItemsMax = 4096;
constexpr size_t kTriggersMax = 256;

Status bad(std::string_view what) { return make_error(Code::kInvalidArgument, "structural tags: {}", what); }

Result<std::string> string_member(const JsonValue& object, std::string_view name) {
  const JsonValue* v = object.find(name);
  if (v == nullptr || !v->is_string()) return bad(fmt::format("'{}' is missing or not a string", name));
  return std::string(v->text());
}

Result<TagItem> parse_item(const JsonValue& v) {
  if (!v.is_object()) return bad("each of 'items' must be an object");
  TagItem item;
  DI_ASSIGN_OR_RETURN(item.begin, string_member(v, "begin"));
  DI_ASSIGN_OR_RETURN(item.end, string_member(v, "end"));
  const JsonValue* content = v.find("content");
  if (v.size() != 3 || content == nullptr || !content->is_object() || content->size() != 1) {
    return bad("an item holds 'begin', 'content' and 'end', and its content one of 'json_schema', 'regex' and 'gbnf'");
  }
  const JsonMember& member = content->members()[0];
  if (member.name == "json_schema") {
    item.kind = ContentKind::kJsonSchema;
    append_json(member.value, item.content);
    return item;
  }
  if (member.name == "regex") item.kind = ContentKind::kRegex;
  else if (member.name == "gbnf") item.kind = ContentKind::kEbnf;
  else return bad(fmt::format("content '{}' is not one of 'json_schema', 'regex' and 'gbnf'", member.name));
  if (!member.value.is_string()) return bad(fmt::format("content '{}' must be a string", member.name));
  item.content = member.value.text();
  return item;
}

Result<Expr> add_content(GrammarBuilder& b, const TagItem& item) {
  switch (item.kind) {
    case ContentKind::kRegex: {
      DI_ASSIGN_OR_RETURN(Text t, parse_regex(b, item.content, RegexMode::kWhole));
      return b.utf8(t);
    }
    case ContentKind::kEbnf:
      return add_ebnf(b, item.content);
    case ContentKind::kJsonSchema:
      return add_json_schema(b, item.content);
  }
  return b.none();
}

class TagWriter {
 public:
  TagWriter(GrammarBuilder& b, const TagSet& tags) : b_(b), tags_(tags) {}

  Result<Expr> write() {
    DI_RETURN_IF_ERROR(check());
    for (const TagItem& item : tags_.items) {
      Result<Expr> content = add_content(b_, item);
      if (!content.ok()) return content.status().with_context(fmt::format("tag '{}'", item.begin));
      if (b_.is_none(content.value())) return bad(fmt::format("nothing can satisfy the content of '{}'", item.begin));
      bodies_.push_back(b_.sequence({content.value(), b_.literal(item.end, Spelling::kAddedTokens)}));
    }
    if (!b_.ok()) return b_.status();
    std::vector<Expr> first;
    for (size_t i = 0; i < bodies_.size(); ++i) {
      first.push_back(b_.sequence({b_.literal(tags_.items[i].begin, Spelling::kAddedTokens), bodies_[i]}));
    }
    if (tags_.at_least_one && tags_.stop_after_first) return b_.choice(first);
    const Expr tag = text_then_tag(), tail = b_.utf8(no_trigger_);
    if (tags_.at_least_one) return b_.sequence({b_.choice(first), b_.repeat(tag, 0, kUnbounded), tail});
    if (tags_.stop_after_first) return b_.choice({tag, tail});
    return b_.sequence({b_.repeat(tag, 0, kUnbounded), tail});
  }

 private:
  Status check() const {
    if (tags_.items.empty() || tags_.items.size() > kItemsMax)
      return bad(fmt::format("there must be 1 to {} items", kItemsMax));
    if (tags_.triggers.empty() || tags_.triggers.size() > kTriggersMax) {
      return bad(fmt::format("there must be 1 to {} triggers", kTriggersMax));
    }
    for (const std::string& t : tags_.triggers) {
      if (t.empty()) return bad("a trigger is empty");
    }
    for (const TagItem& item : tags_.items) {
      const bool triggered = std::any_of(tags_.triggers.begin(), tags_.triggers.end(),
                                         [&](const std::string& t) { return item.begin.starts_with(t); });
      if (!triggered) return bad(fmt::format("no trigger starts '{}'", item.begin));
    }
    return {};
  }

  // Free text up to the end of a trigger, and what must follow there.
  Expr text_then_tag() {
    const Text all = b_.any_text(), some = b_.repeat(b_.any_char(), 1, kUnbounded);
    const Text trigger = b_.one_of(tags_.triggers);
    no_trigger_ = b_.complement(b_.concat({all, trigger, all}));
    const Text none_before_end = b_.complement(b_.concat({all, trigger, some}));
    std::vector<Expr> ways;
    for (const std::string& t : tags_.triggers) {
      std::vector<Expr> after;
      for (size_t i = 0; i < bodies_.size(); ++i) {
        const std::string& begin = tags_.items[i].begin;
        if (!begin.starts_with(t)) continue;
        after.push_back(
            b_.sequence({b_.literal(std::string_view(begin).substr(t.size()), Spelling::kAddedTokens), bodies_[i]}));
      }
      const Expr rest = b_.choice(after);
      ways.push_back(b_.sequence({b_.utf8(b_.all_of({b_.concat({all, b_.text(t)}), none_before_end})), rest}));
      // The same trigger written with its added tokens: plain text up to the first of them.
      const auto added = b_.find_added_tokens(t);
      if (added.empty()) continue;
      const std::string_view head = std::string_view(t).substr(0, added[0].first);
      const Text before = b_.all_of({b_.concat({all, b_.text(head)}), no_trigger_});
      const Expr marked = b_.literal(std::string_view(t).substr(head.size()), Spelling::kAddedTokens);
      ways.push_back(b_.sequence({b_.utf8(before), marked, rest}));
    }
    return b_.choice(ways);
  }

  GrammarBuilder& b_;
  const TagSet& tags_;
  std::vector<Expr> bodies_;
  Text no_trigger_;
};

}  // namespace

Result<TagSet> parse_tags(std::string_view json) {
  DI_ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::parse(json));
  const JsonValue& root = document.root();
  if (!root.is_object()) return bad("an object is expected");
  TagSet tags;
  for (uint32_t i = 0; i < root.size(); ++i) {
    const JsonMember& m = root.members()[i];
    if (m.name == "items" && m.value.is_array()) {
      for (uint32_t k = 0; k < m.value.size(); ++k) {
        DI_ASSIGN_OR_RETURN(TagItem item, parse_item(m.value[k]));
        tags.items.push_back(std::move(item));
      }
    } else if (m.name == "triggers" && m.value.is_array()) {
      for (uint32_t k = 0; k < m.value.size(); ++k) {
        if (!m.value[k].is_string()) return bad("'triggers' must be strings");
        tags.triggers.emplace_back(m.value[k].text());
      }
    } else if (m.name == "at_least_one" && m.value.is_bool()) {
      tags.at_least_one = m.value.is_true();
    } else if (m.name == "stop_after_first" && m.value.is_bool()) {
      tags.stop_after_first = m.value.is_true();
    } else {
      return bad(fmt::format("'{}' is unknown or has the wrong type", m.name));
    }
  }
  return tags;
}

Result<Expr> add_tags(GrammarBuilder& builder, const TagSet& tags) { return TagWriter(builder, tags).write(); }

}  // namespace deepinfer::grammar
