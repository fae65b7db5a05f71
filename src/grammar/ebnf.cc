#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kCountMax = 1'000'000'000;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

void append_utf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

class Reader {
 public:
  Reader(GrammarBuilder& b, std::string_view text) : b_(b), text_(text) {}

  Result<Expr> run() {
    if (text_.size() > b_.budget().limits().source_bytes_max) {
      return make_error(Code::kResourceExhausted, "the grammar has {} bytes, more than {} (limit source_bytes_max)",
                        text_.size(), b_.budget().limits().source_bytes_max);
    }
    skip_space();
    while (at_ < text_.size() && error_.ok() && b_.ok()) rule();
    if (!b_.ok()) return b_.status();  // first: reading stops in the middle of a rule then
    if (!error_.ok()) return error_;
    for (const auto& [name, rule] : rules_) {
      if (!b_.is_defined(rule))
        return make_error(Code::kInvalidArgument, "grammar: rule '{}' is used but not defined", name);
    }
    auto root = rules_.find("root");
    if (root == rules_.end())
      return make_error(Code::kInvalidArgument, "grammar: there is no rule 'root' to start with");
    return b_.ref(root->second);
  }

 private:
  // A piece of a rule: a regular set of strings as long as it can be one, so that it becomes one automaton.
  struct Piece {
    std::optional<Text> text;
    Expr expr;
  };

  Expr to_expr(const Piece& p) { return p.text ? b_.utf8(*p.text) : p.expr; }

  void fail(std::string_view what) {
    if (!error_.ok()) return;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      ++column;
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      }
    }
    error_ = make_error(Code::kInvalidArgument, "grammar, line {}, column {}: {}", line, column, what);
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  std::string_view name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Whether `name ::=` starts here.
  bool at_rule() {
    const size_t back = at_;
    const bool named = !name().empty();
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    const bool found = named && text_.substr(at_).starts_with("::=");
    at_ = back;
    return found;
  }

  Rule rule_named(std::string_view name) {
    auto it = rules_.find(name);
    if (it == rules_.end()) it = rules_.emplace(std::string(name), b_.new_rule(name)).first;
    return it->second;
  }

  void rule() {
    if (!at_rule()) return fail("a rule 'name ::= ...' was expected here");
    const std::string_view rule_name = name();
    while (peek() != ':') ++at_;
    at_ += 3;
    const Rule rule = rule_named(rule_name);
    if (b_.is_defined(rule)) return fail(fmt::format("rule '{}' is defined twice", rule_name));
    skip_space();
    const Piece body = choice(0);
    if (error_.ok()) b_.define(rule, to_expr(body));
    if (error_.ok() && at_ < text_.size() && !at_rule()) fail("unexpected character");
  }

  Piece choice(uint32_t depth) {
    if (depth > b_.budget().limits().groups_max) {
      if (error_.ok()) {
        error_ = make_error(Code::kResourceExhausted, "the grammar nests more than {} groups (limit groups_max)",
                            b_.budget().limits().groups_max);
      }
      return {};
    }
    std::vector<Piece> parts{sequence(depth)};
    while (error_.ok() && peek() == '|') {
      ++at_;
      skip_space();
      parts.push_back(sequence(depth));
    }
    if (parts.size() == 1) return parts[0];
    std::vector<Text> texts;
    std::vector<Expr> exprs;
    for (const Piece& p : parts) {
      if (p.text) texts.push_back(*p.text);
      else exprs.push_back(p.expr);
    }
    if (exprs.empty()) return {b_.any_of(texts), {}};
    if (!texts.empty()) exprs.push_back(b_.utf8(b_.any_of(texts)));
    return {std::nullopt, b_.choice(exprs)};
  }

  Piece sequence(uint32_t depth) {
    std::vector<Piece> parts;
    while (error_.ok() && b_.ok() && at_ < text_.size() && peek() != '|' && peek() != ')' && !at_rule()) {
      const Piece p = item(depth);
      if (!error_.ok()) return {};
      parts.push_back(p);
      skip_space();
    }
    std::vector<Expr> exprs;
    std::vector<Text> run;
    for (const Piece& p : parts) {
      if (p.text) {
        run.push_back(*p.text);
        continue;
      }
      if (!run.empty()) exprs.push_back(b_.utf8(b_.concat(run)));
      run.clear();
      exprs.push_back(p.expr);
    }
    if (exprs.empty()) return {b_.concat(run), {}};
    if (!run.empty()) exprs.push_back(b_.utf8(b_.concat(run)));
    return {std::nullopt, b_.sequence(exprs)};
  }

  Piece item(uint32_t depth) {
    Piece p;
    const char c = peek();
    if (c == '"') {
      ++at_;
      p = literal();
    } else if (c == '[') {
      ++at_;
      p.text = b_.chars(char_class());
    } else if (c == '.') {
      ++at_;
      p.text = b_.any_char();
    } else if (c == '(') {
      ++at_;
      skip_space();
      p = choice(depth + 1);
      if (error_.ok() && peek() != ')') fail("')' is missing");
      ++at_;
    } else if (is_name_char(c)) {
      p.expr = b_.ref(rule_named(name()));
    } else {
      fail("unexpected character");
    }
    // More than one repetition mark in a row is allowed.
    for (uint32_t marks = 0; error_.ok() && repetition(&p); ++marks) {
      if (marks > b_.budget().limits().groups_max) fail("too many repetition marks in a row");
    }
    return p;
  }

  bool repetition(Piece* p) {
    uint32_t min = 0, max = kUnbounded;
    const size_t back = at_;
    while (peek() == ' ' || peek() == '\t') ++at_;
    switch (peek()) {
      case '*': ++at_; break;
      case '+': ++at_; min = 1; break;
      case '?': ++at_; max = 1; break;
      case '{':
        ++at_;
        if (!counts(&min, &max)) return false;
        break;
      default:
        at_ = back;
        return false;
    }
    if (p->text) p->text = b_.repeat(*p->text, min, max);
    else p->expr = b_.repeat(p->expr, min, max);
    return true;
  }

  bool number(uint32_t* value) {
    if (peek() < '0' || peek() > '9') return false;
    uint64_t v = 0;
    while (peek() >= '0' && peek() <= '9')
      v = std::min<uint64_t>(v * 10 + static_cast<uint64_t>(text_[at_++] - '0'), kCountMax);
    *value = static_cast<uint32_t>(v);
    return true;
  }

  bool counts(uint32_t* min, uint32_t* max) {
    auto blank = [this] { while (peek() == ' ') ++at_; };
    blank();
    const bool lower = number(min);
    blank();
    *max = *min;
    if (peek() == ',') {
      ++at_;
      blank();
      if (!number(max)) *max = kUnbounded;
      blank();
    } else if (!lower) {
      fail("a count is missing after '{'");
      return false;
    }
    if (peek() != '}') {
      fail("'}' is missing after a count");
      return false;
    }
    ++at_;
    if (*max < *min) {
      fail("the counts in {m,n} are out of order");
      return false;
    }
    return true;
  }

  std::optional<uint32_t> hex(int digits) {
    uint32_t v = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const int d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) {
        fail("hex digits are missing in an escape");
        return std::nullopt;
      }
      v = v << 4 | static_cast<uint32_t>(d);
      ++at_;
    }
    return v;
  }

  // One character of a literal or class, escapes undone; nullopt on error.
  std::optional<uint32_t> character() {
    const auto b = static_cast<unsigned char>(peek());
    if (b == '\\') {
      ++at_;
      const char c = peek();
      ++at_;
      std::optional<uint32_t> v;
      switch (c) {
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case '\\': case '"': case '[': case ']': case '-': case '^': case '\'': case '/':
          return static_cast<uint32_t>(c);
        case 'x': v = hex(2); break;
        case 'u': v = hex(4); break;
        case 'U': v = hex(8); break;
        default:
          --at_;
          fail("unknown escape");
          return std::nullopt;
      }
      if (v && (*v > kMaxCodePoint || (*v >= 0xd800 && *v <= 0xdfff))) {
        fail("an escape names a surrogate or no code point");
        return std::nullopt;
      }
      return v;
    }
    const size_t size = b < 0x80                ? 1
                        : b >= 0xc2 && b < 0xe0 ? 2
                        : b >= 0xe0 && b < 0xf0 ? 3
                        : b >= 0xf0 && b < 0xf5 ? 4
                                                : 0;
    if (size == 0 || at_ + size > text_.size()) {
      fail("the grammar is not valid UTF-8");
      return std::nullopt;
    }
    uint32_t c = size == 1 ? b : b & (0x7fu >> size);
    for (size_t k = 1; k < size; ++k) c = c << 6 | (static_cast<unsigned char>(text_[at_ + k]) & 0x3fu);
    at_ += size;
    return c;
  }

  Piece literal() {
    std::string value;
    while (at_ < text_.size() && peek() != '"') {
      if (peek() == '\n') {
        fail("a literal is not closed on its line");
        return {};
      }
      const std::optional<uint32_t> c = character();
      if (!c) return {};
      append_utf8(*c, value);
    }
    if (at_ >= text_.size()) {
      fail("a literal is not closed");
      return {};
    }
    ++at_;
    if (!b_.find_added_tokens(value).empty()) return {std::nullopt, b_.literal(value, Spelling::kAddedTokens)};
    return {b_.text(value), {}};
  }

  CharSet char_class() {
    const bool negative = peek() == '^';
    if (negative) ++at_;
    CharSet set;
    while (error_.ok() && at_ < text_.size() && peek() != ']') {
      const std::optional<uint32_t> first = character();
      if (!first) return {};
      uint32_t last = *first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const std::optional<uint32_t> end = character();
        if (!end) return {};
        last = *end;
        if (last < *first) fail("a range is out of order");
      }
      set = set | CharSet::range(*first, last);
    }
    if (at_ >= text_.size()) fail("']' is missing");
    ++at_;
    return negative ? ~set : set;
  }

  GrammarBuilder& b_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, Rule, std::less<>> rules_;
  Status error_;
};

}  // namespace

Result<Expr> add_ebnf(GrammarBuilder& builder, std::string_view text) { return Reader(builder, text).run(); }

Result<Grammar> compile_ebnf(std::string_view text, const std::vector<AddedToken>& added, const Limits& limits) {
  GrammarBuilder builder(limits);
  builder.set_added_tokens(added);
  DI_ASSIGN_OR_RETURN(Expr root, add_ebnf(builder, text));
  return builder.finish(root, /*strict_rules=*/true);
}

}  // namespace deepinfer::grammar
