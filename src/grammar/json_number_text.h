// The texts of numbers that satisfy a NumberShape, as a set of strings (private to the room).
//
// Every text in the set is a JSON number of the shape. Left out are other spellings of the same values: exponents and
// ".0" for integers, "-0" where negative numbers are out of range, and, where a bound other than 0, a divisor or an
// excluded value speaks about the number, exponents (but numbers in scientific form that lie beyond every bound are
// taken, because programs write very small and very large values that way).
#pragma once

#include <cstdint>

#include "grammar/grammar.h"
#include "grammar/json_normal.h"

namespace deepinfer::grammar {

// States of the automaton of a divisor; schemas with larger ones are refused.
inline constexpr uint64_t kDivisorStatesMax = 20'000;
uint64_t divisor_states(const Decimal& divisor);

Text number_text(GrammarBuilder& builder, const NumberShape& shape);
// True when every number (or every integer) is in the shape.
bool is_plain_number(const NumberShape& shape);

}  // namespace deepinfer::grammar
