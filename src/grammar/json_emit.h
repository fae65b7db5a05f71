// From normal forms to expressions of the grammar (private to the room).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "grammar/json_normal.h"
#include "grammar/json_schema.h"

namespace deepinfer::grammar {

// The punctuation of JSON with the white space that is allowed around it, and "any value".
class JsonParts {
 public:
  JsonParts(GrammarBuilder& builder, const JsonSchemaOptions& options);
  GrammarBuilder& builder() { return b_; }
  Expr comma() const { return comma_; }
  Expr member(Expr name, Expr value) { return b_.sequence({name, colon_, value}); }
  Expr name(std::string_view name);
  Expr object(Expr members) { return b_.sequence({open_object_, members, close_object_}); }
  Expr array(Expr items) { return b_.sequence({open_array_, items, close_array_}); }
  Expr any_value();
  Expr any_object();
  Expr any_array();
  // A value as const and enum list it.
  Expr listed(const JsonValue& value);
  static std::vector<std::string> spellings(const JsonValue& scalar);

 private:
  GrammarBuilder& b_;
  bool any_order_;
  Expr comma_, colon_, open_object_, close_object_, open_array_, close_array_;
  std::optional<Expr> any_, any_object_, any_array_;
};

class JsonEmitter {
 public:
  JsonEmitter(Normaliser& normal, const JsonSchemaOptions& options);
  Result<Expr> run(SchemaId root);

  // A value of a conjunction in two: its strings, as a set, and everything else, as JSON. For writers that spell
  // strings otherwise.
  struct Split {
    Text strings;
    Expr others;
  };
  Split split(ConjId conj);
  // Defines the rules that values so far refer to.
  Status define_rules();

 private:
  friend class ObjectEmitter;
  friend class ArrayEmitter;

  // The expression of a conjunction; containers become rules that are defined later by run().
  Expr value(ConjId conj);
  // Everything but strings.
  std::vector<Expr> other_ways(ConjId conj, const NormalForm& form);
  Expr strings(const NormalForm& form);
  Expr numbers(const NormalForm& form);
  void define(ConjId conj, Rule rule);
  Expr array(const ArrayShape& shape);
  void refuse(SchemaId node, std::string_view keyword, std::string_view why) {
    normal_.fail(normal_.refusal(node, keyword, why));
  }

  Normaliser& normal_;
  GrammarBuilder& b_;
  const JsonSchemaOptions& options_;
  JsonParts parts_;
  std::vector<std::optional<Expr>> values_;  // by ConjId
  std::deque<std::pair<ConjId, Rule>> waiting_;
};

// All object shapes of one conjunction.
class ObjectEmitter {
 public:
  explicit ObjectEmitter(JsonEmitter& emitter) : e_(emitter), normal_(emitter.normal_), b_(emitter.b_) {}
  Expr run(const std::vector<const ObjectShape*>& shapes);

 private:
  struct Slot {
    std::string_view name;
    ConjId value;
    Presence presence;
  };
  struct Alternative {
    std::vector<Slot> slots;
    // Behind the slots, in any order: members that only negations and dependencies name, witnesses of rules that must
    // be broken, and others.
    std::vector<Expr> free;
    std::vector<bool> free_required;
    Expr others;
    SchemaId node = 0;
    int64_t min = 0;
    std::optional<int64_t> max;
  };

  using Witnessed = std::vector<const ObjectShape::Some*>;
  Alternative alternative(const ObjectShape& shape);
  // The ways to share the rules that must be broken among witnesses.
  void add_witnesses(const ObjectShape& shape, Alternative a, std::vector<Witnessed> groups, size_t next,
                     std::vector<Alternative>& out);
  Expr other_members(const ObjectShape& shape, const Witnessed& some);
  static bool is_closed(const ObjectShape& shape);
  // The set of names that the shape's rules about names allow (kAnything: all), with those that a witness breaks.
  ConjId name_rules(const ObjectShape& shape, const Witnessed& some);
  Text names_text(ConjId names);
  Expr any_order(const Alternative& a);
  Expr slot(const Slot& s, bool first);
  Expr rest(const Alternative& a, int64_t count);
  Expr free_rest(const Alternative& a, int64_t low, std::optional<int64_t> high, bool first);
  // The members from slot i on; `suffixes` are what is left of the alternatives that are still possible.
  Expr members(const Alternative& a, size_t i, std::vector<uint32_t> suffixes, int64_t count);
  Expr straight(const Alternative& a, size_t i, uint32_t suffix, bool first);
  uint32_t suffix_of(const Alternative& a);
  static bool mergeable(const Alternative& a, const Alternative& b);

  struct Suffix {
    ConjId value;
    Presence presence;
    uint32_t next;
    auto operator<=>(const Suffix&) const = default;
  };

  JsonEmitter& e_;
  Normaliser& normal_;
  GrammarBuilder& b_;
  std::vector<Suffix> suffixes_;
  std::map<Suffix, uint32_t> suffix_ids_;
  std::map<std::tuple<size_t, std::vector<uint32_t>, int64_t>, Expr> memo_;
  std::unordered_map<uint32_t, Expr> straight_;
};

}  // namespace deepinfer::grammar
