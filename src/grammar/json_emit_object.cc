// Objects: named members in order, each optional or not, then others; alternatives that agree in their names share states.
#include <algorithm>

#include "grammar/json_emit.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kStatesMax = 50'000;       // of one object's counted or merged members
constexpr size_t kNameClassesMax = 1'000;   // combinations of patterns that a further name can match
constexpr size_t kAnyOrderMax = 64;

uint32_t clipped(int64_t n) { return n >= kUnbounded ? kUnbounded : static_cast<uint32_t>(n); }

}  // namespace

Expr ObjectEmitter::run(const std::vector<const ObjectShape*>& shapes) {
  std::vector<Alternative> all;
  for (const ObjectShape* s : shapes) all.push_back(alternative(*s));
  std::vector<Expr> ways;
  std::vector<bool> done(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (done[i]) continue;
    if (!normal_.status().ok() || !b_.ok()) return b_.none();
    if (e_.options_.any_order) {
      ways.push_back(any_order(all[i]));
      continue;
    }
    suffixes_.clear();
    suffix_ids_.clear();
    memo_.clear();
    straight_.clear();
    suffixes_.push_back({});
    std::vector<uint32_t> group{suffix_of(all[i])};
    for (size_t k = i + 1; k < all.size(); ++k) {
      if (done[k] || !mergeable(all[i], all[k])) continue;
      done[k] = true;
      group.push_back(suffix_of(all[k]));
    }
    std::sort(group.begin(), group.end());
    group.erase(std::unique(group.begin(), group.end()), group.end());
    ways.push_back(members(all[i], 0, std::move(group), 0));
  }
  return e_.parts_.object(b_.choice(ways));
}

bool ObjectEmitter::mergeable(const Alternative& a, const Alternative& b) {
  if (a.has_witness || b.has_witness || a.free != b.free || a.free_required != b.free_required || a.others != b.others || a.min != b.min || a.max != b.max) return false;
  return std::equal(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end(), [](const Slot& x, const Slot& y) { return x.name == y.name; });
}

ObjectEmitter::Alternative ObjectEmitter::alternative(const ObjectShape& shape) {
  Alternative a;
  a.min = shape.min;
  a.max = shape.max;
  for (const ObjectShape::Member& m : shape.members) {
    const bool unplaced = m.order_class == kUnplaced;
    if (unplaced && m.presence == Presence::kForbidden) continue;
    if (unplaced && shape.some.empty() && a.free.size() < kAnyOrderMax) {
      a.free.push_back(e_.parts_.member(e_.parts_.name(m.name), e_.value(m.value)));
      a.free_required.push_back(m.presence == Presence::kRequired);
    } else {
      a.slots.push_back({m.name, m.value, m.presence});
    }
  }
  a.others = other_members(shape, nullptr);
  if (shape.some.size() > 1 || (!shape.some.empty() && (a.min > 0 || a.max))) {
    e_.refuse(shape.some[0].node, "not", "this combination of negated rules about further members is not supported");
  } else if (!shape.some.empty()) {
    a.has_witness = true;
    a.witness = other_members(shape, &shape.some[0]);
  }
  return a;
}

// A member that is none of the shape's named ones; with `some`, one that it speaks of.
Expr ObjectEmitter::other_members(const ObjectShape& shape, const ObjectShape::Some* some) {
  std::vector<ObjectShape::Rule> rules = shape.rules;
  if (!some && std::any_of(rules.begin(), rules.end(), [](const ObjectShape::Rule& r) {
        return !r.pattern && r.value == kNothing && r.scope->patterns.empty();
      })) {
    return b_.none();  // a closed object: the names of the scope are members here
  }
  if (some && !some->name) rules.push_back(some->rule);
  // Every pattern and every set of names that a rule excludes is a question; each way to answer all of them is a class of names.
  std::vector<std::string_view> patterns;
  std::vector<std::string> extra;
  std::vector<std::string> taken;
  for (const ObjectShape::Member& m : shape.members) taken.emplace_back(m.name);
  std::sort(taken.begin(), taken.end());
  auto ask = [&](std::string_view p) {
    if (std::find(patterns.begin(), patterns.end(), p) == patterns.end()) patterns.push_back(p);
  };
  for (const ObjectShape::Rule& r : rules) {
    if (r.pattern) {
      ask(*r.pattern);
      continue;
    }
    for (std::string_view p : r.scope->patterns) ask(p);
    for (std::string_view n : r.scope->names) {
      if (!std::binary_search(taken.begin(), taken.end(), std::string(n))) extra.emplace_back(n);
    }
  }
  std::sort(extra.begin(), extra.end());
  extra.erase(std::unique(extra.begin(), extra.end()), extra.end());
  std::vector<Text> base;
  std::vector<std::string> not_free = taken;
  not_free.insert(not_free.end(), extra.begin(), extra.end());
  if (!not_free.empty()) base.push_back(b_.complement(b_.one_of(not_free)));
  std::vector<Literal> name_rules = shape.names;
  if (some && some->name) name_rules.push_back(*some->name);
  ConjId names = normal_.of_literals(name_rules);
  if (names != kAnything) {
    std::vector<Text> allowed;
    auto form = normal_.expand(names);
    if (!form.ok()) return b_.none();
    for (const Shape& s : form.value()->shapes) {
      if (s.type == TypeClass::kString) allowed.push_back(normal_.string_text(s.string));
    }
    std::vector<std::string> listed;
    for (const JsonValue* v : form.value()->values) {
      if (v->is_string()) listed.emplace_back(v->text());
    }
    if (!listed.empty()) allowed.push_back(b_.one_of(listed));
    base.push_back(b_.any_of(allowed));
  }
  std::vector<Expr> ways;
  auto covers = [&](const ObjectShape::Rule& r, const std::vector<bool>& answers) {
    auto yes = [&](std::string_view p) { return answers[static_cast<size_t>(std::find(patterns.begin(), patterns.end(), p) - patterns.begin())]; };
    if (r.pattern) return static_cast<bool>(yes(*r.pattern));
    return std::none_of(r.scope->patterns.begin(), r.scope->patterns.end(), yes);
  };
  size_t classes = 0;
  std::vector<bool> answers;
  auto visit = [&](auto& self, std::vector<Text> parts, bool checked) -> void {
    if (++classes > kNameClassesMax) {
      e_.refuse(0, "patternProperties", "the patterns overlap in too many ways");
      return;
    }
    if (!normal_.status().ok() || !b_.ok()) return;
    if (answers.size() < patterns.size()) {
      Text p = normal_.pattern_text(patterns[answers.size()], 0, "patternProperties");
      std::vector<Text> with = parts, without = std::move(parts);
      with.push_back(p);
      answers.push_back(true);
      if (!b_.is_empty(b_.all_of(with))) self(self, std::move(with), true);
      answers.back() = false;
      without.push_back(b_.complement(p));
      self(self, std::move(without), false);
      answers.pop_back();
      return;
    }
    ConjId value = kAnything;
    for (const ObjectShape::Rule& r : rules) {
      if (covers(r, answers)) value = normal_.conj_and(value, r.value);
    }
    if (some && !some->name && !covers(some->rule, answers)) return;
    if (value == kNothing) return;
    Text text = parts.empty() ? b_.any_text() : b_.all_of(parts);
    if (!checked && parts.size() > (not_free.empty() ? 0u : 1u) && b_.is_empty(text)) return;
    ways.push_back(e_.parts_.member(b_.json_string(text), e_.value(value)));
  };
  visit(visit, base, false);
  // Names that a rule excludes one by one, though they are no members of the shape.
  for (const std::string& n : extra) {
    bool allowed = true;
    for (Literal l : name_rules) allowed = allowed && normal_.holds(normal_.of_literals({l}), JsonValue::of_text(JsonKind::kString, n));
    if (!allowed || (some && !some->name && !normal_.rule_covers(some->rule, n))) continue;
    ConjId value = kAnything;
    for (const ObjectShape::Rule& r : rules) {
      if (normal_.rule_covers(r, n)) value = normal_.conj_and(value, r.value);
    }
    if (value != kNothing) ways.push_back(e_.parts_.member(b_.json_string(b_.text(n)), e_.value(value)));
  }
  return b_.choice(ways);
}

Expr ObjectEmitter::any_order(const Alternative& a) {
  std::vector<Expr> items = a.free;
  std::vector<bool> required = a.free_required;
  for (const Slot& s : a.slots) {
    if (s.presence == Presence::kForbidden) continue;
    items.push_back(e_.parts_.member(e_.parts_.name(s.name), e_.value(s.value)));
    required.push_back(s.presence == Presence::kRequired);
  }
  if (items.size() > kAnyOrderMax || a.has_witness) {
    e_.refuse(0, "properties", "members in any order are supported for at most 64 named members and without negated rules about others");
    return b_.none();
  }
  return b_.any_order(items, required, e_.parts_.comma(), a.others, clipped(a.min), a.max ? clipped(*a.max) : kUnbounded);
}

uint32_t ObjectEmitter::suffix_of(const Alternative& a) {
  uint32_t next = 0;
  for (size_t i = a.slots.size(); i-- > 0;) {
    Suffix s{a.slots[i].value, a.slots[i].presence, next};
    auto [it, fresh] = suffix_ids_.try_emplace(s, static_cast<uint32_t>(suffixes_.size()));
    if (fresh) suffixes_.push_back(s);
    next = it->second;
  }
  return next;
}

Expr ObjectEmitter::slot(const Slot& s, bool first) {
  Expr member = e_.parts_.member(e_.parts_.name(s.name), e_.value(s.value));
  return first ? member : b_.sequence({e_.parts_.comma(), member});
}

Expr ObjectEmitter::rest(const Alternative& a, int64_t count) {
  Expr comma = e_.parts_.comma();
  Expr more = b_.sequence({comma, a.others});
  if (a.has_witness) {
    Expr any = b_.repeat(more, 0, kUnbounded);
    Expr after = b_.sequence({any, comma, a.witness, any});
    return count > 0 ? after : b_.choice({b_.sequence({a.witness, any}), b_.sequence({a.others, after})});
  }
  int64_t low = std::max<int64_t>(0, a.min - count);
  std::optional<int64_t> high = a.max ? std::optional(*a.max - count) : std::nullopt;
  if (high && *high < low) return b_.none();
  if (!a.free.empty()) return free_rest(a, low, high, count == 0);
  if (count > 0) return b_.repeat(more, clipped(low), high ? clipped(*high) : kUnbounded);
  if (high && *high == 0) return b_.empty();
  Expr some = b_.sequence({a.others, b_.repeat(more, clipped(std::max<int64_t>(low, 1) - 1), high ? clipped(*high - 1) : kUnbounded)});
  return low == 0 ? b_.optional(some) : some;
}

Expr ObjectEmitter::free_rest(const Alternative& a, int64_t low, std::optional<int64_t> high, bool first) {
  auto some = [&](int64_t least) {
    return b_.any_order(a.free, a.free_required, e_.parts_.comma(), a.others, clipped(least), high ? clipped(*high) : kUnbounded);
  };
  if (first) return some(low);
  Expr written = b_.sequence({e_.parts_.comma(), some(std::max<int64_t>(low, 1))});
  const bool may_be_empty = low == 0 && std::none_of(a.free_required.begin(), a.free_required.end(), [](bool r) { return r; });
  return may_be_empty ? b_.optional(written) : written;
}

Expr ObjectEmitter::members(const Alternative& a, size_t i, std::vector<uint32_t> set, int64_t count) {
  if (set.empty()) return b_.none();
  if (a.max && count > *a.max) return b_.none();
  const bool counted = a.min > 0 || a.max;
  if (set.size() == 1 && !counted) return straight(a, i, set[0], count == 0);
  if (i == a.slots.size()) return rest(a, count);
  auto key = std::make_tuple(i, set, count);
  if (auto it = memo_.find(key); it != memo_.end()) return it->second;
  if (memo_.size() > kStatesMax) {
    e_.refuse(0, counted ? "minProperties" : "anyOf", "this object has too many combinations of members and counts");
    return b_.none();
  }
  // Ways to go on by the value that the member must have, and without the member.
  std::map<ConjId, std::vector<uint32_t>> present;
  std::vector<uint32_t> absent;
  for (uint32_t id : set) {
    const Suffix& s = suffixes_[id];
    if (s.presence != Presence::kForbidden) present[s.value].push_back(s.next);
    if (s.presence != Presence::kRequired) absent.push_back(s.next);
  }
  auto distinct = [](std::vector<uint32_t>& v) {
    std::sort(v.begin(), v.end());
    v.erase(std::unique(v.begin(), v.end()), v.end());
  };
  const int64_t cap = a.max ? *a.max + 1 : std::max<int64_t>(1, a.min);
  std::vector<Expr> ways;
  for (auto& [value, next] : present) {
    distinct(next);
    Expr tail = members(a, i + 1, next, std::min(count + 1, cap));
    ways.push_back(b_.sequence({slot({a.slots[i].name, value, Presence::kRequired}, count == 0), tail}));
  }
  distinct(absent);
  ways.push_back(members(a, i + 1, std::move(absent), count));
  Expr out = b_.choice(ways);
  memo_[std::move(key)] = out;
  return out;
}

// One alternative and no counts: a chain. What follows the first written member is shared by all ways to start.
Expr ObjectEmitter::straight(const Alternative& a, size_t i, uint32_t suffix, bool first) {
  std::vector<uint32_t> chain;
  uint32_t id = suffix;
  for (size_t k = i; k < a.slots.size(); ++k, id = suffixes_[id].next) chain.push_back(id);
  std::vector<Expr> tails(chain.size() + 1);
  tails.back() = rest(a, 1);
  for (size_t k = chain.size(); k-- > 0;) {
    auto [it, fresh] = straight_.try_emplace(chain[k], tails[k + 1]);
    const Suffix& s = suffixes_[chain[k]];
    if (fresh && s.presence != Presence::kForbidden) {
      Expr here = slot({a.slots[i + k].name, s.value, s.presence}, false);
      it->second = b_.sequence({s.presence == Presence::kRequired ? here : b_.optional(here), tails[k + 1]});
    }
    tails[k] = straight_.at(chain[k]);
  }
  if (!first) return tails[0];
  std::vector<Expr> ways;
  for (size_t k = 0; k < chain.size(); ++k) {
    const Suffix& s = suffixes_[chain[k]];
    if (s.presence == Presence::kForbidden) continue;
    ways.push_back(b_.sequence({slot({a.slots[i + k].name, s.value, s.presence}, true), tails[k + 1]}));
    if (s.presence == Presence::kRequired) return b_.choice(ways);
  }
  ways.push_back(rest(a, 0));
  return b_.choice(ways);
}

}  // namespace deepinfer::grammar
