#include "grammar/regex.h"

#include <array>
#include <optional>

#include "grammar/regex_parser.h"

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kUnrollMax = 16;

// What stands before the current place: nothing, a word character, another character.
enum Left { kStart, kWord, kOther };
// For each Left, the texts from the current place to the end.
using Rests = std::array<Text, 3>;

class Translator {
 public:
  Translator(GrammarBuilder& b, const RegexTree& tree)
      : b_(b),
        tree_(tree),
        all_(b.any_text()),
        word_(b.chars(regex_word_chars())),
        other_(b.chars(~regex_word_chars())),
        plain_(tree.nodes.size(), Text{UINT32_MAX}) {}

  Result<Text> whole() {
    const Text end = b_.text("");
    const Rests r = rest(tree_.root, {end, end, end});
    return finish(r[kStart]);
  }

  // The pattern may match anywhere: some text before it, and some after.
  Result<Text> search() {
    if (!tree_.nodes[tree_.root].asserts) return finish(b_.concat({all_, plain(tree_.root), all_}));
    std::vector<Text> ways;
    const RegexNode& root = tree_.nodes[tree_.root];
    const std::vector<uint32_t> alternatives =
        root.kind == RegexKind::kChoice ? root.children : std::vector<uint32_t>{tree_.root};
    for (uint32_t alternative : alternatives) {
      std::array<Text, 3> before = {b_.text(""), b_.concat({all_, word_}), b_.concat({all_, other_})};
      const Rests r = after_look_behind(alternative, before);
      for (int left = 0; left < 3; ++left) ways.push_back(b_.concat({before[left], r[left]}));
    }
    return finish(b_.any_of(ways));
  }

 private:
  Result<Text> finish(Text t) {
    if (!error_.ok()) return error_;
    if (!b_.ok()) return b_.status();
    return t;
  }

  Rests refuse(std::string_view what) {
    if (error_.ok()) error_ = make_error(Code::kUnsupported, "regular expression: {} is not supported", what);
    return {b_.no_text(), b_.no_text(), b_.no_text()};
  }

  // A part without assertions.
  Text plain(uint32_t id) {
    if (plain_[id].id != UINT32_MAX) return plain_[id];
    const RegexNode& n = tree_.nodes[id];
    Text out = b_.text("");
    std::vector<Text> parts;
    switch (n.kind) {
      case RegexKind::kChars:
        out = b_.chars(n.chars);
        break;
      case RegexKind::kConcat:
      case RegexKind::kChoice:
        for (uint32_t c : n.children) parts.push_back(plain(c));
        out = n.kind == RegexKind::kConcat ? b_.concat(parts) : b_.any_of(parts);
        break;
      case RegexKind::kRepeat:
        out = b_.repeat(plain(n.children[0]), n.min, n.max);
        break;
      default:
        break;
    }
    return plain_[id] = out;
  }

  Text and_end(Text t) {
    if (t == all_ || t == b_.text("")) return b_.text("");
    return b_.all_of({t, b_.text("")});
  }

  static bool same(const Rests& r) { return r[0] == r[1] && r[1] == r[2]; }

  Rests rest(uint32_t id, const Rests& k) {
    const RegexNode& n = tree_.nodes[id];
    if (!error_.ok() || !b_.ok()) return k;
    if (!n.asserts) return plain_rest(id, k);
    switch (n.kind) {
      case RegexKind::kConcat: {
        Rests r = k;
        for (size_t i = n.children.size(); i-- > 0;) {
          size_t begin = i;  // parts without assertions go together: texts must not nest as deep as the pattern is long
          while (same(r) && begin > 0 && !tree_.nodes[n.children[begin]].asserts &&
                 !tree_.nodes[n.children[begin - 1]].asserts)
            --begin;
          if (begin == i) {
            r = rest(n.children[i], r);
            continue;
          }
          std::vector<Text> run;
          for (size_t c = begin; c <= i; ++c) run.push_back(plain(n.children[c]));
          run.push_back(r[0]);
          r.fill(b_.concat(run));
          i = begin;
        }
        return r;
      }
      case RegexKind::kChoice: {
        std::array<std::vector<Text>, 3> ways;
        for (uint32_t c : n.children) {
          const Rests r = rest(c, k);
          for (int left = 0; left < 3; ++left) ways[left].push_back(r[left]);
        }
        return {b_.any_of(ways[0]), b_.any_of(ways[1]), b_.any_of(ways[2])};
      }
      case RegexKind::kBegin:
        return {k[kStart], b_.no_text(), b_.no_text()};
      case RegexKind::kEnd:
        return {and_end(k[0]), and_end(k[1]), and_end(k[2])};
      case RegexKind::kBoundary:
      case RegexKind::kNotBoundary:
        return boundary(n.kind == RegexKind::kBoundary, k);
      case RegexKind::kLook:
        if (n.behind) return refuse("a look-behind that is not the first thing in a searched pattern");
        return look_ahead(n, k);
      case RegexKind::kRepeat:
        return repeat(n, k);
      default:
        return k;
    }
  }

  Rests plain_rest(uint32_t id, const Rests& k) {
    const RegexNode& n = tree_.nodes[id];
    if (n.kind == RegexKind::kEmpty) return k;
    const Text t = plain(id);
    if (same(k)) {
      const Text r = b_.concat({t, k[0]});
      return {r, r, r};
    }
    if (n.kind == RegexKind::kChars) {
      const Text r = b_.any_of({b_.concat({b_.chars(n.chars & regex_word_chars()), k[kWord]}),
                                b_.concat({b_.chars(n.chars & ~regex_word_chars()), k[kOther]})});
      return {r, r, r};
    }
    // What follows depends on the last character that this part takes, or on what stood before if it takes none.
    const Text r = b_.any_of({b_.concat({b_.all_of({t, b_.concat({all_, word_})}), k[kWord]}),
                              b_.concat({b_.all_of({t, b_.concat({all_, other_})}), k[kOther]})});
    if (!n.nullable) return {r, r, r};
    return {b_.any_of({r, k[0]}), b_.any_of({r, k[1]}), b_.any_of({r, k[2]})};
  }

  Rests boundary(bool wanted, const Rests& k) {
    const Text word_next = b_.concat({word_, all_});
    const Text other_next = b_.any_of({b_.text(""), b_.concat({other_, all_})});
    Rests r;
    for (int left = 0; left < 3; ++left) {
      const bool word_wanted = (left == kWord) != wanted;
      r[left] = b_.all_of({k[left], word_wanted ? word_next : other_next});
    }
    return r;
  }

  Rests look_ahead(const RegexNode& n, const Rests& k) {
    const Rests ahead = rest(n.children[0], {all_, all_, all_});
    Rests r;
    for (int left = 0; left < 3; ++left) {
      r[left] = b_.all_of({k[left], n.negative ? b_.complement(ahead[left]) : ahead[left]});
    }
    return r;
  }

  Rests repeat(const RegexNode& n, const Rests& k) {
    const RegexNode& unit = tree_.nodes[n.children[0]];
    if (n.max > kUnrollMax) {
      if (same(k) && k[0] == b_.text("")) {
        if (auto r = guarded_chars(n, unit)) return {*r, *r, *r};
      }
      return refuse("an assertion inside a repetition");
    }
    const Rests none = {b_.no_text(), b_.no_text(), b_.no_text()};
    Rests r = none;
    for (uint32_t i = n.max + 1; i-- > 0;) {
      Rests next = i < n.max ? rest(n.children[0], r) : none;
      for (int left = 0; left < 3 && i >= n.min; ++left) next[left] = b_.any_of({next[left], k[left]});
      r = next;
    }
    return r;
  }

  // ((?!x)c)* up to the end of the text, for one character c: no place in the text may start with x.
  std::optional<Text> guarded_chars(const RegexNode& n, const RegexNode& unit) {
    if (unit.kind != RegexKind::kConcat || unit.children.size() != 2) return std::nullopt;
    const RegexNode& look = tree_.nodes[unit.children[0]];
    const RegexNode& chars = tree_.nodes[unit.children[1]];
    if (look.kind != RegexKind::kLook || look.behind || chars.kind != RegexKind::kChars) return std::nullopt;
    const RegexNode& inner = tree_.nodes[look.children[0]];
    if (inner.asserts) return std::nullopt;
    Text bad = b_.concat({plain(look.children[0]), all_});
    if (!look.negative) bad = b_.complement(bad);
    bad = b_.all_of({bad, b_.repeat(b_.any_char(), 1, kUnbounded)});
    return b_.all_of({b_.repeat(b_.chars(chars.chars), n.min, n.max), b_.complement(b_.concat({all_, bad}))});
  }

  // Takes a look-behind at the start of an alternative into what stands before it.
  Rests after_look_behind(uint32_t id, std::array<Text, 3>& before) {
    const Rests all = {all_, all_, all_};
    const RegexNode& n = tree_.nodes[id];
    const bool sequence = n.kind == RegexKind::kConcat;
    const RegexNode& head = sequence ? tree_.nodes[n.children[0]] : n;
    if (head.kind != RegexKind::kLook || !head.behind) return rest(id, all);
    if (tree_.nodes[head.children[0]].asserts) return refuse("an assertion inside a look-behind");
    Text wanted = b_.concat({all_, plain(head.children[0])});
    if (head.negative) wanted = b_.complement(wanted);
    for (Text& t : before) t = b_.all_of({t, wanted});
    Rests r = all;
    for (size_t i = sequence ? n.children.size() : 0; i-- > 1;) r = rest(n.children[i], r);
    return r;
  }

  GrammarBuilder& b_;
  const RegexTree& tree_;
  Text all_, word_, other_;
  std::vector<Text> plain_;
  Status error_;
};

}  // namespace

Result<Text> parse_regex(GrammarBuilder& builder, std::string_view pattern, RegexMode mode) {
  DI_ASSIGN_OR_RETURN(RegexTree tree, parse_regex_tree(pattern, builder.budget().limits()));
  Translator translator(builder, tree);
  return mode == RegexMode::kWhole ? translator.whole() : translator.search();
}

}  // namespace deepinfer::grammar
