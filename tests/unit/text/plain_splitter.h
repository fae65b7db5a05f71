// The pre-tokenizer's three patterns written plainly, character by character: what PieceSplitter is tested against.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace plain_splitter {

enum class Kind : uint8_t { kWord, kNumber, kPunct, kSpace, kNewline, kOther };

struct Character {
  size_t at;
  uint32_t code_point;
  Kind kind;
};

inline bool is_cjk(uint32_t c) { return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff); }
inline bool is_ascii_letter(uint32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

inline Kind kind_of(uint32_t c) {
  if (c == '\n' || c == '\r') return Kind::kNewline;
  if (is_white_space(c)) return Kind::kSpace;
  const Category category = general_category(c);
  if (is_letter(category) || is_mark(category)) return Kind::kWord;
  if (is_number(category)) return Kind::kNumber;
  if (is_punctuation(category) || is_symbol(category)) return Kind::kPunct;
  return Kind::kOther;
}

// Length in characters of the third pattern's match at the start of [s, end), 0 for none.
inline size_t match_words(const Character* s, const Character* end) {
  const auto kind = [&](const Character* p) { return p < end ? p->kind : Kind::kNumber; };
  const auto run = [&](const Character* p, Kind wanted) {
    while (kind(p) == wanted) ++p;
    return p;
  };
  if (s->kind == Kind::kPunct && s->code_point < 0x80) {
    const Character* p = s + 1;
    while (p < end && is_ascii_letter(p->code_point)) ++p;
    if (p > s + 1) return p - s;
  }
  const bool lead = s->kind == Kind::kSpace || s->kind == Kind::kOther;
  if (kind(s + lead) == Kind::kWord) return run(s + lead, Kind::kWord) - s;
  const Character* punct = s + (s->code_point == ' ');
  if (kind(punct) == Kind::kPunct) return run(run(punct, Kind::kPunct), Kind::kNewline) - s;
  const Character* p = s;
  const Character* after_newline = nullptr;
  for (; kind(p) == Kind::kSpace || kind(p) == Kind::kNewline; ++p) {
    if (p->kind == Kind::kNewline) after_newline = p + 1;
  }
  if (after_newline != nullptr) return after_newline - s;
  return p == end || p - s < 2 ? p - s : p - s - 1;
}

}  // namespace plain_splitter

// The end of each piece of valid UTF-8; pieces are adjacent and cover the text.
inline std::vector<size_t> plain_piece_ends(std::string_view text) {
  using namespace plain_splitter;
  std::vector<size_t> ends;
  std::vector<Character> all;
  all.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text.substr(i));
    all.push_back({i, step.code_point, kind_of(step.code_point)});
    i += step.length;
  }
  all.push_back({text.size(), 0, Kind::kOther});
  const Character* const end = &all.back();
  for (const Character* segment = all.data(); segment < end;) {
    const Character* p = segment;
    if (p->kind == Kind::kNumber) {
      while (p < end && p - segment < 3 && p->kind == Kind::kNumber) ++p;
      ends.push_back(p->at);
      segment = p;
      continue;
    }
    const bool cjk = is_cjk(p->code_point);
    while (p < end && p->kind != Kind::kNumber && is_cjk(p->code_point) == cjk) ++p;
    bool in_gap = false;
    for (const Character* s = segment; s < p;) {
      const size_t n = match_words(s, p);
      if (n == 0) {
        in_gap = true;
        ++s;
        continue;
      }
      if (in_gap) ends.push_back(s->at);
      in_gap = false;
      s += n;
      ends.push_back(s->at);
    }
    if (in_gap) ends.push_back(p->at);
    segment = p;
  }
  return ends;
}

}  // namespace deepinfer::text
