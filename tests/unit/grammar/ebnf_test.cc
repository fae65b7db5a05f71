// GBNF grammars: syntax, what is refused, left recursion, added tokens in literals, and hostile input.
#include "grammar/ebnf.h"

#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

Constraint ebnf(std::string source) { return {ConstraintKind::kEbnf, std::move(source)}; }

std::string error_of(const std::string& source, const Limits& limits = {}) {
  auto r = compile_constraint(ebnf(source), bundled_vocabulary(), limits);
  return r.ok() ? "" : r.status().to_string();
}

TEST(Ebnf, RefusesWithPlaceAndReason) {
  EXPECT_NE(error_of("root ::= \"a\" missing").find("'missing'"), std::string::npos);
  EXPECT_NE(error_of("start ::= \"a\"").find("'root'"), std::string::npos);
  EXPECT_NE(error_of("root ::= root").find("no finite text"), std::string::npos);
  EXPECT_NE(error_of("root ::= \"a\" x\nx ::= \"b\" x").find("'x'"), std::string::npos);
  EXPECT_NE(error_of("root ::= \"a\"\nroot ::= \"b\"").find("defined twice"), std::string::npos);
  EXPECT_NE(error_of("root ::= \"a\n\"").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("root ::=\n  \"a\" )").find("line 2"), std::string::npos);
  for (const char* bad :
       {"root ::= [a", "root ::= (\"a\"", "root ::= \"a\"{3,1}", "root ::= \"a\"{", "root ::= \"\\q\"", "root ::= *",
        "root", "root ::= \"\\ud800\"", "::= \"a\"", "root ::= [b-a]", "root ::= \"a\" {2", "\xff"}) {
    EXPECT_NE(error_of(bad), "") << bad;
  }
}

TEST(Ebnf, LeftRecursionOfAllKinds) {
  const auto direct = compile(ebnf("root ::= root \"+\" [0-9]+ | [0-9]+"));
  EXPECT_TRUE(matches(direct, "1+2+33"));
  EXPECT_FALSE(matches(direct, "1+"));
  const auto indirect = compile(ebnf("root ::= a \"x\" | \"r\"\na ::= b \"y\" | \"a\"\nb ::= root \"z\" | \"b\""));
  for (const char* good : {"r", "ax", "byx", "rzyx", "axzyx", "byxzyx"}) EXPECT_TRUE(matches(indirect, good)) << good;
  for (const char* bad : {"", "x", "bx", "rzx", "ay"}) EXPECT_FALSE(matches(indirect, bad)) << bad;
  const auto hidden = compile(ebnf("root ::= opt root \"b\" | \"a\"\nopt ::= \"o\"?"));
  for (const char* good : {"a", "ab", "abb", "oab", "ooabb", "oabb"}) EXPECT_TRUE(matches(hidden, good)) << good;
  for (const char* bad : {"b", "ooab", "o"}) EXPECT_FALSE(matches(hidden, bad)) << bad;
  const auto nullable = compile(ebnf("root ::= root root | \"(\" root \")\" | \"\""));
  for (const char* good : {"", "()", "()()", "(()())()"}) EXPECT_TRUE(matches(nullable, good)) << good;
  for (const char* bad : {"(", ")", "())"}) EXPECT_FALSE(matches(nullable, bad)) << bad;
  const auto cycle = compile(ebnf("root ::= a | \"x\"\na ::= root | root \"y\""));
  for (const char* good : {"x", "xy", "xyyy"}) EXPECT_TRUE(matches(cycle, good)) << good;
  EXPECT_FALSE(matches(cycle, "y"));
}

// Random grammars, judged by a plain recogniser over all splits.
struct TinyGrammar {
  // rules[r] = alternatives; a part is a letter 'a'..'c' or a rule 'A'..
  std::vector<std::vector<std::string>> rules;

  std::string text() const {
    std::string out;
    for (size_t r = 0; r < rules.size(); ++r) {
      out += (r == 0 ? std::string("root") : std::string(1, static_cast<char>('A' + r))) + " ::= ";
      for (size_t k = 0; k < rules[r].size(); ++k) {
        if (k > 0) out += " | ";
        if (rules[r][k].empty()) out += "\"\"";
        for (char c : rules[r][k]) {
          if (c == 'A') out += "root ";
          else if (c > 'A' && c <= 'Z') out += std::string(1, c) + " ";
          else out += std::string("\"") + c + "\" ";
        }
      }
      out += "\n";
    }
    return out;
  }

  // Which rules derive which substrings, to a fixed point.
  bool derives(const std::string& s) const {
    const size_t n = s.size() + 1;
    std::vector<bool> known(rules.size() * n * n);
    const auto at = [&](size_t r, size_t i, size_t j) { return (r * n + i) * n + j; };
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t r = 0; r < rules.size(); ++r) {
        for (size_t i = 0; i < n; ++i) {
          for (const std::string& alternative : rules[r]) {
            std::vector<bool> reached(n);
            reached[i] = true;
            for (char c : alternative) {
              std::vector<bool> next(n);
              for (size_t p = i; p < n; ++p) {
                if (!reached[p]) continue;
                if (c >= 'a') {
                  if (p < s.size() && s[p] == c) next[p + 1] = true;
                } else {
                  for (size_t q = p; q < n; ++q) next[q] = next[q] || known[at(static_cast<size_t>(c - 'A'), p, q)];
                }
              }
              reached = next;
            }
            for (size_t j = i; j < n; ++j) {
              if (reached[j] && !known[at(r, i, j)]) known[at(r, i, j)] = changed = true;
            }
          }
        }
      }
    }
    return known[at(0, 0, s.size())];
  }
};

TEST(Ebnf, RandomGrammarsAgreeWithAPlainRecogniser) {
  std::mt19937_64 random(11);
  int compiled_count = 0, accepted = 0;
  for (int round = 0; round < 600; ++round) {
    TinyGrammar g;
    g.rules.resize(1 + random() % 3);
    for (auto& rule : g.rules) {
      rule.resize(1 + random() % 3);
      for (std::string& alternative : rule) {
        for (size_t n = random() % 4; n > 0; --n) {
          alternative +=
              random() % 2 ? static_cast<char>('a' + random() % 3) : static_cast<char>('A' + random() % g.rules.size());
        }
      }
    }
    auto r = compile_constraint(ebnf(g.text()), bundled_vocabulary());
    if (!r.ok()) continue;  // rules that produce nothing
    ++compiled_count;
    for (int k = 0; k < 40; ++k) {
      std::string s;
      for (size_t n = random() % 7; n > 0; --n) s += static_cast<char>('a' + random() % 3);
      const bool right = g.derives(s);
      accepted += right;
      ASSERT_EQ(matches(r.value(), s), right) << g.text() << "on '" << s << "'";
    }
  }
  EXPECT_GT(compiled_count, 200);
  EXPECT_GT(accepted, 500);
}

TEST(Ebnf, LiteralsUseAddedTokensAndClassesDoNot) {
  const auto& v = *bundled_vocabulary();
  const auto marker = static_cast<uint32_t>(*bundled_tokenizer().find_added("｜DSML｜"));
  Matcher m(compile(ebnf("root ::= \"<｜DSML｜ x\" [^a]*")));
  EXPECT_FALSE(m.accept_bytes("<｜"));  // not in ordinary tokens
  ASSERT_TRUE(m.accept_bytes("<"));
  auto mask = mask_of(m);
  EXPECT_TRUE(has_bit(mask, marker));
  int others = 0;
  for (uint32_t t = 0; t < v.size(); ++t) others += has_bit(mask, t) && t != marker;
  EXPECT_EQ(others, 0);
  ASSERT_TRUE(m.accept(marker));
  ASSERT_TRUE(m.accept_bytes(" x"));
  mask = mask_of(m);
  for (const AddedToken& t : v.added_tokens()) EXPECT_FALSE(has_bit(mask, t.token)) << t.text;
}

TEST(Ebnf, HostileGrammarsEndInTime) {
  EXPECT_NE(error_of("root ::= " + std::string(100'000, '(')).find("groups_max"), std::string::npos);
  EXPECT_NE(error_of(std::string(11 << 20, '#')).find("source_bytes_max"), std::string::npos);
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 20'000; ++i)
    chain += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + " | \"b\"\n";
  chain += "r20000 ::= \"c\"\n";
  EXPECT_EQ(error_of(chain), "");
  std::string wide = "root ::= \"x\"";
  for (int i = 0; i < 50'000; ++i) wide += " | \"w" + std::to_string(i) + "\"";
  EXPECT_EQ(error_of(wide), "");
  std::string circle;  // left recursion through 200 rules
  for (int i = 0; i < 200; ++i) {
    circle += (i == 0 ? std::string("root") : "r" + std::to_string(i)) +
              " ::= " + (i == 199 ? "root" : "r" + std::to_string(i + 1)) + " \"a\" | \"b\"\n";
  }
  EXPECT_NE(error_of(circle).find("left-recursive"), std::string::npos);
  Limits quick;
  quick.compile_ms = 1;  // of CPU time
  std::string many = "root ::= r0\n";
  for (int i = 0; i < 100'000; ++i) many += "r" + std::to_string(i) + " ::= \"" + std::to_string(i) + "\"\n";
  EXPECT_NE(error_of(many, quick).find("compile_ms"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::grammar
