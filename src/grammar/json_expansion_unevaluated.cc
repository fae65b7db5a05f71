// unevaluatedProperties and unevaluatedItems. Which parts of a schema hold decides what counts as evaluated, so a
// branch settles for every alternative whether it holds; then the rest is a plain rule about further members or items.
#include <algorithm>
#include <set>

#include "grammar/json_expansion.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kAnyOfMax = 6;    // alternatives that are settled one by one
constexpr size_t kStepBytes = 3;   // of one step in a place

bool asks(const SchemaModel& model, const SchemaNode& node, TypeClass type) {
  SchemaId sub = kNoNode;
  if (type == TypeClass::kObject && node.object) sub = node.object->unevaluated;
  if (type == TypeClass::kArray && node.array) sub = node.array->unevaluated;
  return sub != kNoNode && !model.node(sub).trivial();
}

}  // namespace

bool Expansion::must_track() const {
  const SchemaModel& model = normal_.model();
  if (!model.uses_unevaluated() || (type_ != TypeClass::kObject && type_ != TypeClass::kArray)) return false;
  std::vector<SchemaId> stack;
  std::set<SchemaId> seen;
  auto push = [&](SchemaId id) {
    if (id != kNoNode && seen.insert(id).second) stack.push_back(id);
  };
  for (Literal l : normal_.literals(conj_)) {
    if (!l.is_value()) push(l.index());
  }
  while (!stack.empty()) {
    const SchemaNode& n = model.node(stack.back());
    stack.pop_back();
    if (asks(model, n, type_)) return true;
    if (n.object) {
      for (const NamedNode& d : n.object->dependent_schemas) push(d.node);
    }
    const Applicators* a = n.applicators.get();
    if (!a) continue;
    for (SchemaId sub : {a->ref, a->negated, a->condition, a->consequence, a->alternative}) push(sub);
    for (const auto* list : {&a->all_of, &a->any_of, &a->one_of}) {
      for (SchemaId sub : *list) push(sub);
    }
  }
  return false;
}

// anyOf as every combination of alternatives that hold and that do not.
bool Expansion::choose_any_of_exactly(Branch& b, SchemaId id, Place place) {
  const Applicators& a = *normal_.model().node(id).applicators;
  std::vector<std::pair<SchemaId, uint32_t>> live;
  for (uint32_t i = 0; i < a.any_of.size(); ++i) {
    if (needs_work(normal_.model().node(a.any_of[i]))) live.emplace_back(a.any_of[i], i);
  }
  if (live.size() > kAnyOfMax) {
    refuse(id, "anyOf", "more than 6 alternatives beside unevaluatedProperties or unevaluatedItems are not supported");
    return false;
  }
  Choice choice{{}, place, id, "anyOf"};
  for (uint32_t set = 1; set < 1u << live.size(); ++set) {
    Option option;
    for (size_t i = 0; i < live.size(); ++i) {
      const bool holds = set >> i & 1;
      option.push_back({.op = Atom::kLiteral,
                        .literal = Literal::of_node(live[i].first, !holds),
                        .n = live[i].second,
                        .step = holds ? kStepAnyOf : kStepNot});
    }
    choice.options.push_back(std::move(option));
  }
  return choose(b, std::move(choice));
}

bool Expansion::apply_unevaluated(Branch& b) {
  for (const auto& [id, place] : std::vector<std::pair<SchemaId, Place>>(b.applied)) {
    if (asks(normal_.model(), normal_.model().node(id), type_) && !apply_unevaluated(b, id, places_[place]))
      return false;
  }
  return true;
}

bool Expansion::apply_unevaluated(Branch& b, SchemaId id, std::string_view place) {
  // The nodes that hold at or below this one, without those that only a negation speaks of.
  std::vector<const SchemaNode*> below;
  for (const auto& [other, where] : b.applied) {
    std::string_view key = places_[where];
    if (!key.starts_with(place)) continue;
    bool negated = false;
    for (size_t i = place.size(); i < key.size(); i += kStepBytes) negated = negated || key[i] == kStepNot;
    if (!negated) below.push_back(&normal_.model().node(other));
  }
  const SchemaNode& self = normal_.model().node(id);
  if (type_ == TypeClass::kObject) {
    auto scope = std::make_unique<NameScope>();
    for (const SchemaNode* n : below) {
      if (!n->object) continue;
      if (n->object->additional != kNoNode || (n != &self && n->object->unevaluated != kNoNode)) return true;
      for (const NamedNode& p : n->object->properties) scope->names.push_back(p.name);
      for (const NamedNode& p : n->object->patterns) scope->patterns.push_back(p.name);
    }
    std::sort(scope->names.begin(), scope->names.end());
    scope->names.erase(std::unique(scope->names.begin(), scope->names.end()), scope->names.end());
    normal_.more_scopes_.push_back(std::move(scope));
    b.shape.object->rules.push_back(
        {std::nullopt, normal_.more_scopes_.back().get(), normal_.of_node(self.object->unevaluated)});
    return true;
  }
  size_t from = 0;
  for (const SchemaNode* n : below) {
    if (!n->array) continue;
    if (n->array->rest != kNoNode || (n != &self && n->array->unevaluated != kNoNode)) return true;
    if (n->array->contains != kNoNode) {
      refuse(id, "unevaluatedItems", "is not supported beside contains");
      return false;
    }
    from = std::max(from, n->array->prefix.size());
  }
  ArrayShape& a = *b.shape.array;
  const Literal item = positive(self.array->unevaluated);
  while (a.prefix.size() < from) a.prefix.push_back(a.rest);
  for (size_t i = from; i < a.prefix.size(); ++i) a.prefix[i] = normal_.conj_and(a.prefix[i], item);
  a.rest = normal_.conj_and(a.rest, item);
  return true;
}

}  // namespace deepinfer::grammar
