// What the positions inside arrays of unique items remember (machine.h): the text of the item so far, and the values
// before it. Both are interned, so that equal memories have equal ids. Internal to the room.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/flat_map.h"
#include "grammar/json_value.h"

namespace deepinfer::grammar {

class UniqueStore {
 public:
  using TextId = uint32_t;
  using SetId = uint32_t;
  using ValueId = uint32_t;
  static constexpr TextId kNoText = 0;     // an item whose text is not looked at
  static constexpr TextId kEmptyText = 1;

  UniqueStore() { clear(); }
  void clear();

  // White space outside strings changes nothing.
  TextId extend(TextId text, uint8_t byte);
  uint32_t length(TextId text) const { return texts_[text].length; }
  // Whether the text is the first with which an item is sure to be zero, whatever follows: "0e".
  bool becomes_zero(TextId text);
  // The JSON value that a finished item's text spells.
  ValueId value_of(TextId text);
  std::optional<ValueId> zero() const;  // the number, if an item was it

  // The set without values of an array whose items surely have `at_least` different values.
  SetId empty_set(uint32_t at_least);
  SetId emptied(SetId set) { return empty_set(sets_[set].at_least); }
  SetId add(SetId set, ValueId value);
  bool contains(SetId set, ValueId value) const;
  uint32_t size(SetId set) const { return sets_[set].size; }
  // Whether the array may soon have no further value to take: `more` more of them are no longer sure.
  bool runs_short(SetId set, uint32_t more) const {
    return sets_[set].size + static_cast<uint64_t>(more) > sets_[set].at_least;
  }

  // Whether the text may still become a value of the set; adds the bytes that keep it so.
  bool may_repeat(TextId text, SetId set, ByteSet* next = nullptr);

  uint64_t memory_bytes() const { return memory_; }

 private:
  struct TextNode {
    TextId parent;
    uint32_t length;
    uint8_t byte;
    bool in_string, escaped;  // behind it
  };
  struct Set {
    SetId rest;  // without `value`
    ValueId value;
    uint32_t size, at_least;
  };
  std::string_view spell(TextId text);
  std::span<const ValueId> candidates(TextId text, SetId set);

  std::vector<TextNode> texts_;
  FlatMap text_of_, value_of_text_, set_of_, candidates_of_;
  std::unordered_map<std::string, ValueId> value_ids_;
  struct Value {
    bool is_json = false;
    std::string text;                        // of a string or number
    std::unique_ptr<JsonDocument> container;  // of an array or object
    JsonKind kind = JsonKind::kNull;
    JsonValue get() const { return container ? container->root() : JsonValue::of_text(kind, text); }
  };
  std::vector<Value> values_;
  std::vector<Set> sets_;
  std::vector<ValueId> lists_;                             // of candidates
  std::vector<std::pair<uint32_t, uint32_t>> candidates_;  // begin and count in lists_
  std::string spelled_;
  uint64_t memory_ = 0;
};

}  // namespace deepinfer::grammar
