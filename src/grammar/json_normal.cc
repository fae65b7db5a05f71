#include "grammar/json_normal.h"

#include <algorithm>

#include "grammar/json_expansion.h"
#include "grammar/json_format.h"
#include "grammar/json_number_text.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {

uint8_t type_bits(TypeClass type) {
  static constexpr uint8_t kBits[] = {kNull, kBoolean, kInteger | kFraction, kString, kArray, kObject};
  return kBits[static_cast<int>(type)];
}

Shape::Shape(TypeClass t) : type(t) {
  if (t == TypeClass::kArray) array = std::make_unique<ArrayShape>();
  if (t == TypeClass::kObject) object = std::make_unique<ObjectShape>();
}

Shape::Shape(const Shape& o)
    : type(o.type), can_be_true(o.can_be_true), can_be_false(o.can_be_false), number(o.number), string(o.string) {
  if (o.array) array = std::make_unique<ArrayShape>(*o.array);
  if (o.object) object = std::make_unique<ObjectShape>(*o.object);
}

Normaliser::Normaliser(std::shared_ptr<const SchemaModel> model, GrammarBuilder& builder, const NormalLimits& limits)
    : model_(model), builder_(builder), limits_(limits), validator_(model, builder.budget().limits()) {
  conjunctions_.resize(2);
  conj_of_[{}] = kAnything;
  single_.assign(model_->size() * 4, -1);
}

Status Normaliser::refusal(SchemaId node, std::string_view keyword, std::string_view why, Code code) const {
  std::string path = model_->path(node);
  append_pointer(keyword, path);
  constexpr size_t kLong = 300;
  if (path.size() > kLong) path.replace(kLong / 2, path.size() - kLong, "...");
  return make_error(code, "JSON Schema keyword \"{}\" at {}: {}", keyword, path, why);
}

// A node that only refers to another one is that one.
SchemaId Normaliser::canonical(SchemaId id) const {
  for (;;) {
    const SchemaNode& n = model_->node(id);
    const Applicators* a = n.applicators.get();
    if (!a || a->ref == kNoNode || n.types != kAllTypes || n.constant || n.choices || n.number || n.string || n.array ||
        n.object)
      return id;
    if (!a->all_of.empty() || !a->any_of.empty() || !a->one_of.empty() || a->negated != kNoNode ||
        a->condition != kNoNode)
      return id;
    id = a->ref;
  }
}

ConjId Normaliser::conj_and(ConjId conj, Literal literal) {
  if (conj == kNothing) return kNothing;
  if (!literal.is_value()) {
    SchemaId id = canonical(literal.index());
    const SchemaNode& node = model_->node(id);
    literal = Literal::of_node(id, literal.negated());
    if (node.trivial()) return literal.negated() ? kNothing : conj;
    if (node.never) return literal.negated() ? conj : kNothing;
    if (conj == kAnything) {
      ConjId& single = single_[static_cast<size_t>(literal.code)];
      if (single < 0) {
        single = static_cast<ConjId>(conjunctions_.size());
        conjunctions_.emplace_back().literals = {literal};
      }
      return single;
    }
  }
  const std::vector<Literal>& have = literals(conj);
  if (std::find(have.begin(), have.end(), literal) != have.end()) return conj;
  if (std::find(have.begin(), have.end(), Literal{literal.code ^ 1}) != have.end() && !literal.is_value())
    return kNothing;
  // The first literal leads (its members are written first); the others are sorted, so that their order makes no new
  // conjunctions.
  std::vector<Literal> key;
  key.reserve(have.size() + 1);
  key = have;
  key.insert(key.empty() ? key.end() : std::lower_bound(key.begin() + 1, key.end(), literal), literal);
  auto [it, fresh] = conj_of_.try_emplace(std::move(key), static_cast<ConjId>(conjunctions_.size()));
  if (fresh) {
    conjunctions_.emplace_back().literals = it->first;
    if (conjunctions_.size() > limits_.conjunctions_max) {
      fail(make_error(Code::kResourceExhausted,
                      "the JSON Schema combines its subschemas in more than {} ways; simplify its allOf, oneOf and not",
                      limits_.conjunctions_max));
    }
  }
  return it->second;
}

ConjId Normaliser::conj_and(ConjId a, ConjId b) {
  if (b == kNothing) return kNothing;
  if (a == kAnything) return b;
  // A copy: new conjunctions must not disturb the loop.
  for (Literal literal : std::vector<Literal>(literals(b))) a = conj_and(a, literal);
  return a;
}

ConjId Normaliser::of_literals(const std::vector<Literal>& literals) {
  ConjId conj = kAnything;
  for (Literal l : literals) conj = conj_and(conj, l);
  return conj;
}

int32_t Normaliser::value_index(const JsonValue& value) {
  auto [it, fresh] = value_index_.try_emplace(&value, static_cast<int32_t>(values_.size()));
  if (fresh) values_.push_back(&value);
  return it->second;
}

const NameScope* Normaliser::scope_of(SchemaId id) {
  std::unique_ptr<NameScope>& scope = scopes_[id];
  if (!scope) {
    scope = std::make_unique<NameScope>();
    const ObjectKeywords& k = *model_->node(id).object;
    for (const NamedNode& p : k.properties) scope->names.push_back(p.name);
    std::sort(scope->names.begin(), scope->names.end());
    for (const NamedNode& p : k.patterns) scope->patterns.push_back(p.name);
  }
  return scope.get();
}

bool Normaliser::holds(ConjId conj, const JsonValue& value) {
  if (conj == kNothing) return false;
  for (Literal l : literals(conj)) {
    bool good = l.is_value() ? !json_equal(*values_[static_cast<size_t>(l.index())], value)
                             : validator_.is_valid(l.index(), value) != l.negated();
    if (!validator_.status().ok()) fail(validator_.status());
    if (!good) return false;
  }
  return true;
}

Result<const NormalForm*> Normaliser::expand(ConjId conj) {
  Conjunction& c = conjunctions_[static_cast<size_t>(conj)];
  if (c.form) return c.form.get();
  c.open = true;
  auto form = std::make_unique<NormalForm>();
  for (int t = 0; t < kTypeClasses && status_.ok() && conj != kNothing; ++t)
    Expansion(*this, conj, static_cast<TypeClass>(t), *form).run();
  c.open = false;
  c.form = std::move(form);
  if (status_.ok()) status_ = builder_.status();
  if (!status_.ok()) return status_;
  return c.form.get();
}

bool Normaliser::surely_empty(ConjId conj) {
  if (conj == kNothing) return true;
  if (conj == kAnything) return false;
  Conjunction& c = conjunctions_[static_cast<size_t>(conj)];
  if (c.empty >= 0) return c.empty;
  constexpr int kDepthMax = 200;
  if (c.open || depth_ > kDepthMax) return false;
  ++depth_;
  auto form = expand(conj);
  bool empty = form.ok() && form.value()->values.empty();
  c.open = true;
  for (size_t i = 0; empty && i < form.value()->shapes.size(); ++i) empty = surely_empty(form.value()->shapes[i]);
  c.open = false;
  --depth_;
  if (form.ok()) c.empty = empty;
  return empty;
}

bool Normaliser::surely_empty(const Shape& s) {
  switch (s.type) {
    case TypeClass::kBoolean:
      return !s.can_be_true && !s.can_be_false;
    case TypeClass::kNumber:
      return builder_.is_empty(number_text(builder_, s.number));
    case TypeClass::kString:
      return !s.string.patterns.empty() && builder_.is_empty(string_text(s.string));
    case TypeClass::kArray:
      for (int64_t i = 0; i < s.array->min; ++i) {
        bool fixed = i < static_cast<int64_t>(s.array->prefix.size());
        if (surely_empty(fixed ? s.array->prefix[static_cast<size_t>(i)] : s.array->rest)) return true;
        if (!fixed) break;
      }
      return false;
    case TypeClass::kObject:
      return std::any_of(s.object->members.begin(), s.object->members.end(), [&](const ObjectShape::Member& m) {
        return m.presence == Presence::kRequired && surely_empty(m.value);
      });
    default:
      return false;
  }
}

namespace {

const JsonValue kNullValue = JsonValue::of_kind(JsonKind::kNull);
const JsonValue kTrueValue = JsonValue::of_kind(JsonKind::kTrue);
const JsonValue kFalseValue = JsonValue::of_kind(JsonKind::kFalse);

}  // namespace

const JsonValue* Normaliser::integer(int64_t n) {
  const std::string& text = integer_texts_.emplace_back(std::to_string(n));
  return &integers_.emplace_back(JsonValue::of_text(JsonKind::kNumber, text));
}

std::optional<std::vector<const JsonValue*>> Normaliser::few_values(ConjId conj, size_t max) {
  if (conj == kAnything) return std::nullopt;
  auto form = expand(conj);
  if (!form.ok()) return std::nullopt;
  std::vector<const JsonValue*> out;
  auto add = [&](const JsonValue* v) {
    if (std::none_of(out.begin(), out.end(), [&](const JsonValue* o) { return json_equal(*o, *v); })) out.push_back(v);
  };
  for (const Shape& s : form.value()->shapes) {
    if (s.type == TypeClass::kNull) {
      add(&kNullValue);
    } else if (s.type == TypeClass::kBoolean) {
      if (s.can_be_true) add(&kTrueValue);
      if (s.can_be_false) add(&kFalseValue);
    } else if (s.type == TypeClass::kNumber && s.number.types == kInteger && s.number.low && s.number.high) {
      // A short range of integers.
      auto low = s.number.low->to_int64_floor(), high = s.number.high->to_int64_floor();
      if (!low || !high) return std::nullopt;
      if (*low <= *high && static_cast<uint64_t>(*high) - static_cast<uint64_t>(*low) > max * 16) return std::nullopt;
      for (int64_t n = *low; n <= *high; ++n) {
        const JsonValue* v = integer(n);
        if (holds(conj, *v)) add(v);
      }
    } else if (!surely_empty(s)) {
      return std::nullopt;
    }
  }
  for (const JsonValue* v : form.value()->values) {
    if (out.size() > max) return std::nullopt;
    add(v);
  }
  if (out.size() > max) return std::nullopt;
  return out;
}

std::optional<std::vector<std::string_view>> Normaliser::few_strings(ConjId conj, size_t max) {
  auto form = expand(conj);
  if (!form.ok()) return std::nullopt;
  for (const Shape& s : form.value()->shapes) {
    if (s.type == TypeClass::kString && !surely_empty(s)) return std::nullopt;
  }
  std::vector<std::string_view> out;
  for (const JsonValue* v : form.value()->values) {
    if (!v->is_string() || std::find(out.begin(), out.end(), v->text()) != out.end()) continue;
    if (out.size() == max) return std::nullopt;
    out.push_back(v->text());
  }
  return out;
}

Text Normaliser::pattern_text(std::string_view source, SchemaId node, std::string_view keyword) {
  auto it = patterns_.find(source);
  if (it != patterns_.end()) return it->second;
  auto text = parse_regex(builder_, source, RegexMode::kSearch);
  if (!text.ok()) {
    fail(refusal(node, keyword, text.status().message(), text.status().code()));
    return builder_.no_text();
  }
  return patterns_[source] = text.value();
}

Text Normaliser::string_text(const StringShape& s) {
  std::vector<Text> parts;
  auto length = [&](int64_t min, std::optional<int64_t> max) {
    constexpr int64_t kMost = kUnbounded - 1;
    return builder_.repeat(builder_.any_char(), static_cast<uint32_t>(std::min(min, kMost)),
                           max && *max < kMost ? static_cast<uint32_t>(*max) : kUnbounded);
  };
  if (s.min > 0 || s.max) parts.push_back(length(s.min, s.max));
  for (const StringShape::Pattern& p : s.patterns) {
    Text text;
    if (p.format) {
      FormatRegex format = format_regex(p.source);
      auto parsed = parse_regex(builder_, format.pattern, RegexMode::kWhole);
      if (!parsed.ok()) fail(refusal(p.node, "format", parsed.status().message(), parsed.status().code()));
      text = parsed.ok() ? parsed.value() : builder_.no_text();
      if (format.max_length >= 0) text = builder_.all_of({text, length(0, format.max_length)});
      if (p.negated && !format.exact) fail(refusal(p.node, "format", "the negation of this format is not supported"));
    } else {
      text = pattern_text(p.source, p.node, "pattern");
    }
    parts.push_back(p.negated ? builder_.complement(text) : text);
  }
  if (!s.excluded.empty()) {
    std::vector<std::string> values(s.excluded.begin(), s.excluded.end());
    parts.push_back(builder_.complement(builder_.one_of(values)));
  }
  return parts.empty() ? builder_.any_text() : parts.size() == 1 ? parts[0] : builder_.all_of(parts);
}

bool Normaliser::rule_covers(const ObjectShape::Rule& rule, std::string_view name) {
  if (rule.pattern) return builder_.contains(pattern_text(*rule.pattern, 0, "patternProperties"), name);
  if (std::binary_search(rule.scope->names.begin(), rule.scope->names.end(), name)) return false;
  return std::none_of(rule.scope->patterns.begin(), rule.scope->patterns.end(), [&](std::string_view p) {
    return builder_.contains(pattern_text(p, 0, "patternProperties"), name);
  });
}

// Whether no value of the type satisfies both nodes; "no" may also mean that it was not found out.
bool Normaliser::disjoint(SchemaId a, SchemaId b, TypeClass type) {
  const uint8_t bits = type_bits(type);
  const SchemaNode &x = model_->node(a), &y = model_->node(b);
  if (x.never || y.never || !(x.types & bits) || !(y.types & bits) || !(x.types & y.types & bits)) return true;
  auto [it, fresh] = disjoint_.try_emplace({std::min(a, b), std::max(a, b), type}, false);
  if (!fresh) return it->second;
  ConjId both = conj_and(of_node(a), Literal::of_node(b, false));
  if (both == kNothing) return it->second = true;
  NormalForm form;
  Conjunction& c = conjunctions_[static_cast<size_t>(both)];
  if (c.open) return false;
  c.open = true;
  Expansion(*this, both, type, form).run();
  c.open = false;
  bool empty = form.values.empty();
  for (const Shape& s : form.shapes) empty = empty && surely_empty(s);
  return disjoint_[{std::min(a, b), std::max(a, b), type}] = empty;
}

}  // namespace deepinfer::grammar
