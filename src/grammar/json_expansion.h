// One run of Normaliser::expand for one type of value (private to the room): a tableau. A branch takes its literals
// apart; what has several ways to hold is put off as a choice, so that everything certain can rule ways out first.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_normal.h"

namespace deepinfer::grammar {

// The parts of a schema in the order in which they write their members (README of the structured fixtures).
enum Step : uint8_t {
  kStepRef = 1,
  kStepAllOf,
  kStepAnyOf,
  kStepOneOf,
  kStepIf,
  kStepThen,
  kStepElse,
  kStepDependent,
  kStepNot
};

class Expansion {
 public:
  Expansion(Normaliser& normal, ConjId conj, TypeClass type, NormalForm& out)
      : normal_(normal), conj_(conj), type_(type), out_(out) {}
  void run();

 private:
  // Where a literal stands in the schema, as a key that sorts as members are written.
  using Place = uint32_t;

  // One thing that must hold.
  struct Atom {
    enum Op : uint8_t {
      kLiteral,
      kTypes,
      kLow,
      kHigh,
      kNotMultiple,
      kMinLength,
      kMaxLength,
      kNotPattern,
      kExclude,
      kMinItems,
      kMaxItems,
      kItem,
      kEveryItem,
      kSomeItem,
      kRequire,
      kForbid,
      kMember,
      kMinMembers,
      kMaxMembers,
      kSome,
      kSomeName,
    };
    Op op;
    Literal literal = {};
    int64_t n = 0;
    std::string_view text = {};
    const Decimal* number = nullptr;
    const JsonValue* value = nullptr;
    const NameScope* scope = nullptr;
    SchemaId node = kNoNode;
    uint8_t step = 0;
    bool flag = false;  // the bound is open; the pattern is a format
  };
  using Option = std::vector<Atom>;
  struct Choice {
    std::vector<Option> options;
    Place place;
    SchemaId node;
    std::string_view keyword;
  };
  struct Todo {
    Literal literal;
    Place place;
  };
  struct Branch {
    Shape shape;
    std::vector<Todo> todo;
    std::vector<uint32_t> choices;
    std::vector<std::pair<SchemaId, Place>> applied;  // positive nodes, where unevaluated* is to be obeyed
  };

  void run(Branch branch);
  bool take(Branch& b, Todo todo);
  bool take_node(Branch& b, SchemaId id, Place place);
  bool take_negation(Branch& b, Literal literal, Place place);
  bool take_number(Branch& b, SchemaId id);
  bool take_string(Branch& b, SchemaId id);
  bool take_array(Branch& b, SchemaId id);
  bool take_object(Branch& b, SchemaId id, Place place);
  bool take_applicators(Branch& b, SchemaId id, Place place);
  bool take_one_of(Branch& b, SchemaId id, Place place);
  void take_values(const JsonValue* first, uint32_t n);
  // Puts off the choice, or applies its only option; false if there is none.
  bool choose(Branch& b, Choice choice);
  bool apply(Branch& b, const Atom& atom, Place place, uint32_t index);
  bool apply_object(Branch& b, const Atom& atom, Place place, uint32_t index);

  // The ways in which a node or value does not hold, for values of type_; nothing if it never holds for them.
  std::optional<std::vector<Option>> negation(Literal literal);
  std::optional<std::vector<Option>> negation_of_value(const JsonValue& value);
  void negate_number(const NumberKeywords& k, SchemaId id, std::vector<Option>& out);
  void negate_string(const StringKeywords& k, SchemaId id, std::vector<Option>& out);
  void negate_array(const ArrayKeywords& k, SchemaId id, std::vector<Option>& out);
  void negate_object(const ObjectKeywords& k, SchemaId id, std::vector<Option>& out);
  void negate_applicators(const Applicators& a, SchemaId id, std::vector<Option>& out);

  // unevaluatedProperties and unevaluatedItems: rules about what no schema below the same node has spoken of.
  bool must_track() const;
  bool apply_unevaluated(Branch& b);
  bool apply_unevaluated(Branch& b, SchemaId node, std::string_view place);
  bool choose_any_of_exactly(Branch& b, SchemaId id, Place place);

  void finish(Branch& b);
  bool finish_array(ArrayShape& a);
  bool finish_object(ObjectShape& o);
  void resolve_some(Shape shape, size_t next);
  void sort_members(ObjectShape& o) const;
  void emit(Shape shape);

  ObjectShape::Member& member(ObjectShape& o, std::string_view name, uint8_t order_class, Place place, uint32_t index);
  Place place_below(Place place, uint8_t step, uint32_t index);
  bool needs_work(const SchemaNode& node) const { return (node.types & type_bits(type_)) != 0 && !node.never; }
  Literal positive(SchemaId id) const { return Literal::of_node(id, false); }
  Literal negative(SchemaId id) const { return Literal::of_node(id, true); }
  void refuse(SchemaId node, std::string_view keyword, std::string_view why, Code code = Code::kUnsupported);

  Normaliser& normal_;
  ConjId conj_;
  TypeClass type_;
  NormalForm& out_;
  std::deque<Choice> choices_;
  std::vector<std::string> places_;
  size_t branches_ = 0;
  int depth_ = 0;
  bool track_ = false;
};

}  // namespace deepinfer::grammar
