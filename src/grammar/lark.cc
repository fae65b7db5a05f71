#include "grammar/lark.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "grammar/lark_tokens.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kCountMax = 1'000'000;

// The terminals of Lark's module `common`, as regular expressions.
const std::map<std::string_view, std::string_view>& common_terminals() {
  static const std::map<std::string_view, std::string_view> kCommon = {
      {"DIGIT", "[0-9]"},
      {"HEXDIGIT", "[0-9a-fA-F]"},
      {"INT", "[0-9]+"},
      {"SIGNED_INT", "[+-]?[0-9]+"},
      {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
      {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
      {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
      {"NUMBER", R"([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
      {"SIGNED_NUMBER", R"([+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
      {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
      {"LCASE_LETTER", "[a-z]"},
      {"UCASE_LETTER", "[A-Z]"},
      {"LETTER", "[a-zA-Z]"},
      {"WORD", "[a-zA-Z]+"},
      {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
      {"WS_INLINE", R"([ \t]+)"},
      {"WS", R"([ \t\f\r\n]+)"},
      {"CR", R"(\r)"},
      {"LF", R"(\n)"},
      {"NEWLINE", R"((\r?\n)+)"},
  };
  return kCommon;
}

bool is_terminal(std::string_view name) {
  const size_t at = name.find_first_not_of('_');
  return at != std::string_view::npos && name[at] >= 'A' && name[at] <= 'Z';
}

class Compiler {
 public:
  Compiler(GrammarBuilder& b, std::string_view source, std::vector<LarkToken> tokens)
      : b_(b), source_(source), tokens_(std::move(tokens)) {}

  Result<Expr> run() {
    while (error_.ok() && peek().kind != LarkKind::kEnd) statement();
    if (!error_.ok()) return error_;
    if (!rules_.contains("start"))
      return make_error(Code::kInvalidArgument, "Lark grammar: there is no rule 'start' to begin with");
    std::vector<Text> ignored;
    for (size_t at : ignored_) {
      at_ = at;
      ignored.push_back(whole_body(true).text.value_or(b_.no_text()));
    }
    if (!ignored.empty()) ignore_ = b_.repeat(b_.any_of(ignored), 0, kUnbounded);
    for (auto& [name, d] : rules_) {
      at_ = d.body;
      const Expr body = expr_of(whole_body(false));
      if (!b_.ok()) return b_.status();
      if (!error_.ok()) return error_;
      b_.define(d.rule, body);
    }
    const Expr start = b_.ref(rules_.find("start")->second.rule);
    return ignore_ ? b_.sequence({start, b_.utf8(*ignore_)}) : start;
  }

 private:
  struct Definition {
    size_t body;  // its first token
    Rule rule;
    std::optional<Text> text;  // of a terminal, once it is known
    bool open = false;
  };
  // A regular set of strings as long as it can be one.
  struct Piece {
    std::optional<Text> text;
    Expr expr;
  };

  const LarkToken& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool at_mark(std::string_view mark, size_t ahead = 0) const {
    return peek(ahead).kind == LarkKind::kMark && peek(ahead).text == mark;
  }
  bool take_mark(std::string_view mark) {
    if (!at_mark(mark)) return false;
    ++at_;
    return true;
  }
  Piece fail(std::string_view what) {
    if (error_.ok()) error_ = lark_error(source_, peek().at, what);
    return {b_.no_text(), {}};
  }
  Piece refuse(std::string_view what) {
    if (error_.ok()) error_ = make_error(Code::kUnsupported, "Lark grammar: {} not supported", what);
    return {b_.no_text(), {}};
  }

  // Tokens up to the name's colon, if a definition starts here; else 0.
  size_t definition_head() const {
    size_t n = 0;
    if (!peek().leads) return 0;
    while (at_mark("?", n) || at_mark("!", n)) ++n;
    if (peek(n).kind != LarkKind::kName) return 0;
    ++n;
    if (at_mark("{", n)) return n;  // a template; refused by statement()
    if (at_mark(".", n)) n += at_mark("-", n + 1) ? 3 : 2;
    return at_mark(":", n) ? n : 0;
  }

  void skip_body() {
    while (peek().kind != LarkKind::kEnd && peek().kind != LarkKind::kDirective && definition_head() == 0) ++at_;
  }

  void statement() {
    if (peek().kind == LarkKind::kDirective) return directive();
    const size_t head = definition_head();
    if (head == 0) return void(fail("a definition 'name: ...' was expected here"));
    while (at_mark("?") || at_mark("!")) ++at_;
    const std::string name = peek().text;
    if (at_mark("{", 1)) return void(refuse(fmt::format("templates ('{}') are", name)));
    const bool terminal = is_terminal(name);
    auto& known = terminal ? terminals_ : rules_;
    if (known.contains(name)) return void(fail(fmt::format("'{}' is defined twice", name)));
    while (!take_mark(":")) ++at_;
    known[name] = {at_, terminal ? Rule{} : b_.new_rule(name), std::nullopt};
    skip_body();
  }

  void directive() {
    const std::string what = peek().text;
    ++at_;
    if (what == "%ignore") {
      ignored_.push_back(at_);
      return skip_body();
    }
    if (what != "%import") return void(refuse(fmt::format("{} is", what)));
    if (peek().text != "common" || !at_mark(".", 1)) return void(refuse("%import from other modules than common is"));
    at_ += 2;
    std::vector<std::string> names;
    const bool list = take_mark("(");
    do {
      names.push_back(peek().text);
      ++at_;
    } while (list && take_mark(","));
    if (list && !take_mark(")")) return void(fail("a closing parenthesis was expected"));
    std::string as = names[0];
    if (!list && take_mark("->")) {
      as = peek().text;
      ++at_;
    }
    for (const std::string& name : names) {
      auto it = common_terminals().find(name);
      if (it == common_terminals().end()) return void(refuse(fmt::format("%import of common.{} is", name)));
      terminals_[list ? name : as] = {0, {}, regex(it->second)};
    }
  }

  Text regex(std::string_view pattern) {
    auto text = parse_regex(b_, pattern, RegexMode::kWhole);
    if (text.ok()) return text.value();
    if (error_.ok()) error_ = text.status().with_context("Lark grammar");
    return b_.no_text();
  }

  Text terminal(const std::string& name) {
    auto it = terminals_.find(name);
    if (it == terminals_.end()) return *fail(fmt::format("terminal '{}' is not defined", name)).text;
    Definition& d = it->second;
    if (d.text) return *d.text;
    if (d.open) return *refuse(fmt::format("terminal '{}', which needs itself, is", name)).text;
    d.open = true;
    const size_t back = at_;
    at_ = d.body;
    const Text text = whole_body(true).text.value_or(b_.no_text());
    at_ = back;
    d.open = false;
    d.text = text;
    return text;
  }

  Text string(const LarkToken& t) {
    if (t.flags.empty()) return b_.text(t.text);
    std::vector<Text> parts;
    for (char c : t.text) {
      const char folded = static_cast<char>(c | 32);
      const bool letter = folded >= 'a' && folded <= 'z';
      if (static_cast<unsigned char>(c) >= 0x80)
        return *refuse("the flag i on a string with characters outside ASCII is").text;
      const auto low = static_cast<uint32_t>(letter ? folded : c);
      CharSet set = CharSet::range(low, low);
      if (letter) set.add(low - 32, low - 32);
      parts.push_back(b_.chars(set));
    }
    return b_.concat(parts);
  }

  Expr expr_of(const Piece& p) { return p.text ? b_.utf8(*p.text) : p.expr; }

  // A terminal where a rule uses it.
  Piece used(Text text, bool in_terminal) {
    if (in_terminal || !ignore_) return {text, {}};
    return {std::nullopt, b_.sequence({b_.utf8(*ignore_), b_.utf8(text)})};
  }

  Piece whole_body(bool in_terminal) {
    const Piece p = choice(0, in_terminal);
    const bool ends = peek().kind == LarkKind::kEnd || peek().kind == LarkKind::kDirective || definition_head() != 0;
    return ends || !error_.ok() || !b_.ok() ? p : fail("the end of the definition was expected here");
  }

  Piece choice(uint32_t depth, bool in_terminal) {
    if (depth > b_.budget().limits().groups_max) return fail("too many groups inside each other (limit groups_max)");
    std::vector<Piece> parts;
    do {
      parts.push_back(sequence(depth, in_terminal));
      if (take_mark("->")) ++at_;
    } while (error_.ok() && b_.ok() && take_mark("|"));
    if (parts.size() == 1) return parts[0];
    if (std::all_of(parts.begin(), parts.end(), [](const Piece& p) { return p.text.has_value(); })) {
      std::vector<Text> texts;
      for (const Piece& p : parts) texts.push_back(*p.text);
      return {b_.any_of(texts), {}};
    }
    std::vector<Expr> ways;
    for (const Piece& p : parts) ways.push_back(expr_of(p));
    return {std::nullopt, b_.choice(ways)};
  }

  bool at_end_of_sequence() const {
    const LarkToken& t = peek();
    if (t.kind == LarkKind::kEnd || t.kind == LarkKind::kDirective || definition_head() != 0) return true;
    return t.kind == LarkKind::kMark && t.text != "(" && t.text != "[";
  }

  Piece sequence(uint32_t depth, bool in_terminal) {
    std::vector<Piece> parts;
    while (error_.ok() && b_.ok() && !at_end_of_sequence()) parts.push_back(counted(depth, in_terminal));
    if (parts.empty()) return {b_.text(""), {}};
    if (parts.size() == 1) return parts[0];
    if (std::all_of(parts.begin(), parts.end(), [](const Piece& p) { return p.text.has_value(); })) {
      std::vector<Text> texts;
      for (const Piece& p : parts) texts.push_back(*p.text);
      return {b_.concat(texts), {}};
    }
    std::vector<Expr> all;
    for (const Piece& p : parts) all.push_back(expr_of(p));
    return {std::nullopt, b_.sequence(all)};
  }

  std::optional<uint32_t> number() {
    if (peek().kind != LarkKind::kNumber || peek().text.size() > 7 || std::stoul(peek().text) > kCountMax) {
      fail(fmt::format("a count of at most {} was expected", kCountMax));
      return std::nullopt;
    }
    return static_cast<uint32_t>(std::stoul(tokens_[at_++].text));
  }

  Piece counted(uint32_t depth, bool in_terminal) {
    const Piece p = atom(depth, in_terminal);
    uint32_t min = 1, max = 1;
    if (definition_head() != 0) return p;  // the mark belongs to the next definition
    if (take_mark("?")) {
      min = 0;
    } else if (take_mark("*")) {
      min = 0;
      max = kUnbounded;
    } else if (take_mark("+")) {
      max = kUnbounded;
    } else if (take_mark("~")) {
      const auto low = number();
      const auto high = low && take_mark("..") ? number() : low;
      if (!high) return p;
      if (*high < *low) return fail("the second count is smaller than the first");
      min = *low;
      max = *high;
    } else {
      return p;
    }
    if (p.text) return {b_.repeat(*p.text, min, max), {}};
    return {std::nullopt, b_.repeat(p.expr, min, max)};
  }

  Piece atom(uint32_t depth, bool in_terminal) {
    const LarkToken& t = peek();
    if (take_mark("(")) {
      const Piece p = choice(depth + 1, in_terminal);
      return take_mark(")") || !error_.ok() ? p : fail("a closing parenthesis was expected");
    }
    if (take_mark("[")) {
      const Piece p = choice(depth + 1, in_terminal);
      if (!take_mark("]")) return fail("a closing bracket was expected");
      if (p.text) return {b_.repeat(*p.text, 0, 1), {}};
      return {std::nullopt, b_.optional(p.expr)};
    }
    ++at_;
    switch (t.kind) {
      case LarkKind::kString:
        if (at_mark("..")) return range(t, in_terminal);
        return used(string(t), in_terminal);
      case LarkKind::kRegexp:
        if (!t.flags.empty()) return refuse(fmt::format("the flags '{}' of a regular expression are", t.flags));
        return used(regex(t.text), in_terminal);
      case LarkKind::kName: {
        if (at_mark("{")) return refuse(fmt::format("templates ('{}') are", t.text));
        if (is_terminal(t.text)) return used(terminal(t.text), in_terminal);
        auto it = rules_.find(t.text);
        if (it == rules_.end()) return fail(fmt::format("rule '{}' is not defined", t.text));
        if (in_terminal) return fail(fmt::format("a terminal uses the rule '{}'", t.text));
        return {std::nullopt, b_.ref(it->second.rule)};
      }
      default:
        return fail("unexpected token");
    }
  }

  Piece range(const LarkToken& first, bool in_terminal) {
    ++at_;
    const LarkToken& last = peek();
    if (last.kind != LarkKind::kString || first.text.size() != 1 || last.text.size() != 1)
      return refuse("a range of other than single ASCII characters is");
    ++at_;
    const auto low = static_cast<unsigned char>(first.text[0]), high = static_cast<unsigned char>(last.text[0]);
    if (low > high || high >= 0x80)
      return refuse("a range of other than single ASCII characters, the smaller one first, is");
    return used(b_.chars(CharSet::range(low, high)), in_terminal);
  }

  GrammarBuilder& b_;
  std::string_view source_;
  std::vector<LarkToken> tokens_;
  size_t at_ = 0;
  Status error_;
  std::map<std::string, Definition, std::less<>> rules_, terminals_;
  std::vector<size_t> ignored_;
  std::optional<Text> ignore_;
};

}  // namespace

Result<Expr> add_lark(GrammarBuilder& builder, std::string_view text) {
  if (text.size() > builder.budget().limits().source_bytes_max) {
    return make_error(Code::kResourceExhausted, "the grammar has {} bytes, more than {} (limit source_bytes_max)",
                      text.size(), builder.budget().limits().source_bytes_max);
  }
  DI_ASSIGN_OR_RETURN(std::vector<LarkToken> tokens, read_lark_tokens(text));
  return Compiler(builder, text, std::move(tokens)).run();
}

}  // namespace deepinfer::grammar
