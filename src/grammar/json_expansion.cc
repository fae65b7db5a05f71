#include "grammar/json_expansion.h"

#include <algorithm>

#include "grammar/json_number_text.h"

namespace deepinfer::grammar {
namespace {

constexpr int kChoicesMax = 500;  // settled one inside another

TypeClass class_of(const JsonValue& v) {
  switch (v.kind()) {
    case JsonKind::kNull: return TypeClass::kNull;
    case JsonKind::kTrue:
    case JsonKind::kFalse: return TypeClass::kBoolean;
    case JsonKind::kNumber: return TypeClass::kNumber;
    case JsonKind::kString: return TypeClass::kString;
    case JsonKind::kArray: return TypeClass::kArray;
    case JsonKind::kObject: return TypeClass::kObject;
  }
  return TypeClass::kNull;
}

void raise(std::optional<int64_t>& max, int64_t n) { max = max ? std::min(*max, n) : n; }

}  // namespace

void Expansion::refuse(SchemaId node, std::string_view keyword, std::string_view why, Code code) {
  normal_.fail(normal_.refusal(node, keyword, why, code));
}

Expansion::Place Expansion::place_below(Place place, uint8_t step, uint32_t index) {
  // Below a few hundred references in a row the order of members is as it comes.
  constexpr size_t kLongest = 768;
  if (places_[place].size() > kLongest) {
    if (track_)
      refuse(0, "$ref",
             "so many references in a row are not supported beside unevaluatedProperties or unevaluatedItems");
    return place;
  }
  std::string key = places_[place];
  key += static_cast<char>(step);
  key += static_cast<char>(index >> 8 & 255);
  key += static_cast<char>(index & 255);
  places_.push_back(std::move(key));
  return static_cast<Place>(places_.size() - 1);
}

void Expansion::run() {
  const std::vector<Literal> literals = normal_.literals(conj_);
  for (Literal l : literals) {
    if (!l.negated() && !needs_work(normal_.model().node(l.index()))) return;
  }
  track_ = must_track();
  Branch b{Shape(type_), {}, {}, {}};
  for (size_t i = 0; i < literals.size(); ++i) {
    places_.push_back({static_cast<char>(i >> 8), static_cast<char>(i)});
    b.todo.push_back({literals[i], static_cast<Place>(i)});
  }
  std::reverse(b.todo.begin(), b.todo.end());
  run(std::move(b));
}

void Expansion::run(Branch b) {
  if (!normal_.status_.ok()) return;
  if (choices_.empty()) {
    ++normal_.work_;
  } else if (++normal_.work_ > normal_.limits_.work_max || ++branches_ > normal_.limits_.alternatives_max * 4 ||
      out_.shapes.size() > normal_.limits_.alternatives_max || depth_ > kChoicesMax) {
    const Choice& why = b.choices.empty() ? choices_.back() : choices_[b.choices[0]];
    refuse(why.node, why.keyword,
           "the alternatives that have to be combined here are too many; make them differ in a required property or "
           "state fewer",
           Code::kResourceExhausted);
    return;
  }
  while (!b.todo.empty()) {
    if (Status s = normal_.builder_.budget().spend(1); !s.ok()) return normal_.fail(s);
    Todo todo = b.todo.back();
    b.todo.pop_back();
    if (!take(b, todo)) return;
  }
  if (b.choices.empty()) return finish(b);
  const Choice& choice = choices_[b.choices.front()];
  b.choices.erase(b.choices.begin());
  for (size_t i = 0; i < choice.options.size(); ++i) {
    bool last = i + 1 == choice.options.size();
    Branch way = last ? std::move(b) : b;
    bool good = true;
    uint32_t n = 0;
    for (const Atom& atom : choice.options[i]) good = good && apply(way, atom, choice.place, n++);
    ++depth_;
    if (good) run(std::move(way));
    --depth_;
  }
}

bool Expansion::choose(Branch& b, Choice choice) {
  if (choice.options.empty()) return false;
  for (const Option& o : choice.options) {
    if (o.empty()) return true;
  }
  if (choice.options.size() == 1) {
    uint32_t n = 0;
    for (const Atom& atom : choice.options[0]) {
      if (!apply(b, atom, choice.place, n++)) return false;
    }
    return true;
  }
  choices_.push_back(std::move(choice));
  b.choices.push_back(static_cast<uint32_t>(choices_.size() - 1));
  return true;
}

bool Expansion::take(Branch& b, Todo todo) {
  return todo.literal.negated() ? take_negation(b, todo.literal, todo.place)
                                : take_node(b, todo.literal.index(), todo.place);
}

void Expansion::take_values(const JsonValue* first, uint32_t n) {
  const std::vector<Literal>& all = normal_.literals(conj_);
  // One node that says nothing beyond a type and its values: no need to validate each of them.
  const SchemaNode* only = all.size() == 1 && !all[0].negated() ? &normal_.model().node(all[0].index()) : nullptr;
  bool plain = only && !only->number && !only->string && !only->array && !only->object && !only->applicators &&
               !(only->constant && only->choices);
  for (uint32_t i = 0; i < n; ++i) {
    const JsonValue& v = first[i];
    if (class_of(v) != type_) continue;
    bool good = plain;
    if (plain && type_ == TypeClass::kNumber && (only->types & type_bits(type_)) != type_bits(type_)) {
      good = only->types & (Decimal::parse(v.text())->is_integer() ? kInteger : kFraction);
    }
    if (good || (!plain && normal_.holds(conj_, v))) out_.values.push_back(&v);
  }
}

bool Expansion::take_node(Branch& b, SchemaId id, Place place) {
  const SchemaNode& node = normal_.model().node(id);
  if (!needs_work(node)) return false;
  if (type_ == TypeClass::kNumber && !(b.shape.number.types &= node.types)) return false;
  if (node.constant || node.choices) {
    // The branch is a list of values now; any of them that satisfies the whole conjunction belongs to the result.
    if (node.constant) {
      take_values(node.constant, 1);
    } else {
      take_values(node.choices->items(), node.choices->size());
    }
    return false;
  }
  if (track_) b.applied.emplace_back(id, place);
  bool good = true;
  switch (type_) {
    case TypeClass::kNumber: good = !node.number || take_number(b, id); break;
    case TypeClass::kString: good = !node.string || take_string(b, id); break;
    case TypeClass::kArray: good = !node.array || take_array(b, id); break;
    case TypeClass::kObject: good = !node.object || take_object(b, id, place); break;
    default: break;
  }
  return good && (!node.applicators || take_applicators(b, id, place));
}

bool Expansion::take_number(Branch& b, SchemaId id) {
  const NumberKeywords& k = *normal_.model().node(id).number;
  auto bound = [&](Atom::Op op, const std::optional<Decimal>& n, bool open) {
    if (n) apply(b, {.op = op, .number = &*n, .flag = open}, 0, 0);
  };
  bound(Atom::kLow, k.minimum, false);
  bound(Atom::kLow, k.exclusive_minimum, true);
  bound(Atom::kHigh, k.maximum, false);
  bound(Atom::kHigh, k.exclusive_maximum, true);
  if (k.multiple_of) {
    if (divisor_states(*k.multiple_of) > kDivisorStatesMax) {
      refuse(id, "multipleOf", "the divisor needs too large an automaton; use one with fewer significant digits");
      return false;
    }
    b.shape.number.multiples.push_back(*k.multiple_of);
  }
  return true;
}

bool Expansion::take_string(Branch& b, SchemaId id) {
  const StringKeywords& k = *normal_.model().node(id).string;
  StringShape& s = b.shape.string;
  if (k.min_length) s.min = std::max(s.min, *k.min_length);
  if (k.max_length) raise(s.max, *k.max_length);
  auto pattern = [&](std::string_view source, bool format) {
    StringShape::Pattern p{source, format, false, id};
    bool known = std::any_of(s.patterns.begin(), s.patterns.end(), [&](const StringShape::Pattern& q) {
      return q.source == source && q.format == format && !q.negated;
    });
    if (!known) s.patterns.push_back(p);
  };
  if (k.pattern) pattern(*k.pattern, false);
  if (k.format) pattern(*k.format, true);
  return !s.max || s.min <= *s.max;
}

bool Expansion::take_array(Branch& b, SchemaId id) {
  const ArrayKeywords& k = *normal_.model().node(id).array;
  ArrayShape& a = *b.shape.array;
  if (k.min_items) a.min = std::max(a.min, *k.min_items);
  if (k.max_items) raise(a.max, *k.max_items);
  while (a.prefix.size() < k.prefix.size()) a.prefix.push_back(a.rest);
  for (size_t i = 0; i < a.prefix.size(); ++i) {
    SchemaId sub = i < k.prefix.size() ? k.prefix[i] : k.rest;
    if (sub != kNoNode) a.prefix[i] = normal_.conj_and(a.prefix[i], positive(sub));
  }
  if (k.rest != kNoNode) a.rest = normal_.conj_and(a.rest, positive(k.rest));
  if (k.contains != kNoNode && (k.min_contains > 0 || k.max_contains)) {
    a.contains.push_back({normal_.of_node(k.contains), 0, k.min_contains, k.max_contains, id});
  }
  if (k.unique) a.unique = id;
  return !a.max || a.min <= *a.max;
}

ObjectShape::Member& Expansion::member(ObjectShape& o, std::string_view name, uint8_t order_class, Place place,
                                       uint32_t index) {
  for (ObjectShape::Member& m : o.members) {
    if (m.name != name) continue;
    auto key = [&](uint8_t c, Place p, uint32_t i) {
      return std::tuple<uint8_t, const std::string&, uint32_t>(c, places_[p], i);
    };
    if (key(order_class, place, index) < key(m.order_class, m.place, m.index))
      m.order_class = order_class, m.place = place, m.index = index;
    return m;
  }
  o.members.push_back({name, kAnything, Presence::kOptional, order_class, place, index});
  return o.members.back();
}

bool Expansion::take_object(Branch& b, SchemaId id, Place place) {
  const ObjectKeywords& k = *normal_.model().node(id).object;
  ObjectShape& o = *b.shape.object;
  o.node = id;
  bool first = o.members.empty();
  if (first) o.members.reserve(k.properties.size());
  for (uint32_t i = 0; i < k.properties.size(); ++i) {
    const NamedNode& p = k.properties[i];
    if (first) {
      o.members.push_back({p.name, normal_.of_node(p.node), Presence::kOptional, kDeclared, place, i});
    } else {
      ObjectShape::Member& m = member(o, p.name, kDeclared, place, i);
      m.value = normal_.conj_and(m.value, positive(p.node));
    }
  }
  for (uint32_t i = 0; i < k.required.size(); ++i) {
    ObjectShape::Member& m = member(o, k.required[i], kOnlyRequired, place, i);
    if (m.presence == Presence::kForbidden) return false;
    m.presence = Presence::kRequired;
  }
  for (const NamedNode& p : k.patterns) {
    normal_.pattern_text(p.name, id, "patternProperties");
    ConjId value = normal_.of_node(p.node);
    if (value != kAnything) o.rules.push_back({p.name, nullptr, value});
  }
  if (k.additional != kNoNode) {
    ConjId value = normal_.of_node(k.additional);
    if (value != kAnything) o.rules.push_back({std::nullopt, normal_.scope_of(id), value});
  }
  if (k.names != kNoNode && normal_.of_node(k.names) != kAnything) o.names.push_back(positive(k.names));
  if (k.min_properties) o.min = std::max(o.min, *k.min_properties);
  if (k.max_properties) raise(o.max, *k.max_properties);
  for (const NameList& d : k.dependent_required) {
    Option with{{.op = Atom::kRequire, .text = d.name}};
    for (std::string_view name : d.names) with.push_back({.op = Atom::kRequire, .text = name});
    if (!choose(b, {{{{.op = Atom::kForbid, .text = d.name}}, std::move(with)}, place, id, "dependentRequired"}))
      return false;
  }
  for (uint32_t i = 0; i < k.dependent_schemas.size(); ++i) {
    const NamedNode& d = k.dependent_schemas[i];
    Option with{{.op = Atom::kRequire, .text = d.name},
                {.op = Atom::kLiteral, .literal = positive(d.node), .n = i, .step = kStepDependent}};
    if (!choose(b, {{{{.op = Atom::kForbid, .text = d.name}}, std::move(with)}, place, id, "dependentSchemas"}))
      return false;
  }
  return !o.max || o.min <= *o.max;
}

bool Expansion::take_applicators(Branch& b, SchemaId id, Place place) {
  const Applicators& a = *normal_.model().node(id).applicators;
  auto push = [&](SchemaId sub, bool negated, uint8_t step, uint32_t index) {
    b.todo.push_back({Literal::of_node(sub, negated), place_below(place, step, index)});
  };
  if (a.ref != kNoNode) push(a.ref, false, kStepRef, 0);
  for (uint32_t i = 0; i < a.all_of.size(); ++i) push(a.all_of[i], false, kStepAllOf, i);
  if (a.negated != kNoNode) push(a.negated, true, kStepNot, 0);
  if (track_ && !a.any_of.empty()) {
    if (!choose_any_of_exactly(b, id, place)) return false;
  } else if (!a.any_of.empty()) {
    Choice choice{{}, place, id, "anyOf"};
    for (uint32_t i = 0; i < a.any_of.size(); ++i) {
      const SchemaNode& sub = normal_.model().node(a.any_of[i]);
      if (!needs_work(sub)) continue;
      if (sub.trivial()) choice.options.push_back({});
      choice.options.push_back({{.op = Atom::kLiteral, .literal = positive(a.any_of[i]), .n = i, .step = kStepAnyOf}});
    }
    if (!choose(b, std::move(choice))) return false;
  }
  if (!a.one_of.empty() && !take_one_of(b, id, place)) return false;
  if (a.condition != kNoNode && (track_ || a.consequence != kNoNode || a.alternative != kNoNode)) {
    Option yes{{.op = Atom::kLiteral, .literal = positive(a.condition), .step = kStepIf}};
    Option no{{.op = Atom::kLiteral, .literal = negative(a.condition), .step = kStepIf}};
    if (a.consequence != kNoNode)
      yes.push_back({.op = Atom::kLiteral, .literal = positive(a.consequence), .step = kStepThen});
    if (a.alternative != kNoNode)
      no.push_back({.op = Atom::kLiteral, .literal = positive(a.alternative), .step = kStepElse});
    if (!choose(b, {{std::move(yes), std::move(no)}, place, id, "if"})) return false;
  }
  return true;
}

bool Expansion::take_one_of(Branch& b, SchemaId id, Place place) {
  const Applicators& a = *normal_.model().node(id).applicators;
  Choice choice{{}, place, id, "oneOf"};
  std::vector<SchemaId> live;
  for (SchemaId sub : a.one_of) {
    if (needs_work(normal_.model().node(sub))) live.push_back(sub);
  }
  for (uint32_t i = 0; i < live.size(); ++i) {
    Option option{{.op = Atom::kLiteral, .literal = positive(live[i]), .n = i, .step = kStepOneOf}};
    for (uint32_t k = 0; k < live.size(); ++k) {
      if (k == i || normal_.disjoint(live[i], live[k], type_)) continue;
      option.push_back({.op = Atom::kLiteral, .literal = negative(live[k]), .n = k, .step = kStepNot});
    }
    if (!normal_.status_.ok()) return false;
    choice.options.push_back(std::move(option));
  }
  return choose(b, std::move(choice));
}

bool Expansion::apply(Branch& b, const Atom& atom, Place place, uint32_t index) {
  Shape& s = b.shape;
  switch (atom.op) {
    case Atom::kLiteral:
      b.todo.push_back({atom.literal, place_below(place, atom.step, static_cast<uint32_t>(atom.n))});
      return true;
    case Atom::kTypes:
      return (s.number.types &= static_cast<uint8_t>(atom.n)) != 0;
    case Atom::kLow:
    case Atom::kHigh: {
      bool low = atom.op == Atom::kLow;
      std::optional<Decimal>& bound = low ? s.number.low : s.number.high;
      bool& open = low ? s.number.low_open : s.number.high_open;
      int order = bound ? bound->compare(*atom.number) * (low ? 1 : -1) : -1;
      if (order < 0) {
        bound = *atom.number;
        open = atom.flag;
      } else if (order == 0) {
        open = open || atom.flag;
      }
      if (!s.number.low || !s.number.high) return true;
      int gap = s.number.low->compare(*s.number.high);
      return gap < 0 || (gap == 0 && !s.number.low_open && !s.number.high_open);
    }
    case Atom::kNotMultiple:
      s.number.not_multiples.push_back(*atom.number);
      return true;
    case Atom::kMinLength:
      s.string.min = std::max(s.string.min, atom.n);
      return !s.string.max || s.string.min <= *s.string.max;
    case Atom::kMaxLength:
      raise(s.string.max, atom.n);
      return s.string.min <= *s.string.max;
    case Atom::kNotPattern:
      s.string.patterns.push_back({atom.text, atom.flag, true, atom.node});
      return true;
    case Atom::kExclude: {
      const JsonValue& v = *atom.value;
      if (v.is_number()) s.number.excluded.push_back(*Decimal::parse(v.text()));
      if (v.is_string()) s.string.excluded.push_back(v.text());
      if (v.kind() == JsonKind::kTrue) s.can_be_true = false;
      if (v.kind() == JsonKind::kFalse) s.can_be_false = false;
      return v.kind() != JsonKind::kNull && (s.can_be_true || s.can_be_false);
    }
    case Atom::kMinItems:
      s.array->min = std::max(s.array->min, atom.n);
      return !s.array->max || s.array->min <= *s.array->max;
    case Atom::kMaxItems:
      raise(s.array->max, atom.n);
      return s.array->min <= *s.array->max;
    case Atom::kItem: {
      auto i = static_cast<size_t>(atom.n);
      while (s.array->prefix.size() <= i) s.array->prefix.push_back(s.array->rest);
      s.array->prefix[i] = normal_.conj_and(s.array->prefix[i], atom.literal);
      return s.array->prefix[i] != kNothing;
    }
    case Atom::kEveryItem:
      for (ConjId& item : s.array->prefix) item = normal_.conj_and(item, atom.literal);
      s.array->rest = normal_.conj_and(s.array->rest, atom.literal);
      return true;
    case Atom::kSomeItem:
      s.array->contains.push_back({normal_.conj_and(kAnything, atom.literal), atom.n, 1, std::nullopt, atom.node});
      return true;
    default:
      return apply_object(b, atom, place, index);
  }
}

bool Expansion::apply_object(Branch& b, const Atom& atom, Place place, uint32_t index) {
  ObjectShape& o = *b.shape.object;
  switch (atom.op) {
    case Atom::kRequire:
    case Atom::kForbid:
    case Atom::kMember: {
      ObjectShape::Member& m = member(o, atom.text, kUnplaced, place, index);
      Presence want = atom.op == Atom::kForbid ? Presence::kForbidden : Presence::kRequired;
      if (m.presence != Presence::kOptional && m.presence != want) return false;
      m.presence = want;
      if (atom.op == Atom::kMember) {
        ConjId before = m.value;
        m.value = normal_.conj_and(m.value, atom.literal);
        if (m.value == kNothing || (before != kAnything && m.value != before && normal_.surely_empty(m.value)))
          return false;
      }
      return true;
    }
    case Atom::kMinMembers:
      o.min = std::max(o.min, atom.n);
      return !o.max || o.min <= *o.max;
    case Atom::kMaxMembers:
      raise(o.max, atom.n);
      return o.min <= *o.max;
    case Atom::kSome: {
      ObjectShape::Rule rule{std::nullopt, atom.scope, normal_.conj_and(kAnything, atom.literal)};
      if (!atom.scope) rule.pattern = atom.text;
      o.some.push_back({rule, std::nullopt, atom.node});
      return rule.value != kNothing;
    }
    case Atom::kSomeName:
      o.some.push_back({{}, atom.literal, atom.node});
      return true;
    default:
      return false;
  }
}

void Expansion::emit(Shape shape) {
  if (out_.shapes.size() <= normal_.limits_.alternatives_max) out_.shapes.push_back(std::move(shape));
}

void Expansion::finish(Branch& b) {
  Shape& s = b.shape;
  if (track_ && !apply_unevaluated(b)) return;
  if (type_ == TypeClass::kArray && !finish_array(*s.array)) return;
  if (type_ == TypeClass::kObject) {
    if (!finish_object(*s.object)) return;
    return resolve_some(std::move(s), 0);
  }
  emit(std::move(s));
}

bool Expansion::finish_array(ArrayShape& a) {
  if (a.rest == kNothing) raise(a.max, static_cast<int64_t>(a.prefix.size()));
  for (size_t i = 0; i < a.prefix.size(); ++i) {
    if (a.prefix[i] == kNothing) raise(a.max, static_cast<int64_t>(i));
  }
  if (a.max && *a.max < static_cast<int64_t>(a.prefix.size())) a.prefix.resize(static_cast<size_t>(*a.max));
  if (a.max && a.min > *a.max) return false;
  for (size_t i = 0; i < a.prefix.size() && static_cast<int64_t>(i) < a.min; ++i) {
    if (normal_.literals(a.prefix[i]).size() > 1 && normal_.surely_empty(a.prefix[i])) return false;
  }
  return true;
}

bool Expansion::finish_object(ObjectShape& o) {
  int64_t required = 0;
  if (!o.names.empty()) {
    // Few possible names become members by name: so none of them can be written twice.
    constexpr size_t kNamesMax = 64;
    if (auto names = normal_.few_strings(normal_.of_literals(o.names), kNamesMax)) {
      for (uint32_t i = 0; i < names->size(); ++i) member(o, (*names)[i], kUnplaced, 0, i);
    }
  }
  for (ObjectShape::Member& m : o.members) {
    if (m.presence == Presence::kForbidden) continue;
    for (const ObjectShape::Rule& rule : o.rules) {
      if (normal_.rule_covers(rule, m.name)) m.value = normal_.conj_and(m.value, rule.value);
    }
    bool bad = m.value == kNothing;
    for (Literal l : o.names) {
      bad = bad || normal_.validator_.is_valid(l.index(), JsonValue::of_text(JsonKind::kString, m.name)) == l.negated();
    }
    bool must = m.presence == Presence::kRequired;
    if (!bad && must && normal_.literals(m.value).size() > 1) bad = normal_.surely_empty(m.value);
    if (bad && must) return false;
    if (bad) m.presence = Presence::kForbidden;
    required += must;
  }
  return !o.max || (required <= *o.max && o.min <= *o.max);
}

// "Some member breaks a rule": one of the named members does, or (left for the grammar to see to) one of the others.
void Expansion::resolve_some(Shape shape, size_t next) {
  if (next == shape.object->some.size()) {
    sort_members(*shape.object);
    return emit(std::move(shape));
  }
  const ObjectShape::Some some = shape.object->some[next];
  for (size_t i = 0; i < shape.object->members.size(); ++i) {
    const ObjectShape::Member& m = shape.object->members[i];
    if (m.presence == Presence::kForbidden) continue;
    ConjId value = m.value;
    if (some.name) {
      if (normal_.validator_.is_valid(some.name->index(), JsonValue::of_text(JsonKind::kString, m.name)) ==
          some.name->negated())
        continue;
    } else {
      if (!normal_.rule_covers(some.rule, m.name)) continue;
      value = normal_.conj_and(value, some.rule.value);
      if (value == kNothing || normal_.surely_empty(value)) continue;
    }
    Shape way = shape;
    way.object->members[i].value = value;
    way.object->members[i].presence = Presence::kRequired;
    way.object->some.erase(way.object->some.begin() + static_cast<long>(next));
    resolve_some(std::move(way), next);
  }
  resolve_some(std::move(shape), next + 1);
}

void Expansion::sort_members(ObjectShape& o) const {
  auto less = [&](const ObjectShape::Member& a, const ObjectShape::Member& b) {
    if (a.order_class != b.order_class) return a.order_class < b.order_class;
    if (a.place != b.place) return places_[a.place] < places_[b.place];
    return a.index < b.index;
  };
  if (!std::is_sorted(o.members.begin(), o.members.end(), less))
    std::stable_sort(o.members.begin(), o.members.end(), less);
}

}  // namespace deepinfer::grammar
