// What stands in an item of a position (machine.h): a number whose two upper bits tell the kind. Internal to the room.
#pragma once

#include <cstdint>

#include "grammar/expr.h"

namespace deepinfer::grammar {

enum class SymbolKind : uint32_t { kState, kExpr, kToken, kEnd };

inline constexpr uint32_t kSymbolKindShift = 30;
inline constexpr uint32_t kEndSymbol = static_cast<uint32_t>(SymbolKind::kEnd) << kSymbolKindShift;

inline SymbolKind kind_of(uint32_t symbol) { return static_cast<SymbolKind>(symbol >> kSymbolKindShift); }
inline uint32_t index_of(uint32_t symbol) { return symbol & ((1u << kSymbolKindShift) - 1); }
inline uint32_t state_symbol(RxId r) { return r; }
inline uint32_t expr_symbol(ExprId e) { return static_cast<uint32_t>(SymbolKind::kExpr) << kSymbolKindShift | e; }
inline uint32_t token_symbol(uint32_t token) { return static_cast<uint32_t>(SymbolKind::kToken) << kSymbolKindShift | token; }

}  // namespace deepinfer::grammar
