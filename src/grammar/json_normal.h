// Brings what a JSON Schema says about one value into a normal form (private to the room): a union of shapes, each
// about values of one type, each a plain conjunction without allOf, anyOf, oneOf, not, if, references or dependencies.
//
// A *literal* is a schema node or its negation (or "not equal to this value"); a *conjunction* is an interned list of
// literals that one value must satisfy. Shapes name the conjunctions of their members and items, so that recursion is a
// finite graph:
//
//   ConjId root = normal.of_node(model.root());
//   for (const Shape& s : normal.expand(root).shapes) ...     // s.object.members[i].value is a ConjId again
//
// Exactness: a value satisfies the conjunction if and only if it satisfies one of the shapes or is one of the listed
// values. What cannot be said exactly is refused, naming the keyword and its path; so are products of alternatives over
// `alternatives_max`. The union's parts may overlap.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/json_schema_model.h"
#include "grammar/json_validate.h"

namespace deepinfer::grammar {

using ConjId = int32_t;
inline constexpr ConjId kAnything = 0, kNothing = 1;

// node * 4 + negated, or index of a value * 4 + 2 + negated (values occur negated only).
struct Literal {
  int32_t code = 0;
  static Literal of_node(SchemaId node, bool negated) { return {node * 4 + negated}; }
  static Literal not_value(int32_t index) { return {index * 4 + 3}; }
  bool negated() const { return code & 1; }
  bool is_value() const { return code & 2; }
  int32_t index() const { return code >> 2; }
  bool operator==(const Literal&) const = default;
  auto operator<=>(const Literal&) const = default;
};

struct NumberShape {
  uint8_t types = kInteger | kFraction;
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;
  std::vector<Decimal> multiples, not_multiples, excluded;
};

struct StringShape {
  int64_t min = 0;
  std::optional<int64_t> max;
  struct Pattern {
    std::string_view source;
    bool format, negated;
    SchemaId node;
    bool operator==(const Pattern&) const = default;
  };
  std::vector<Pattern> patterns;
  std::vector<std::string_view> excluded;
};

struct ArrayShape {
  std::vector<ConjId> prefix;
  ConjId rest = kAnything;
  int64_t min = 0;
  std::optional<int64_t> max;
  struct Contains {
    ConjId item;
    int64_t from;  // only items at this index or later count
    int64_t min;
    std::optional<int64_t> max;
    SchemaId node;
  };
  std::vector<Contains> contains;
  SchemaId unique = kNoNode;  // the node that asks for it
};

// Members that `properties` declares come first, then those that only `required` lists; those that only negations and
// dependencies mention have no place of their own.
enum OrderClass : uint8_t { kDeclared, kOnlyRequired, kUnplaced };

enum class Presence : uint8_t { kOptional, kRequired, kForbidden };

// Names that a rule about members does not speak of.
struct NameScope {
  std::vector<std::string_view> names;     // sorted
  std::vector<std::string_view> patterns;
};

struct ObjectShape {
  struct Member {
    std::string_view name;
    ConjId value = kAnything;
    Presence presence = Presence::kOptional;
    // Order of writing: class, then place of the schema, then index.
    uint8_t order_class = kDeclared;
    uint32_t place = 0, index = 0;
  };
  // Every member whose name matches `pattern`, or (no pattern) is outside `scope`, has this value.
  struct Rule {
    std::optional<std::string_view> pattern;
    const NameScope* scope = nullptr;
    ConjId value = kAnything;
  };
  // At least one member of that kind exists. `names`: the name itself breaks this literal instead.
  struct Some {
    Rule rule;
    std::optional<Literal> name;
    SchemaId node = kNoNode;
  };
  SchemaId node = 0;  // one that speaks of these members, for messages
  std::vector<Member> members;
  std::vector<Rule> rules;
  std::vector<Literal> names;  // conjunction about every name
  std::vector<Some> some;
  int64_t min = 0;
  std::optional<int64_t> max;
};

enum class TypeClass : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
inline constexpr int kTypeClasses = 6;
uint8_t type_bits(TypeClass type);

struct Shape {
  TypeClass type = TypeClass::kNull;
  bool can_be_true = true, can_be_false = true;  // booleans
  NumberShape number;
  StringShape string;
  std::unique_ptr<ArrayShape> array;    // for arrays
  std::unique_ptr<ObjectShape> object;  // for objects

  explicit Shape(TypeClass t);
  Shape(const Shape& other);
  Shape(Shape&&) = default;
  Shape& operator=(Shape&&) = default;
};

struct NormalForm {
  std::vector<Shape> shapes;
  std::vector<const JsonValue*> values;  // listed by const and enum; distinct
};

struct NormalLimits {
  size_t alternatives_max = 2'000;      // of one conjunction
  size_t work_max = 400'000;            // branches tried in one compile
  size_t conjunctions_max = 200'000;
};

class Normaliser {
 public:
  Normaliser(std::shared_ptr<const SchemaModel> model, GrammarBuilder& builder, const NormalLimits& limits = {});

  ConjId of_node(SchemaId node) { return conj_and(kAnything, Literal::of_node(node, false)); }
  ConjId conj_and(ConjId conj, Literal literal);
  ConjId conj_and(ConjId a, ConjId b);
  const std::vector<Literal>& literals(ConjId conj) const { return conjunctions_[static_cast<size_t>(conj)].literals; }
  ConjId of_literals(const std::vector<Literal>& literals);

  // The normal form; an error is also kept in status(). The reference stays valid.
  Result<const NormalForm*> expand(ConjId conj);
  // True if the conjunction certainly has no value; false says nothing.
  bool surely_empty(ConjId conj);
  bool surely_empty(const Shape& shape);
  // All values of the conjunction, if they are known to be few.
  std::optional<std::vector<const JsonValue*>> few_values(ConjId conj, size_t max);
  // A lower bound on the number of different values; what lies beyond `enough` is not looked for. kUnbounded: surely
  // many.
  uint32_t values_at_least(ConjId conj, uint32_t enough, int depth = 0);
  // The strings that a conjunction allows, if const or enum list all of them and they are few.
  std::optional<std::vector<std::string_view>> few_strings(ConjId conj, size_t max);
  // Whether a value satisfies the conjunction.
  bool holds(ConjId conj, const JsonValue& value);

  // Sets of strings, and of the magnitudes that numbers are written with (json_number_text.h).
  Text string_text(const StringShape& shape);
  // Whether a rule about members speaks of one.
  bool rule_covers(const ObjectShape::Rule& rule, std::string_view name);
  Text pattern_text(std::string_view source, SchemaId node, std::string_view keyword);

  const SchemaModel& model() const { return *model_; }
  GrammarBuilder& builder() { return builder_; }
  JsonValidator& validator() { return validator_; }
  const Status& status() const { return status_; }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  Status refusal(SchemaId node, std::string_view keyword, std::string_view why, Code code = Code::kUnsupported) const;

 private:
  friend class Expansion;
  struct Conjunction {
    std::vector<Literal> literals;
    std::unique_ptr<NormalForm> form;
    bool open = false;    // being expanded
    int8_t empty = -1;    // surely_empty: unknown, no, yes
  };

  SchemaId canonical(SchemaId node) const;
  uint32_t values_at_least(const Shape& shape, uint32_t enough, int depth);
  const NameScope* scope_of(SchemaId node);
  int32_t value_index(const JsonValue& value);
  const JsonValue* integer(int64_t n);
  bool disjoint(SchemaId a, SchemaId b, TypeClass type);

  std::shared_ptr<const SchemaModel> model_;
  GrammarBuilder& builder_;
  NormalLimits limits_;
  JsonValidator validator_;
  std::deque<Conjunction> conjunctions_;
  std::map<std::vector<Literal>, ConjId> conj_of_;
  std::vector<ConjId> single_;  // by literal code of nodes
  std::vector<const JsonValue*> values_;
  std::unordered_map<const JsonValue*, int32_t> value_index_;
  std::unordered_map<SchemaId, std::unique_ptr<NameScope>> scopes_;
  std::vector<std::unique_ptr<NameScope>> more_scopes_;
  std::deque<std::string> integer_texts_;
  std::deque<JsonValue> integers_;
  std::unordered_map<std::string_view, Text> patterns_;
  std::map<std::tuple<SchemaId, SchemaId, TypeClass>, bool> disjoint_;
  size_t work_ = 0;
  int depth_ = 0;  // of surely_empty
  Status status_;
};

}  // namespace deepinfer::grammar
