#include "grammar/json_emit.h"

#include <algorithm>

#include "grammar/json_number_text.h"

namespace deepinfer::grammar {

JsonParts::JsonParts(GrammarBuilder& builder, const JsonSchemaOptions& options)
    : b_(builder), any_order_(options.any_order) {
  Expr space = options.compact || options.dumps_style ? b_.empty() : b_.whitespace();
  Expr after = options.dumps_style ? b_.literal(" ") : space;
  comma_ = b_.sequence({space, b_.literal(","), after});
  colon_ = b_.sequence({space, b_.literal(":"), after});
  open_object_ = b_.sequence({b_.literal("{"), space});
  close_object_ = b_.sequence({space, b_.literal("}")});
  open_array_ = b_.sequence({b_.literal("["), space});
  close_array_ = b_.sequence({space, b_.literal("]")});
}

Expr JsonParts::name(std::string_view name) {
  std::string text;
  append_json_string(name, text);
  return b_.literal(text);
}

Expr JsonParts::any_value() {
  if (any_) return *any_;
  Rule value = b_.new_rule("any JSON value");
  any_ = b_.ref(value);
  const std::string words[] = {"null", "true", "false"};
  b_.define(value, b_.choice({any_object(), any_array(), b_.json_string(b_.any_text()), b_.json_number(),
                              b_.literals(words)}));
  return *any_;
}

Expr JsonParts::any_array() {
  if (any_array_) return *any_array_;
  Rule rule = b_.new_rule("any JSON array");
  any_array_ = b_.ref(rule);
  b_.define(
      rule,
      array(b_.optional(b_.sequence({any_value(), b_.repeat(b_.sequence({comma_, any_value()}), 0, kUnbounded)}))));
  return *any_array_;
}

Expr JsonParts::any_object() {
  if (any_object_) return *any_object_;
  Rule rule = b_.new_rule("any JSON object");
  any_object_ = b_.ref(rule);
  Expr one = member(b_.json_string(b_.any_text()), any_value());
  b_.define(rule, object(b_.optional(b_.sequence({one, b_.repeat(b_.sequence({comma_, one}), 0, kUnbounded)}))));
  return *any_object_;
}

std::vector<std::string> JsonParts::spellings(const JsonValue& scalar) {
  std::string text;
  append_json(scalar, text);
  std::vector<std::string> out{text};
  if (scalar.is_number()) {
    Decimal d = *Decimal::parse(scalar.text());
    if (d.exponent() <= 20 && d.exponent() >= -6 && d.to_plain() != text) out.push_back(d.to_plain());
  }
  return out;
}

Expr JsonParts::listed(const JsonValue& v) {
  if (!v.is_array() && !v.is_object()) return b_.literals(spellings(v));
  std::vector<Expr> parts;
  for (uint32_t i = 0; i < v.size(); ++i) {
    parts.push_back(v.is_array() ? listed(v[i]) : member(name(v.members()[i].name), listed(v.members()[i].value)));
  }
  Expr inside;
  if (any_order_ && v.is_object() && parts.size() <= kAnyOrderMax) {
    inside = b_.any_order(parts, std::vector<bool>(parts.size(), true), comma_, b_.none());
  } else {
    std::vector<Expr> separated;
    for (Expr part : parts) {
      if (!separated.empty()) separated.push_back(comma_);
      separated.push_back(part);
    }
    inside = b_.sequence(separated);
  }
  return v.is_array() ? array(inside) : object(inside);
}

JsonEmitter::JsonEmitter(Normaliser& normal, const JsonSchemaOptions& options)
    : normal_(normal), b_(normal.builder()), options_(options), parts_(normal.builder(), options) {}

Result<Expr> JsonEmitter::run(SchemaId root) {
  Expr out = value(normal_.of_node(root));
  DI_RETURN_IF_ERROR(define_rules());
  return out;
}

Status JsonEmitter::define_rules() {
  while (!waiting_.empty() && normal_.status().ok() && b_.ok()) {
    auto [conj, rule] = waiting_.front();
    waiting_.pop_front();
    define(conj, rule);
  }
  DI_RETURN_IF_ERROR(normal_.status());
  return b_.status();
}

JsonEmitter::Split JsonEmitter::split(ConjId conj) {
  const std::string words[] = {"null", "true", "false"};
  if (conj == kAnything) {
    return {b_.any_text(), b_.choice({parts_.any_object(), parts_.any_array(), b_.json_number(), b_.literals(words)})};
  }
  if (conj == kNothing) return {b_.no_text(), b_.none()};
  auto form = normal_.expand(conj);
  if (!form.ok()) return {b_.no_text(), b_.none()};
  const NormalForm& f = *form.value();
  std::vector<Text> texts;
  for (const Shape& s : f.shapes) {
    if (s.type == TypeClass::kString) texts.push_back(normal_.string_text(s.string));
  }
  NormalForm others;
  for (const JsonValue* v : f.values) {
    if (v->is_string()) texts.push_back(b_.text(v->text()));
    else others.values.push_back(v);
  }
  for (const Shape& s : f.shapes) {
    if (s.type != TypeClass::kString) others.shapes.push_back(s);
  }
  return {b_.any_of(texts), b_.choice(other_ways(conj, others))};
}

Expr JsonEmitter::value(ConjId conj) {
  if (conj == kAnything) return parts_.any_value();
  if (conj == kNothing) return b_.none();
  if (values_.size() <= static_cast<size_t>(conj)) values_.resize(static_cast<size_t>(conj) + 64);
  if (auto& known = values_[static_cast<size_t>(conj)]) return *known;
  auto form = normal_.expand(conj);
  if (!form.ok()) return b_.none();
  const NormalForm& f = *form.value();
  std::vector<Expr> ways = other_ways(conj, f);
  ways.push_back(strings(f));
  Expr out = b_.choice(ways);
  if (values_.size() <= static_cast<size_t>(conj)) values_.resize(static_cast<size_t>(conj) + 64);
  values_[static_cast<size_t>(conj)] = out;
  return out;
}

std::vector<Expr> JsonEmitter::other_ways(ConjId conj, const NormalForm& f) {
  std::vector<Expr> ways;
  std::vector<std::string> words;
  bool containers = false;
  for (const Shape& s : f.shapes) {
    if (s.type == TypeClass::kNull) words.push_back("null");
    if (s.type == TypeClass::kBoolean && s.can_be_true) words.push_back("true");
    if (s.type == TypeClass::kBoolean && s.can_be_false) words.push_back("false");
    containers = containers || s.array || s.object;
  }
  for (const JsonValue* v : f.values) {
    if (v->is_array() || v->is_object()) {
      ways.push_back(parts_.listed(*v));
    } else {
      for (std::string& word : JsonParts::spellings(*v)) words.push_back(std::move(word));
    }
  }
  if (!words.empty()) ways.push_back(b_.literals(words));
  ways.push_back(numbers(f));
  if (containers) {
    Literal first = normal_.literals(conj)[0];
    Rule rule = b_.new_rule(first.is_value() ? std::string("#") : normal_.model().path(first.index()));
    ways.push_back(b_.ref(rule));
    waiting_.emplace_back(conj, rule);
  }
  return ways;
}

Expr JsonEmitter::numbers(const NormalForm& form) {
  std::vector<Text> texts;
  for (const Shape& s : form.shapes) {
    if (s.type != TypeClass::kNumber) continue;
    if (is_plain_number(s.number)) {
      if (s.number.types & kFraction) return b_.json_number();
      if (std::none_of(form.shapes.begin(), form.shapes.end(),
                       [&](const Shape& o) { return &o != &s && o.type == TypeClass::kNumber; })) {
        return b_.json_integer();
      }
    }
    texts.push_back(number_text(b_, s.number));
  }
  if (texts.empty()) return b_.none();
  Text all = b_.any_of(texts);
  return b_.is_empty(all) ? b_.none() : b_.utf8(all);
}

Expr JsonEmitter::strings(const NormalForm& form) {
  std::vector<Text> texts;
  bool check = false;
  for (const Shape& s : form.shapes) {
    if (s.type != TypeClass::kString) continue;
    texts.push_back(normal_.string_text(s.string));
    check = check || !s.string.patterns.empty() || !s.string.excluded.empty();
  }
  if (texts.empty()) return b_.none();
  Text all = b_.any_of(texts);
  return check && b_.is_empty(all) ? b_.none() : b_.json_string(all);
}

void JsonEmitter::define(ConjId conj, Rule rule) {
  const NormalForm& f = *normal_.expand(conj).value();
  std::vector<Expr> ways;
  std::vector<const ObjectShape*> objects;
  for (const Shape& s : f.shapes) {
    if (s.array) ways.push_back(array(*s.array));
    if (s.object) objects.push_back(s.object.get());
  }
  if (!objects.empty()) ways.push_back(ObjectEmitter(*this).run(objects));
  b_.define(rule, b_.choice(ways));
}

}  // namespace deepinfer::grammar
