#include "grammar/unique_store.h"

#include <algorithm>

#include "grammar/json_follow.h"

namespace deepinfer::grammar {

void UniqueStore::clear() {
  texts_.assign(2, {kNoText, 0, 0, false, false});
  text_of_.clear();
  value_of_text_.clear();
  set_of_.clear();
  candidates_of_.clear();
  value_ids_.clear();
  values_.clear();
  sets_.clear();
  lists_.clear();
  candidates_.clear();
  memory_ = 0;
}

UniqueStore::TextId UniqueStore::extend(TextId text, uint8_t byte) {
  const TextNode before = texts_[text];
  const bool is_space = byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
  if (text == kNoText || (is_space && !before.in_string)) return text;
  uint32_t& id = text_of_[static_cast<uint64_t>(text) << 8 | byte];
  if (id == 0) {
    id = static_cast<uint32_t>(texts_.size());
    const bool quote = byte == '"' && !before.escaped;
    texts_.push_back({text, before.length + 1, byte, before.in_string != quote,
                      before.in_string && !before.escaped && byte == '\\'});
    memory_ += sizeof(TextNode) + 32;
  }
  return id;
}

std::string_view UniqueStore::spell(TextId text) {
  spelled_.resize(texts_[text].length);
  for (size_t i = spelled_.size(); i-- > 0; text = texts_[text].parent)
    spelled_[i] = static_cast<char>(texts_[text].byte);
  return spelled_;
}

bool UniqueStore::becomes_zero(TextId text) {
  if ((texts_[text].byte | 32) != 'e') return false;
  std::string_view s = spell(text);
  s.remove_suffix(1);
  return !s.empty() && s.find_first_not_of("-0.") == std::string_view::npos;
}

std::optional<UniqueStore::ValueId> UniqueStore::zero() const {
  const auto it = value_ids_.find("e0");
  return it == value_ids_.end() ? std::nullopt : std::optional(it->second);
}

UniqueStore::ValueId UniqueStore::value_of(TextId text) {
  if (const uint32_t* known = value_of_text_.find(text)) return *known;
  auto document = JsonDocument::parse(spell(text));
  std::string key;
  if (document.ok()) append_canonical_json(document.value().root(), key);
  else key = "?" + spelled_;
  auto [it, fresh] = value_ids_.try_emplace(std::move(key), static_cast<ValueId>(values_.size()));
  if (fresh) {
    Value value;
    value.is_json = document.ok();
    if (value.is_json) {
      const JsonValue& root = document.value().root();
      value.kind = root.kind();
      if (root.is_string() || root.is_number()) value.text = root.text();
      if (root.is_array() || root.is_object())
        value.container = std::make_unique<JsonDocument>(std::move(document).value());
    }
    memory_ += sizeof(Value) + 64 + 2 * spelled_.size() + (value.container ? 4096 + 3 * spelled_.size() : 0);
    values_.push_back(std::move(value));
  }
  memory_ += 32;
  return value_of_text_[text] = it->second;
}

UniqueStore::SetId UniqueStore::empty_set(uint32_t at_least) {
  uint32_t& id = set_of_[at_least];
  if (id == 0) {
    sets_.push_back({0, 0, 0, at_least});
    id = static_cast<uint32_t>(sets_.size());
  }
  return id - 1;
}

UniqueStore::SetId UniqueStore::add(SetId set, ValueId value) {
  uint32_t& id = set_of_[(static_cast<uint64_t>(set) + 1) << 32 | value];
  if (id == 0) {
    sets_.push_back({set, value, sets_[set].size + 1, sets_[set].at_least});
    id = static_cast<uint32_t>(sets_.size());
    memory_ += sizeof(Set) + 32;
  }
  return id - 1;
}

bool UniqueStore::contains(SetId set, ValueId value) const {
  for (; sets_[set].size > 0; set = sets_[set].rest) {
    if (sets_[set].value == value) return true;
  }
  return false;
}

// Those of the set that the text may become. Worked out from the nearest shorter text that was asked about.
std::span<const UniqueStore::ValueId> UniqueStore::candidates(TextId text, SetId set) {
  auto key = [set](TextId t) { return static_cast<uint64_t>(set) << 32 | t; };
  if (const uint32_t* known = candidates_of_.find(key(text))) {
    const auto [begin, count] = candidates_[*known];
    return {lists_.data() + begin, count};
  }
  const uint32_t* before = nullptr;
  for (TextId t = text; t > kEmptyText && before == nullptr;) {
    t = texts_[t].parent;
    before = candidates_of_.find(key(t));
  }
  const auto from = static_cast<uint32_t>(lists_.size());
  if (before != nullptr) {
    const auto [begin, count] = candidates_[*before];
    for (uint32_t i = begin; i < begin + count; ++i) lists_.push_back(lists_[i]);
  } else {
    for (SetId s = set; sets_[s].size > 0; s = sets_[s].rest) {
      if (values_[sets_[s].value].is_json) lists_.push_back(sets_[s].value);
    }
  }
  if (texts_[text].length > 0 && lists_.size() > from) {
    spell(text);
    ByteSet ignored;
    auto gone = [&](ValueId v) { return !follow_json(spelled_, values_[v].get(), &ignored); };
    lists_.erase(std::remove_if(lists_.begin() + from, lists_.end(), gone), lists_.end());
  }
  const auto count = static_cast<uint32_t>(lists_.size()) - from;
  candidates_of_[key(text)] = static_cast<uint32_t>(candidates_.size());
  candidates_.emplace_back(from, count);
  memory_ += 40 + count * sizeof(ValueId);
  return {lists_.data() + from, count};
}

bool UniqueStore::may_repeat(TextId text, SetId set, ByteSet* next) {
  if (text == kNoText || sets_[set].size == 0) return false;
  const std::span<const ValueId> values = candidates(text, set);
  if (next != nullptr && !values.empty()) {
    spell(text);
    for (ValueId v : values) follow_json(spelled_, values_[v].get(), next);
  }
  return !values.empty();
}

}  // namespace deepinfer::grammar
