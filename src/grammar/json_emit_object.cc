// Objects: named members in order, each optional or not, then others; alternatives that agree in their names share
// states.
#include <algorithm>

#include <fmt/format.h>

#include "grammar/json_emit.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kStatesMax = 50'000;       // of one object's counted or merged members
constexpr size_t kSlotsMax = 2'000;         // named members of such an object
constexpr size_t kNameClassesMax = 1'000;   // combinations of patterns that a further name can match
constexpr size_t kFreeMembersMax = 64;
constexpr size_t kWitnessesMax = 3;

uint32_t clipped(int64_t n) { return n >= kUnbounded ? kUnbounded : static_cast<uint32_t>(n); }

}  // namespace

Expr ObjectEmitter::run(const std::vector<const ObjectShape*>& shapes) {
  std::vector<Alternative> all;
  for (const ObjectShape* s : shapes) {
    if (s->some.size() > kWitnessesMax) {
      e_.refuse(s->node, "not", "more than 3 negated rules about further members are not supported in one alternative");
      return b_.none();
    }
    // Every member up to the next required one may come next.
    size_t next = 0, most = 0;
    for (const ObjectShape::Member& m : s->members) {
      next = m.presence == Presence::kRequired ? 0 : next + (m.presence == Presence::kOptional);
      most = std::max(most, next);
    }
    if (const size_t limit = b_.budget().limits().request_items_max; most > limit) {
      e_.refuse(
          s->node, "properties",
          fmt::format("{} members in a row may be left out, more than {} (limit request_items_max)", most, limit));
      return b_.none();
    }
    add_witnesses(*s, alternative(*s), {}, 0, all);
  }
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
  if (a.free != b.free || a.free_required != b.free_required || a.others != b.others || a.min != b.min ||
      a.max != b.max)
    return false;
  return std::equal(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end(),
                    [](const Slot& x, const Slot& y) { return x.name == y.name; });
}

ObjectEmitter::Alternative ObjectEmitter::alternative(const ObjectShape& shape) {
  Alternative a;
  a.node = shape.node;
  a.min = shape.min;
  a.max = shape.max;
  for (const ObjectShape::Member& m : shape.members) {
    const bool unplaced = m.order_class == kUnplaced;
    if (unplaced && m.presence == Presence::kForbidden) continue;
    if (unplaced && a.free.size() + shape.some.size() < kFreeMembersMax) {
      a.free.push_back(e_.parts_.member(e_.parts_.name(m.name), e_.value(m.value)));
      a.free_required.push_back(m.presence == Presence::kRequired);
    } else {
      a.slots.push_back({m.name, m.value, m.presence});
    }
  }
  a.others = other_members(shape, {});
  return a;
}

void ObjectEmitter::add_witnesses(const ObjectShape& shape, Alternative a, std::vector<Witnessed> groups, size_t next,
                                  std::vector<Alternative>& out) {
  if (next < shape.some.size()) {
    const ObjectShape::Some* some = &shape.some[next];
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<Witnessed> joined = groups;
      joined[g].push_back(some);
      add_witnesses(shape, a, std::move(joined), next + 1, out);
    }
    groups.push_back({some});
    return add_witnesses(shape, std::move(a), std::move(groups), next + 1, out);
  }
  for (const Witnessed& g : groups) {
    a.free.push_back(other_members(shape, g));
    a.free_required.push_back(true);
  }
  out.push_back(std::move(a));
}

bool ObjectEmitter::is_closed(const ObjectShape& shape) {
  // The names of such a rule's scope are members of the shape.
  return std::any_of(shape.rules.begin(), shape.rules.end(), [](const ObjectShape::Rule& r) {
    return !r.pattern && r.value == kNothing && r.scope->patterns.empty();
  });
}

ConjId ObjectEmitter::name_rules(const ObjectShape& shape, const Witnessed& some) {
  std::vector<Literal> literals = shape.names;
  for (const ObjectShape::Some* s : some) {
    if (s->name) literals.push_back(*s->name);
  }
  return normal_.of_literals(literals);
}

Text ObjectEmitter::names_text(ConjId names) {
  auto form = normal_.expand(names);
  if (!form.ok()) return b_.no_text();
  std::vector<Text> allowed;
  for (const Shape& s : form.value()->shapes) {
    if (s.type == TypeClass::kString) allowed.push_back(normal_.string_text(s.string));
  }
  std::vector<std::string> listed;
  for (const JsonValue* v : form.value()->values) {
    if (v->is_string()) listed.emplace_back(v->text());
  }
  if (!listed.empty()) allowed.push_back(b_.one_of(listed));
  return b_.any_of(allowed);
}

// A member that is none of the shape's named ones, and of which every one of `some` speaks.
//
// Every pattern, and every name that a rule excludes, is a question about a name; each way to answer all of them is a
// class of names with one value.
Expr ObjectEmitter::other_members(const ObjectShape& shape, const Witnessed& some) {
  if (is_closed(shape)) return b_.none();
  std::vector<ObjectShape::Rule> rules = shape.rules;
  const size_t must_cover = rules.size();  // from here on
  for (const ObjectShape::Some* s : some) {
    if (!s->name) rules.push_back(s->rule);
  }
  std::vector<std::string_view> patterns;
  std::vector<std::string> taken, singles;
  for (const ObjectShape::Member& m : shape.members) taken.emplace_back(m.name);
  std::sort(taken.begin(), taken.end());
  for (const ObjectShape::Rule& r : rules) {
    auto ask = [&](std::string_view p) {
      if (std::find(patterns.begin(), patterns.end(), p) == patterns.end()) patterns.push_back(p);
    };
    if (r.pattern) {
      ask(*r.pattern);
      continue;
    }
    for (std::string_view p : r.scope->patterns) ask(p);
    for (std::string_view n : r.scope->names) {
      if (!std::binary_search(taken.begin(), taken.end(), n)) singles.emplace_back(n);
    }
  }
  std::sort(singles.begin(), singles.end());
  singles.erase(std::unique(singles.begin(), singles.end()), singles.end());

  std::vector<Expr> ways;
  auto add = [&](Text names, const auto& covers) {
    ConjId value = kAnything;
    for (size_t i = 0; i < rules.size(); ++i) {
      const bool covered = covers(rules[i]);
      if (i >= must_cover && !covered) return;
      if (covered) value = normal_.conj_and(value, rules[i].value);
    }
    if (value == kNothing || b_.is_empty(names)) return;
    ways.push_back(e_.parts_.member(b_.json_string(names), e_.value(value)));
  };
  std::vector<std::string> named = taken;
  named.insert(named.end(), singles.begin(), singles.end());
  std::vector<Text> base;
  if (!named.empty()) base.push_back(b_.complement(b_.one_of(named)));
  const ConjId names = name_rules(shape, some);
  if (names == kNothing) return b_.none();
  if (names != kAnything) base.push_back(names_text(names));

  size_t classes = 0;
  std::vector<bool> answers;
  auto visit = [&](auto& self, std::vector<Text> parts) -> void {
    if (++classes > kNameClassesMax)
      e_.refuse(shape.node, "patternProperties", "the patterns overlap in too many ways");
    if (!normal_.status().ok() || !b_.ok()) return;
    if (answers.size() == patterns.size()) {
      return add(b_.all_of(parts), [&](const ObjectShape::Rule& r) {
        auto yes = [&](std::string_view p) -> bool {
          return answers[static_cast<size_t>(std::find(patterns.begin(), patterns.end(), p) - patterns.begin())];
        };
        return r.pattern ? yes(*r.pattern) : std::none_of(r.scope->patterns.begin(), r.scope->patterns.end(), yes);
      });
    }
    Text p = normal_.pattern_text(patterns[answers.size()], shape.node, "patternProperties");
    std::vector<Text> with = parts;
    with.push_back(p);
    answers.push_back(true);
    if (patterns.size() == 1 || !b_.is_empty(b_.all_of(with))) self(self, std::move(with));
    answers.back() = false;
    parts.push_back(b_.complement(p));
    self(self, std::move(parts));
    answers.pop_back();
  };
  visit(visit, base);
  for (const std::string& n : singles) {
    if (!normal_.holds(names, JsonValue::of_text(JsonKind::kString, n))) continue;
    add(b_.text(n), [&](const ObjectShape::Rule& r) { return normal_.rule_covers(r, n); });
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
  if (items.size() > kAnyOrderMax) {
    e_.refuse(a.node, "properties",
              fmt::format("members in any order are supported for at most {} named members", kAnyOrderMax));
    return b_.none();
  }
  return b_.any_order(items, required, e_.parts_.comma(), a.others, clipped(a.min),
                      a.max ? clipped(*a.max) : kUnbounded);
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
  int64_t low = std::max<int64_t>(0, a.min - count);
  std::optional<int64_t> high = a.max ? std::optional(*a.max - count) : std::nullopt;
  if (high && *high < low) return b_.none();
  if (!a.free.empty()) return free_rest(a, low, high, count == 0);
  Expr more = b_.sequence({e_.parts_.comma(), a.others});
  if (count > 0) return b_.repeat(more, clipped(low), high ? clipped(*high) : kUnbounded);
  if (high && *high == 0) return b_.empty();
  Expr some = b_.sequence(
      {a.others, b_.repeat(more, clipped(std::max<int64_t>(low, 1) - 1), high ? clipped(*high - 1) : kUnbounded)});
  return low == 0 ? b_.optional(some) : some;
}

Expr ObjectEmitter::free_rest(const Alternative& a, int64_t low, std::optional<int64_t> high, bool first) {
  auto some = [&](int64_t least) {
    return b_.any_order(a.free, a.free_required, e_.parts_.comma(), a.others, clipped(least),
                        high ? clipped(*high) : kUnbounded);
  };
  if (first) return some(low);
  Expr written = b_.sequence({e_.parts_.comma(), some(std::max<int64_t>(low, 1))});
  const bool may_be_empty =
      low == 0 && std::none_of(a.free_required.begin(), a.free_required.end(), [](bool r) { return r; });
  return may_be_empty ? b_.optional(written) : written;
}

Expr ObjectEmitter::members(const Alternative& a, size_t i, std::vector<uint32_t> set, int64_t count) {
  if (set.empty()) return b_.none();
  if (a.max && count > *a.max) return b_.none();
  const bool counted = a.min > 0 || a.max;
  if (set.size() == 1 && !counted) return straight(a, i, set[0], count == 0);
  if (i == a.slots.size()) return rest(a, count);
  if (memo_.size() > kStatesMax || a.slots.size() > kSlotsMax) {
    e_.refuse(a.node,
              a.max     ? "maxProperties"
              : counted ? "minProperties"
                        : "anyOf",
              "this object has too many combinations of members and counts");
    return b_.none();
  }
  auto key = std::make_tuple(i, set, count);
  if (auto it = memo_.find(key); it != memo_.end()) return it->second;
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
