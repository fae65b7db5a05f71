#include "grammar/regex_parser.h"

#include <algorithm>
#include <optional>
#include <string>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kCountMax = 1'000'000'000;

bool is_syntax_char(uint32_t c) {
  return c < 0x80 && std::string_view("^$\\.*+?()[]{}|/").find(static_cast<char>(c)) != std::string_view::npos;
}
bool is_alnum(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

class Parser {
 public:
  Parser(const Limits& limits) : limits_(limits) {}

  Result<RegexTree> run(std::string_view pattern) {
    if (pattern.size() > limits_.source_bytes_max) {
      return make_error(Code::kResourceExhausted,
                        "the regular expression has {} bytes, more than {} (limit source_bytes_max)", pattern.size(),
                        limits_.source_bytes_max);
    }
    if (!decode(pattern)) return make_error(Code::kInvalidArgument, "the regular expression is not valid UTF-8");
    const uint32_t root = choice(0);
    if (error_.ok() && at_ < text_.size()) fail("unmatched ')'");
    if (!error_.ok()) return error_;
    tree_.root = root;
    return std::move(tree_);
  }

 private:
  bool decode(std::string_view s) {
    for (size_t i = 0; i < s.size();) {
      const auto b = static_cast<unsigned char>(s[i]);
      const size_t size = b < 0x80                ? 1
                          : b >= 0xc2 && b < 0xe0 ? 2
                          : b >= 0xe0 && b < 0xf0 ? 3
                          : b >= 0xf0 && b < 0xf5 ? 4
                                                  : 0;
      if (size == 0 || i + size > s.size()) return false;
      uint32_t c = size == 1 ? b : b & (0x7fu >> size);
      for (size_t k = 1; k < size; ++k) {
        const auto d = static_cast<unsigned char>(s[i + k]);
        if ((d & 0xc0) != 0x80) return false;
        c = c << 6 | (d & 0x3fu);
      }
      if (c > kMaxCodePoint || (c >= 0xd800 && c <= 0xdfff) || (size == 3 && c < 0x800) || (size == 4 && c < 0x10000))
        return false;
      text_.push_back(c);
      i += size;
    }
    return true;
  }

  void fail(std::string_view what) {
    if (error_.ok()) error_ = make_error(Code::kInvalidArgument, "regular expression, character {}: {}", at_ + 1, what);
  }
  void refuse(std::string_view what) {
    if (error_.ok())
      error_ = make_error(Code::kUnsupported, "regular expression, character {}: {} is not supported", at_ + 1, what);
  }

  bool more() const { return at_ < text_.size() && error_.ok(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(uint32_t c) {
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  bool take(std::string_view s) {
    for (size_t i = 0; i < s.size(); ++i) {
      if (at_ + i >= text_.size() || text_[at_ + i] != static_cast<unsigned char>(s[i])) return false;
    }
    at_ += s.size();
    return true;
  }

  uint32_t add(RegexNode node) {
    tree_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(tree_.nodes.size() - 1);
  }
  uint32_t add_chars(CharSet set) {
    RegexNode n{RegexKind::kChars};
    n.nullable = false;
    n.chars = std::move(set);
    return add(std::move(n));
  }
  uint32_t add_list(RegexKind kind, std::vector<uint32_t> children) {
    if (children.empty()) return add({RegexKind::kEmpty});
    if (children.size() == 1) return children[0];
    RegexNode n{kind};
    n.nullable = kind == RegexKind::kConcat;
    for (uint32_t c : children) {
      const RegexNode& child = tree_.nodes[c];
      n.asserts |= child.asserts;
      if (kind == RegexKind::kConcat) n.nullable &= child.nullable;
      else n.nullable |= child.nullable;
    }
    n.children = std::move(children);
    return add(std::move(n));
  }

  uint32_t choice(uint32_t depth) {
    if (depth > limits_.groups_max) {
      if (error_.ok()) {
        error_ = make_error(Code::kResourceExhausted,
                            "the regular expression nests more than {} groups (limit groups_max)", limits_.groups_max);
      }
      return 0;
    }
    std::vector<uint32_t> parts{sequence(depth)};
    while (more() && take('|')) parts.push_back(sequence(depth));
    return add_list(RegexKind::kChoice, std::move(parts));
  }

  uint32_t sequence(uint32_t depth) {
    std::vector<uint32_t> parts;
    while (more() && peek() != '|' && peek() != ')') {
      const std::optional<uint32_t> part = term(depth);
      if (!part) break;
      parts.push_back(*part);
    }
    return add_list(RegexKind::kConcat, std::move(parts));
  }

  uint32_t add_assertion(RegexKind kind) {
    RegexNode n{kind};
    n.asserts = true;
    return add(std::move(n));
  }

  std::optional<uint32_t> term(uint32_t depth) {
    const uint32_t c = peek();
    bool quantifiable = true;
    uint32_t atom = 0;
    switch (c) {
      case '^':
        ++at_;
        atom = add_assertion(RegexKind::kBegin);
        quantifiable = false;
        break;
      case '$':
        ++at_;
        atom = add_assertion(RegexKind::kEnd);
        quantifiable = false;
        break;
      case '(':
        ++at_;
        atom = group(depth, &quantifiable);
        break;
      case '[':
        ++at_;
        atom = add_chars(char_class());
        break;
      case '.': {
        ++at_;
        atom = add_chars(~CharSet::of(U"\n\r\u2028\u2029"));
        break;
      }
      case '\\':
        ++at_;
        atom = atom_escape(&quantifiable);
        break;
      case '*':
      case '+':
      case '?':
        fail("there is nothing to repeat");
        return std::nullopt;
      case '{':
      case '}':
      case ']':
        fail("a lone '{', '}' or ']' must be escaped under the u flag");
        return std::nullopt;
      default:
        ++at_;
        atom = add_chars(CharSet::range(c, c));
    }
    if (!error_.ok()) return std::nullopt;
    return quantifier(atom, quantifiable);
  }

  std::optional<uint32_t> quantifier(uint32_t atom, bool quantifiable) {
    uint32_t min = 0, max = UINT32_MAX;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (peek() == '{' && at_ < text_.size()) {
      ++at_;
      if (!counts(&min, &max)) return std::nullopt;
    } else {
      return atom;
    }
    if (!quantifiable) {
      fail("an assertion cannot be repeated under the u flag");
      return std::nullopt;
    }
    take('?');  // lazy: the same set of strings
    if (more() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')) {
      fail("there is nothing to repeat");
      return std::nullopt;
    }
    const RegexNode& child = tree_.nodes[atom];
    RegexNode n{RegexKind::kRepeat};
    n.asserts = child.asserts;
    n.nullable = child.nullable || min == 0;
    n.min = min;
    n.max = max;
    n.children = {atom};
    return add(std::move(n));
  }

  bool number(uint32_t* value) {
    if (!(peek() >= '0' && peek() <= '9')) return false;
    uint64_t v = 0;
    while (peek() >= '0' && peek() <= '9' && at_ < text_.size())
      v = std::min<uint64_t>(v * 10 + text_[at_++] - '0', kCountMax);
    *value = static_cast<uint32_t>(v);
    return true;
  }

  bool counts(uint32_t* min, uint32_t* max) {
    if (!number(min)) {
      fail("a count is missing after '{'");
      return false;
    }
    *max = *min;
    if (take(',') && !number(max)) *max = UINT32_MAX;
    if (!take('}')) {
      fail("'}' is missing after a count");
      return false;
    }
    if (*max < *min) {
      fail("the counts in {m,n} are out of order");
      return false;
    }
    return true;
  }

  uint32_t group(uint32_t depth, bool* quantifiable) {
    std::optional<RegexNode> look;
    if (take("?:")) {
    } else if (take("?=")) {
      look = RegexNode{RegexKind::kLook};
    } else if (take("?!")) {
      look = RegexNode{RegexKind::kLook, true};
    } else if (take("?<=")) {
      look = RegexNode{RegexKind::kLook, false, true};
    } else if (take("?<!")) {
      look = RegexNode{RegexKind::kLook, true, true};
    } else if (take("?<")) {
      group_name();
    } else if (peek() == '?' && at_ < text_.size()) {
      refuse("this kind of group (?...)");
      return 0;
    }
    const uint32_t inner = choice(depth + 1);
    if (!error_.ok()) return 0;
    if (!take(')')) {
      fail("')' is missing");
      return 0;
    }
    if (!look) return inner;
    *quantifiable = false;
    look->asserts = true;
    look->children = {inner};
    return add(std::move(*look));
  }

  void group_name() {
    std::u32string name;
    while (more() && peek() != '>') {
      const uint32_t c = text_[at_++];
      if (!is_alnum(c) && c != '$' && c < 0x80) return fail("a group name may hold letters, digits, _ and $ only");
      name.push_back(c);
    }
    if (!take('>')) return fail("'>' is missing after a group name");
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return fail("a group name must start with a letter");
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) return fail("two groups have the same name");
    names_.push_back(name);
  }

  uint32_t atom_escape(bool* quantifiable) {
    if (at_ >= text_.size()) {
      fail("the pattern ends in a backslash");
      return 0;
    }
    const uint32_t c = peek();
    if (c == 'b' || c == 'B') {
      ++at_;
      *quantifiable = false;
      return add_assertion(c == 'b' ? RegexKind::kBoundary : RegexKind::kNotBoundary);
    }
    if ((c >= '1' && c <= '9') || c == 'k') {
      refuse("a back reference");
      return 0;
    }
    CharSet set;
    if (class_escape(&set)) return add_chars(std::move(set));
    const uint32_t v = char_escape(false);
    return add_chars(CharSet::range(v, v));
  }

  // \d \D \w \W \s \S \p{} \P{}; the backslash is consumed. False if it is something else.
  bool class_escape(CharSet* set) {
    const uint32_t c = peek();
    switch (c) {
      case 'd': *set = regex_digits(); break;
      case 'D': *set = ~regex_digits(); break;
      case 'w': *set = regex_word_chars(); break;
      case 'W': *set = ~regex_word_chars(); break;
      case 's': *set = regex_spaces(); break;
      case 'S': *set = ~regex_spaces(); break;
      case 'p':
      case 'P': {
        ++at_;
        std::string name;
        if (!take('{')) {
          fail("'{' is missing after \\p");
          return true;
        }
        while (more() && peek() != '}' && peek() < 0x80) name.push_back(static_cast<char>(text_[at_++]));
        if (!take('}')) {
          fail("'}' is missing after \\p{");
          return true;
        }
        Result<CharSet> property = unicode_property(name);
        if (!property.ok()) {
          if (error_.ok()) error_ = property.status();
          return true;
        }
        *set = c == 'p' ? property.value() : ~property.value();
        return true;
      }
      default:
        return false;
    }
    ++at_;
    return true;
  }

  std::optional<uint32_t> hex(int digits) {
    uint32_t v = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t c = peek(static_cast<size_t>(i));
      const uint32_t d = c >= '0' && c <= '9'   ? c - '0'
                         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                : 16;
      if (d > 15) return std::nullopt;
      v = v << 4 | d;
    }
    at_ += static_cast<size_t>(digits);
    return v;
  }

  uint32_t unicode_escape() {
    if (take('{')) {
      uint64_t v = 0;
      bool any = false;
      while (auto d = hex(1)) {
        v = std::min<uint64_t>(v << 4 | *d, kMaxCodePoint + 1);
        any = true;
      }
      if (!any || !take('}') || v > kMaxCodePoint) fail("\\u{...} needs a code point up to 10FFFF");
      return static_cast<uint32_t>(v);
    }
    const auto unit = hex(4);
    if (!unit) {
      fail("\\u needs four hex digits or {...}");
      return 0;
    }
    if (*unit >= 0xd800 && *unit <= 0xdbff && peek() == '\\' && peek(1) == 'u') {
      const size_t back = at_;
      at_ += 2;
      const auto low = hex(4);
      if (low && *low >= 0xdc00 && *low <= 0xdfff) return 0x10000 + ((*unit - 0xd800) << 10 | (*low - 0xdc00));
      at_ = back;
    }
    return *unit;
  }

  // One character after a backslash.
  uint32_t char_escape(bool in_class) {
    if (at_ >= text_.size()) {
      fail("the pattern ends in a backslash");
      return 0;
    }
    const uint32_t c = text_[at_++];
    switch (c) {
      case 't': return '\t';
      case 'n': return '\n';
      case 'v': return '\v';
      case 'f': return '\f';
      case 'r': return '\r';
      case 'c': {
        const uint32_t letter = peek();
        if (!((letter | 32) >= 'a' && (letter | 32) <= 'z')) {
          fail("\\c needs a letter");
          return 0;
        }
        ++at_;
        return letter & 31;
      }
      case '0':
        if (peek() >= '0' && peek() <= '9' && at_ < text_.size())
          fail("octal escapes are not allowed under the u flag");
        return 0;
      case 'x': {
        const auto v = hex(2);
        if (!v) fail("\\x needs two hex digits");
        return v.value_or(0);
      }
      case 'u':
        return unicode_escape();
      case 'b':
        if (in_class) return '\b';
        break;
      default:
        break;
    }
    // ECMA-262 allows only syntax characters here; other ASCII punctuation can mean nothing else, so it is taken too.
    if (is_syntax_char(c) || (c < 0x80 && c >= 0x20 && !is_alnum(c)) || c == '_') return c;
    --at_;
    fail("unknown escape");
    return 0;
  }

  CharSet char_class() {
    const bool negative = take('^');
    CharSet set;
    while (more() && peek() != ']') {
      CharSet left;
      uint32_t first = 0;
      const bool left_is_set = class_atom(&left, &first);
      if (more() && peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        CharSet right;
        uint32_t last = 0;
        const bool right_is_set = class_atom(&right, &last);
        if (left_is_set || right_is_set) {
          fail("a range needs characters at both ends");
        } else if (last < first) {
          fail("a range is out of order");
        } else {
          set = set | CharSet::range(first, last);
        }
      } else {
        set = set | (left_is_set ? left : CharSet::range(first, first));
      }
    }
    if (!take(']')) fail("']' is missing");
    return negative ? ~set : set;
  }

  // True if the atom is a set, false if it is one character.
  bool class_atom(CharSet* set, uint32_t* c) {
    if (!take('\\')) {
      *c = text_[at_++];
      return false;
    }
    if (peek() == 'b' && at_ < text_.size()) {
      ++at_;
      *c = '\b';
      return false;
    }
    if (at_ < text_.size() && class_escape(set)) return true;
    *c = char_escape(true);
    return false;
  }

  const Limits& limits_;
  std::vector<uint32_t> text_;
  size_t at_ = 0;
  std::vector<std::u32string> names_;
  RegexTree tree_;
  Status error_;
};

}  // namespace

CharSet regex_word_chars() {
  CharSet s = CharSet::range('0', '9');
  s.add('A', 'Z');
  s.add('_', '_');
  s.add('a', 'z');
  return s;
}

CharSet regex_digits() { return CharSet::range('0', '9'); }

CharSet regex_spaces() {
  CharSet s = CharSet::range('\t', '\r');
  for (uint32_t c : {0x20u, 0xa0u, 0x1680u}) s.add(c, c);
  s.add(0x2000, 0x200a);
  s.add(0x2028, 0x2029);
  for (uint32_t c : {0x202fu, 0x205fu, 0x3000u, 0xfeffu}) s.add(c, c);
  return s;
}

Result<RegexTree> parse_regex_tree(std::string_view pattern, const Limits& limits) {
  return Parser(limits).run(pattern);
}

}  // namespace deepinfer::grammar
