// What GrammarBuilder and Grammar hold. Internal to the room.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/expr.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

struct Grammar::Impl {
  struct RuleInfo {
    std::string name;
    ExprId body = kExprNone;
    bool defined = false;
  };
  ExprArena exprs;
  std::vector<RuleInfo> rules;
  ExprId root = kExprNone;
  bool uses_unique = false;  // kUnique was made
};

enum class TextKind : uint8_t {
  kNone,
  kEmpty,
  kString,
  kStrings,
  kChars,
  kConcat,
  kUnion,
  kIntersection,
  kComplement,
  kRepeat,
  kAutomaton
};

struct TextNode {
  TextKind kind;
  // kString, kStrings, kChars, kAutomaton: a = index; kRepeat: a, b..c times; lists: b parts at a
  uint32_t a = 0, b = 0, c = 0;
  uint32_t shortest = 0, longest = kUnbounded;  // bounds on the length in code points
};

struct GrammarBuilder::Impl {
  explicit Impl(const Limits& limits) : budget(limits), grammar(std::make_unique<Grammar::Impl>()) {}

  bool charge();
  uint32_t add_text(TextNode node, std::string_view key);
  RxId lower(uint32_t text, Encoding encoding);
  RxId lower_node(const TextNode& n, Encoding encoding);
  // The expression of a lowered Text, none if it is empty.
  ExprId regular(RxId r);
  void fail_search();
  std::vector<uint32_t> drop_implied_lengths(std::vector<uint32_t> parts);
  const std::string* single(uint32_t text);

  Budget budget;
  Status status;
  std::unique_ptr<Grammar::Impl> grammar;
  std::vector<TextNode> texts;
  std::unordered_map<std::string, uint32_t> known;
  std::vector<uint32_t> lists;
  std::vector<std::string> strings;
  std::vector<std::vector<std::string>> string_lists;
  std::vector<CharSet> sets;
  std::vector<std::shared_ptr<const ByteDfa>> automata;
  std::vector<RxId> lowered[2];
  std::vector<AddedToken> added;
  std::string scratch;
  int lower_depth = 0;
};

// Checks and rewrites the rules so that a machine can walk them: nothing that is unreachable or can produce nothing, no
// repetition of something empty, no left recursion (analysis.cc).
Status prepare(Grammar::Impl& grammar, bool strict_rules, Budget& budget);
// Whether nothing can be produced from `e`; all rules below it must be defined.
bool produces_nothing(Grammar::Impl& grammar, ExprId e);

}  // namespace deepinfer::grammar
