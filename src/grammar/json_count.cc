// How many different values a conjunction surely has: for arrays of unique items, which must not run out of them.
#include <algorithm>

#include "grammar/json_normal.h"
#include "grammar/json_number_text.h"

namespace deepinfer::grammar {
namespace {

constexpr int kDepthMax = 6;

// Saturating arithmetic: kUnbounded stands for "as many as anyone could want".
uint32_t plus(uint32_t a, uint32_t b) { return a > kUnbounded - b ? kUnbounded : a + b; }
uint32_t times(uint32_t a, uint32_t b) {
  const uint64_t p = static_cast<uint64_t>(a) * b;
  return p >= kUnbounded ? kUnbounded : static_cast<uint32_t>(p);
}

}  // namespace

uint32_t Normaliser::values_at_least(ConjId conj, uint32_t enough, int depth) {
  if (conj == kAnything) return kUnbounded;
  if (conj == kNothing) return 0;
  if (depth > kDepthMax) return 1;
  auto form = expand(conj);
  if (!form.ok()) return 0;
  uint32_t by_type[kTypeClasses] = {};  // parts of the form may overlap within a type
  for (const Shape& s : form.value()->shapes) {
    uint32_t& best = by_type[static_cast<int>(s.type)];
    if (best < enough) best = std::max(best, values_at_least(s, enough, depth));
  }
  uint32_t sum = 0;
  for (uint32_t n : by_type) sum = plus(sum, n);
  return std::max(sum, static_cast<uint32_t>(form.value()->values.size()));
}

uint32_t Normaliser::values_at_least(const Shape& s, uint32_t enough, int depth) {
  switch (s.type) {
    case TypeClass::kNull:
      return 1;
    case TypeClass::kBoolean:
      return static_cast<uint32_t>(s.can_be_true) + static_cast<uint32_t>(s.can_be_false);
    case TypeClass::kNumber: {
      const NumberShape& n = s.number;
      if (n.types == kInteger) {
        if (n.not_multiples.empty() && n.multiples.empty() && (!n.low || !n.high)) return kUnbounded;
        const uint32_t texts =
            builder_.count_at_least(number_text(builder_, n), enough == kUnbounded ? enough : enough + 1);
        return texts == 0 ? 0 : texts - 1;  // 0 and -0
      }
      if (!n.multiples.empty() || !n.not_multiples.empty()) return 1;
      return !n.low || !n.high || *n.low < *n.high ? kUnbounded : 1;
    }
    case TypeClass::kString:
      if (s.string.patterns.empty() && !s.string.max) return kUnbounded;
      return builder_.count_at_least(string_text(s.string), enough);
    case TypeClass::kArray: {
      const ArrayShape& a = *s.array;
      if (!a.contains.empty() || a.unique != kNoNode) return 1;
      const ConjId first = a.prefix.empty() ? a.rest : a.prefix[0];
      if (a.max && *a.max == 0) return 1;
      if (!a.max && a.rest != kNothing && !surely_empty(a.rest)) return kUnbounded;
      return std::max<uint32_t>(1, values_at_least(first, enough, depth + 1));
    }
    case TypeClass::kObject: {
      const ObjectShape& o = *s.object;
      if (!o.some.empty() || o.min > 0 || o.max) return 1;
      if (o.rules.empty() && o.names.empty()) return kUnbounded;
      uint32_t ways = 1;
      for (const ObjectShape::Member& m : o.members) {
        if (ways >= enough) break;
        if (m.presence == Presence::kRequired)
          ways = times(ways, std::max<uint32_t>(1, values_at_least(m.value, enough, depth + 1)));
        if (m.presence == Presence::kOptional && m.order_class != kUnplaced) {
          ways = times(ways, plus(1, values_at_least(m.value, enough, depth + 1)));
        }
      }
      return ways;
    }
  }
  return 1;
}

}  // namespace deepinfer::grammar
