// What stands in an item of a position (machine.h): a number whose three upper bits tell the kind. Internal to the
// room.
#pragma once

#include <cstdint>

#include "grammar/expr.h"

namespace deepinfer::grammar {

enum class SymbolKind : uint32_t {
  kState,
  kExpr,
  kToken,
  kEnd,
  kUniqueExpr,  // an expression whose arrays of unique items are obeyed; as a kExpr they are arrays of any items
  kItemText,    // the end of a unique item: its text so far (unique_store.h)
  kItemSet,     // the end of an array of unique items: its items so far
};

inline constexpr uint32_t kSymbolKindShift = 29;
inline constexpr uint32_t kEndSymbol = static_cast<uint32_t>(SymbolKind::kEnd) << kSymbolKindShift;

inline SymbolKind kind_of(uint32_t symbol) { return static_cast<SymbolKind>(symbol >> kSymbolKindShift); }
inline uint32_t index_of(uint32_t symbol) { return symbol & ((1u << kSymbolKindShift) - 1); }
inline uint32_t state_symbol(RxId r) { return r; }
inline uint32_t expr_symbol(ExprId e) { return static_cast<uint32_t>(SymbolKind::kExpr) << kSymbolKindShift | e; }
inline uint32_t unique_symbol(ExprId e) {
  return static_cast<uint32_t>(SymbolKind::kUniqueExpr) << kSymbolKindShift | e;
}
inline uint32_t text_symbol(uint32_t text) {
  return static_cast<uint32_t>(SymbolKind::kItemText) << kSymbolKindShift | text;
}
inline uint32_t set_symbol(uint32_t set) {
  return static_cast<uint32_t>(SymbolKind::kItemSet) << kSymbolKindShift | set;
}
inline uint32_t token_symbol(uint32_t token) {
  return static_cast<uint32_t>(SymbolKind::kToken) << kSymbolKindShift | token;
}

}  // namespace deepinfer::grammar
