// How a schema node can fail to hold: one option per keyword that may be broken.
#include <algorithm>

#include "grammar/json_expansion.h"
#include "grammar/json_number_text.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kOneOfNegatedMax = 64;

}  // namespace

bool Expansion::take_negation(Branch& b, Literal literal, Place place) {
  auto options = negation(literal);
  if (!options) return false;
  SchemaId node = literal.is_value() ? normal_.literals(conj_)[0].index() : literal.index();
  return choose(b, {std::move(*options), place, literal.is_value() ? 0 : node, "not"});
}

std::optional<std::vector<Expansion::Option>> Expansion::negation(Literal literal) {
  if (literal.is_value()) return negation_of_value(*normal_.values_[static_cast<size_t>(literal.index())]);
  SchemaId id = literal.index();
  const SchemaNode& node = normal_.model().node(id);
  std::vector<Option> out;
  const uint8_t bits = type_bits(type_);
  if (node.never || !(node.types & bits)) return std::vector<Option>{{}};
  if ((node.types & bits) != bits) out.push_back({{.op = Atom::kTypes, .n = bits & ~node.types}});
  if (node.constant) {
    auto options = negation_of_value(*node.constant);
    if (options) out.insert(out.end(), options->begin(), options->end());
  }
  if (node.choices) {
    Option none_of_them;
    bool possible = true;
    for (uint32_t i = 0; i < node.choices->size(); ++i) {
      const JsonValue& v = (*node.choices)[i];
      if (v.is_array() || v.is_object()) {
        none_of_them.push_back(
            {.op = Atom::kLiteral, .literal = Literal::not_value(normal_.value_index(v)), .step = kStepNot});
      } else if (auto options = negation_of_value(v); !options) {
        possible = false;
      } else if (!options->front().empty()) {
        none_of_them.push_back(options->front().front());
      }
    }
    if (possible) out.push_back(std::move(none_of_them));
  }
  if (type_ == TypeClass::kNumber && node.number) negate_number(*node.number, id, out);
  if (type_ == TypeClass::kString && node.string) negate_string(*node.string, id, out);
  if (type_ == TypeClass::kArray && node.array) negate_array(*node.array, id, out);
  if (type_ == TypeClass::kObject && node.object) negate_object(*node.object, id, out);
  if (node.applicators) negate_applicators(*node.applicators, id, out);
  if (out.empty()) return std::nullopt;
  return out;
}

// Nothing if every value of type_ equals `value` (null).
std::optional<std::vector<Expansion::Option>> Expansion::negation_of_value(const JsonValue& value) {
  std::vector<Option> out;
  switch (value.kind()) {
    case JsonKind::kNull:
      if (type_ == TypeClass::kNull) return std::nullopt;
      return std::vector<Option>{{}};
    case JsonKind::kTrue:
    case JsonKind::kFalse:
      if (type_ != TypeClass::kBoolean) return std::vector<Option>{{}};
      return std::vector<Option>{{{.op = Atom::kExclude, .value = &value}}};
    case JsonKind::kNumber:
      if (type_ != TypeClass::kNumber) return std::vector<Option>{{}};
      return std::vector<Option>{{{.op = Atom::kExclude, .value = &value}}};
    case JsonKind::kString:
      if (type_ != TypeClass::kString) return std::vector<Option>{{}};
      return std::vector<Option>{{{.op = Atom::kExclude, .value = &value}}};
    case JsonKind::kArray:
      if (type_ != TypeClass::kArray) return std::vector<Option>{{}};
      if (value.size() > 0) out.push_back({{.op = Atom::kMaxItems, .n = static_cast<int64_t>(value.size()) - 1}});
      out.push_back({{.op = Atom::kMinItems, .n = static_cast<int64_t>(value.size()) + 1}});
      for (uint32_t i = 0; i < value.size(); ++i) {
        out.push_back({{.op = Atom::kMinItems, .n = i + 1},
                       {.op = Atom::kItem, .literal = Literal::not_value(normal_.value_index(value[i])), .n = i}});
      }
      return out;
    case JsonKind::kObject:
      if (type_ != TypeClass::kObject) return std::vector<Option>{{}};
      out.push_back({{.op = Atom::kMinMembers, .n = static_cast<int64_t>(value.size()) + 1}});
      for (uint32_t i = 0; i < value.size(); ++i) {
        const JsonMember& m = value.members()[i];
        out.push_back({{.op = Atom::kForbid, .text = m.name}});
        out.push_back(
            {{.op = Atom::kMember, .literal = Literal::not_value(normal_.value_index(m.value)), .text = m.name}});
      }
      return out;
  }
  return out;
}

void Expansion::negate_number(const NumberKeywords& k, SchemaId id, std::vector<Option>& out) {
  if (k.minimum) out.push_back({{.op = Atom::kHigh, .number = &*k.minimum, .flag = true}});
  if (k.exclusive_minimum) out.push_back({{.op = Atom::kHigh, .number = &*k.exclusive_minimum}});
  if (k.maximum) out.push_back({{.op = Atom::kLow, .number = &*k.maximum, .flag = true}});
  if (k.exclusive_maximum) out.push_back({{.op = Atom::kLow, .number = &*k.exclusive_maximum}});
  if (k.multiple_of && divisor_states(*k.multiple_of) > kDivisorStatesMax) {
    refuse(id, "multipleOf", "the divisor needs too large an automaton; use one with fewer significant digits");
  }
  if (k.multiple_of) out.push_back({{.op = Atom::kNotMultiple, .number = &*k.multiple_of}});
}

void Expansion::negate_string(const StringKeywords& k, SchemaId id, std::vector<Option>& out) {
  if (k.min_length && *k.min_length > 0) out.push_back({{.op = Atom::kMaxLength, .n = *k.min_length - 1}});
  if (k.max_length && *k.max_length < INT64_MAX) out.push_back({{.op = Atom::kMinLength, .n = *k.max_length + 1}});
  if (k.pattern) out.push_back({{.op = Atom::kNotPattern, .text = *k.pattern, .node = id}});
  if (k.format) out.push_back({{.op = Atom::kNotPattern, .text = *k.format, .node = id, .flag = true}});
}

void Expansion::negate_array(const ArrayKeywords& k, SchemaId id, std::vector<Option>& out) {
  if (k.min_items && *k.min_items > 0) out.push_back({{.op = Atom::kMaxItems, .n = *k.min_items - 1}});
  if (k.max_items && *k.max_items < INT64_MAX) out.push_back({{.op = Atom::kMinItems, .n = *k.max_items + 1}});
  auto can_fail = [&](SchemaId sub) { return sub != kNoNode && normal_.of_node(sub) != kAnything; };
  for (uint32_t i = 0; i < k.prefix.size(); ++i) {
    if (!can_fail(k.prefix[i])) continue;
    out.push_back({{.op = Atom::kMinItems, .n = i + 1}, {.op = Atom::kItem, .literal = negative(k.prefix[i]), .n = i}});
  }
  if (can_fail(k.rest)) {
    auto from = static_cast<int64_t>(k.prefix.size());
    if (normal_.of_node(k.rest) == kNothing) {
      out.push_back({{.op = Atom::kMinItems, .n = from + 1}});
    } else {
      out.push_back({{.op = Atom::kSomeItem, .literal = negative(k.rest), .n = from, .node = id}});
    }
  }
  if (k.contains != kNoNode) {
    if (normal_.of_node(k.contains) == kAnything) {
      // Every item counts.
      if (k.min_contains > 0) out.push_back({{.op = Atom::kMaxItems, .n = k.min_contains - 1}});
      if (k.max_contains) out.push_back({{.op = Atom::kMinItems, .n = *k.max_contains + 1}});
    } else if (k.min_contains == 1 && !k.max_contains) {
      out.push_back({{.op = Atom::kEveryItem, .literal = negative(k.contains)}});
    } else {
      refuse(id, "contains", "the negation of minContains and maxContains is not supported");
    }
  }
  if (k.unique) refuse(id, "uniqueItems", "the negation of uniqueItems is not supported");
  if (can_fail(k.unevaluated)) refuse(id, "unevaluatedItems", "the negation of unevaluatedItems is not supported");
}

void Expansion::negate_object(const ObjectKeywords& k, SchemaId id, std::vector<Option>& out) {
  auto can_fail = [&](SchemaId sub) { return sub != kNoNode && normal_.of_node(sub) != kAnything; };
  for (std::string_view name : k.required) out.push_back({{.op = Atom::kForbid, .text = name}});
  for (const NamedNode& p : k.properties) {
    if (can_fail(p.node)) out.push_back({{.op = Atom::kMember, .literal = negative(p.node), .text = p.name}});
  }
  for (const NamedNode& p : k.patterns) {
    normal_.pattern_text(p.name, id, "patternProperties");
    if (can_fail(p.node)) out.push_back({{.op = Atom::kSome, .literal = negative(p.node), .text = p.name, .node = id}});
  }
  if (can_fail(k.additional)) {
    out.push_back({{.op = Atom::kSome, .literal = negative(k.additional), .scope = normal_.scope_of(id), .node = id}});
  }
  if (can_fail(k.names)) out.push_back({{.op = Atom::kSomeName, .literal = negative(k.names), .node = id}});
  if (k.min_properties && *k.min_properties > 0) out.push_back({{.op = Atom::kMaxMembers, .n = *k.min_properties - 1}});
  if (k.max_properties && *k.max_properties < INT64_MAX)
    out.push_back({{.op = Atom::kMinMembers, .n = *k.max_properties + 1}});
  for (const NameList& d : k.dependent_required) {
    for (std::string_view name : d.names) {
      if (name != d.name) out.push_back({{.op = Atom::kRequire, .text = d.name}, {.op = Atom::kForbid, .text = name}});
    }
  }
  for (const NamedNode& d : k.dependent_schemas) {
    out.push_back({{.op = Atom::kRequire, .text = d.name},
                   {.op = Atom::kLiteral, .literal = negative(d.node), .step = kStepNot}});
  }
  if (can_fail(k.unevaluated))
    refuse(id, "unevaluatedProperties", "the negation of unevaluatedProperties is not supported");
}

void Expansion::negate_applicators(const Applicators& a, SchemaId id, std::vector<Option>& out) {
  auto literal = [&](SchemaId sub, bool negated, uint32_t index) {
    return Atom{.op = Atom::kLiteral, .literal = Literal::of_node(sub, negated), .n = index, .step = kStepNot};
  };
  if (a.ref != kNoNode) out.push_back({literal(a.ref, true, 0)});
  for (SchemaId sub : a.all_of) out.push_back({literal(sub, true, 0)});
  if (!a.any_of.empty()) {
    Option none;
    for (uint32_t i = 0; i < a.any_of.size(); ++i) none.push_back(literal(a.any_of[i], true, i));
    out.push_back(std::move(none));
  }
  if (!a.one_of.empty()) {
    if (a.one_of.size() > kOneOfNegatedMax)
      refuse(id, "oneOf", "the negation of so many alternatives is not supported", Code::kResourceExhausted);
    Option none;
    for (uint32_t i = 0; i < a.one_of.size(); ++i) none.push_back(literal(a.one_of[i], true, i));
    out.push_back(std::move(none));
    for (uint32_t i = 0; i < a.one_of.size() && normal_.status_.ok(); ++i) {
      for (uint32_t k = i + 1; k < a.one_of.size(); ++k) {
        if (!normal_.disjoint(a.one_of[i], a.one_of[k], type_))
          out.push_back({literal(a.one_of[i], false, i), literal(a.one_of[k], false, k)});
      }
    }
  }
  if (a.negated != kNoNode) out.push_back({literal(a.negated, false, 0)});
  if (a.condition != kNoNode) {
    if (a.consequence != kNoNode) out.push_back({literal(a.condition, false, 0), literal(a.consequence, true, 1)});
    if (a.alternative != kNoNode) out.push_back({literal(a.condition, true, 0), literal(a.alternative, true, 1)});
  }
}

}  // namespace deepinfer::grammar
