// Masks, positions, rollback, fork, saved states, forced text, limits; on the bundled vocabulary.
#include "grammar/matcher.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "grammar/regex.h"
#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

const char kJsonGrammar[] = R"g(root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \n]{0,20}
)g";
const char kArithmetic[] = R"g(root ::= expr
expr ::= expr "+" term | expr "-" term | term
term ::= term "*" fac | fac
fac ::= "(" expr ")" | [0-9]+
)g";
const char kSchema[] =
    R"g({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12},
  "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}, "n": {"type": "integer", "minimum": -5, "maximum": 300},
  "when": {"type": "string", "format": "date"}, "any": {}}, "required": ["name"]})g";
const char kTags[] = R"g({"items": [{"begin": "<｜DSML｜ invoke name=\"f\">\n", "content": {"regex": "[0-9]{1,3}"},
  "end": "</｜DSML｜ invoke>"}], "triggers": ["<｜DSML｜ invoke"]})g";

std::vector<Constraint> constraints() {
  return {{ConstraintKind::kEbnf, kJsonGrammar},
          {ConstraintKind::kEbnf, kArithmetic},
          {ConstraintKind::kEbnf, "root ::= \"\" | \"a\" root \"a\" | \"b\" root \"b\" | \"ab\""},
          {ConstraintKind::kJsonSchema, kSchema},
          {ConstraintKind::kJsonObject, ""},
          {ConstraintKind::kRegex, "(\\w+@\\w+\\.(com|org), ){0,3}[^\\n\"]{2,40}"},
          {ConstraintKind::kTags, kTags}};
}

// The mask must hold exactly the tokens that accept takes.
void expect_mask_is_accept(Matcher& m, const std::string& where) {
  const auto& v = *bundled_vocabulary();
  const std::vector<uint32_t> mask = mask_of(m);
  for (uint32_t t = 0; t < v.size(); ++t) {
    const bool accepted = m.accept(t);
    if (accepted) m.rollback(1);
    ASSERT_EQ(has_bit(mask, t), accepted) << where << " token " << t << " '" << v.bytes(t) << "'";
  }
  EXPECT_EQ(has_bit(mask, v.end_tokens()[0]), m.is_complete()) << where;
}

TEST(Matcher, MaskIsAcceptForAllTokens) {
  std::mt19937_64 random(1);
  for (const Constraint& c : constraints()) {
    const auto compiled = compile(c);
    for (int i = 0; i < 6; ++i) {
      const Walk walk = random_walk(compiled, random, 12, 40);
      Matcher m(compiled);
      for (size_t k = 0; k < walk.tokens.size(); ++k) {
        if (k % 5 == static_cast<size_t>(i) % 5) expect_mask_is_accept(m, walk.text);
        ASSERT_TRUE(m.accept(walk.tokens[k]));
      }
      expect_mask_is_accept(m, walk.text);
    }
  }
}

TEST(Matcher, TokensAndBytesAgree) {
  std::mt19937_64 random(2);
  const auto& v = *bundled_vocabulary();
  for (const Constraint& c : constraints()) {
    const auto compiled = compile(c);
    for (int i = 0; i < 10; ++i) {
      const Walk walk = random_walk(compiled, random, 15, 60);
      Matcher by_token(compiled), by_byte(compiled);
      for (uint32_t t : walk.tokens) {
        ASSERT_TRUE(by_token.accept(t));
        if (v.is_added(t)) {
          ASSERT_TRUE(by_byte.accept(t));
        } else {
          for (char b : v.bytes(t)) ASSERT_TRUE(by_byte.accept_bytes(std::string_view(&b, 1))) << walk.text;
        }
        ASSERT_EQ(mask_of(by_token), mask_of(by_byte)) << walk.text;
      }
    }
  }
}

TEST(Matcher, AThousandWalksParse) {
  std::mt19937_64 random(3);
  for (const Constraint& c : constraints()) {
    const auto compiled = compile(c);
    int ended = 0;
    for (int i = 0; i < 1000; ++i) {
      const Walk walk = random_walk(compiled, random, random() % 25, 150);
      if (!walk.ended) continue;
      ++ended;
      const auto fresh = i % 100 == 0 ? compile(c) : compiled;
      Matcher m(fresh);
      for (uint32_t t : walk.tokens) ASSERT_TRUE(m.accept(t)) << walk.text;
      ASSERT_TRUE(m.is_complete()) << walk.text;
    }
    EXPECT_GT(ended, 300) << c.source.substr(0, 60);
  }
}

TEST(Matcher, RollbackAndForkEqualAFreshRun) {
  std::mt19937_64 random(4);
  for (const Constraint& c : constraints()) {
    const auto compiled = compile(c);
    const Walk walk = random_walk(compiled, random, 30, 120);
    Matcher m(compiled);
    std::vector<std::vector<uint32_t>> masks;
    for (uint32_t t : walk.tokens) {
      masks.push_back(mask_of(m));
      ASSERT_TRUE(m.accept(t));
    }
    masks.push_back(mask_of(m));
    for (int i = 0; i < 30; ++i) {
      Matcher f = m.fork();
      const size_t back = random() % (walk.tokens.size() + 1);
      f.rollback(back);
      EXPECT_EQ(f.length(), walk.tokens.size() - back);
      for (size_t k = f.length(); k < walk.tokens.size(); ++k) {
        ASSERT_EQ(mask_of(f), masks[k]);
        ASSERT_TRUE(f.accept(walk.tokens[k]));
      }
      ASSERT_EQ(mask_of(f), masks.back());
      ASSERT_EQ(mask_of(m), masks.back());
    }
  }
}

TEST(Matcher, SavedStatesComeBack) {
  std::mt19937_64 random(5);
  for (const Constraint& c : constraints()) {
    const auto compiled = compile(c);
    const Walk walk = random_walk(compiled, random, 20, 80);
    Matcher m(compiled);
    for (uint32_t t : walk.tokens) {
      auto restored = Matcher::restore(compile(c), m.serialise());
      ASSERT_TRUE(restored.ok()) << restored.status().to_string();
      ASSERT_EQ(mask_of(restored.value()), mask_of(m));
      ASSERT_TRUE(m.accept(t));
    }
    const std::string saved = m.serialise();
    for (size_t n = 0; n < saved.size(); n += 3) EXPECT_FALSE(Matcher::restore(compiled, saved.substr(0, n)).ok());
    std::string damaged = saved + "x";
    EXPECT_FALSE(Matcher::restore(compiled, damaged).ok());
  }
  const auto compiled = compile({ConstraintKind::kRegex, "[a-z]+"});
  Matcher m(compiled);
  ASSERT_TRUE(m.accept_bytes("abc"));
  auto restored = Matcher::restore(compiled, m.serialise());
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(mask_of(restored.value()), mask_of(m));
  auto other = Matcher::restore(compile({ConstraintKind::kRegex, "[0-9]+"}), m.serialise());
  EXPECT_EQ(other.status().code(), Code::kDataLoss);
}

TEST(Matcher, ASmallMemoryLimitChangesNothing) {
  Limits small;
  small.memory_bytes_max = 300'000;
  std::mt19937_64 random(6);
  for (const Constraint& c : constraints()) {
    const auto roomy = compile(c), tight = compile(c, small);
    ASSERT_NE(tight, nullptr);
    for (int i = 0; i < 5; ++i) {
      const Walk walk = random_walk(roomy, random, 20, 60);
      Matcher a(roomy), b(tight);
      for (uint32_t t : walk.tokens) {
        std::vector<uint32_t> mask(bundled_vocabulary()->mask_words());
        const Status s = b.fill_mask(mask);
        if (!s.ok()) {
          EXPECT_EQ(s.code(), Code::kResourceExhausted);
          break;
        }
        ASSERT_EQ(mask, mask_of(a));
        ASSERT_TRUE(a.accept(t));
        ASSERT_TRUE(b.accept(t)) << b.status().to_string();
      }
    }
    EXPECT_LT(tight->memory_bytes(), 2'000'000u);
  }
}

TEST(Matcher, EndAndAddedTokens) {
  const auto& v = *bundled_vocabulary();
  const uint32_t end = v.end_tokens()[0];
  const auto compiled = compile({ConstraintKind::kRegex, "a|ab"});
  Matcher m(compiled);
  EXPECT_FALSE(m.accept(end));
  ASSERT_TRUE(m.accept_bytes("a"));
  EXPECT_TRUE(m.accept(end));
  EXPECT_TRUE(m.is_ended());
  EXPECT_FALSE(m.accept_bytes("b"));
  for (uint32_t w : mask_of(m)) EXPECT_EQ(w, 0u);
  m.rollback(1);
  EXPECT_FALSE(m.is_ended());
  EXPECT_TRUE(m.accept_bytes("b"));
  // No added token where text is expected, whatever it spells.
  Matcher any(compile({ConstraintKind::kRegex, "[^]*"}));
  const auto mask = mask_of(any);
  for (const AddedToken& t : v.added_tokens()) {
    EXPECT_FALSE(has_bit(mask, t.token)) << t.text;
    EXPECT_FALSE(any.accept(t.token)) << t.text;
  }
  EXPECT_FALSE(any.accept(v.size()));
}

TEST(Matcher, ForcedBytes) {
  const auto schema = compile({ConstraintKind::kEbnf, "root ::= \"{\\\"name\\\": \" (\"true\" | \"trust\") \"é\""});
  Matcher m(schema);
  EXPECT_EQ(m.forced_bytes(), "{\"name\": tru");
  EXPECT_EQ(m.forced_bytes(4), "{\"na");
  ASSERT_TRUE(m.accept_bytes("{\"name\": true"));
  EXPECT_EQ(m.forced_bytes(), "é");
  EXPECT_EQ(m.forced_bytes(1), "");  // never a part of a character
  ASSERT_TRUE(m.accept_bytes("é"));
  EXPECT_EQ(m.forced_bytes(), "");
  Matcher optional(compile({ConstraintKind::kRegex, "ab?"}));
  EXPECT_EQ(optional.forced_bytes(), "a");
  ASSERT_TRUE(optional.accept_bytes("a"));
  EXPECT_EQ(optional.forced_bytes(), "");  // the end may come too
  Matcher marked(compile({ConstraintKind::kEbnf, "root ::= \"<｜DSML｜ x\""}));
  EXPECT_EQ(marked.forced_bytes(), "<");
}

TEST(Matcher, DepthLimitIsNamed) {
  Limits limits;
  limits.request_stack_max = 100;
  const auto compiled = compile({ConstraintKind::kEbnf, "root ::= \"(\" root? \")\""}, limits);
  Matcher m(compiled);
  int depth = 0;
  while (depth < 1000 && m.accept_bytes("(")) ++depth;
  EXPECT_LT(depth, 200);
  EXPECT_NE(m.status().message().find("request_stack_max"), std::string::npos);
  // The matcher lives on below the limit.
  m.rollback(10);
  EXPECT_TRUE(m.accept_bytes("()"));
}

TEST(Matcher, AmbiguousAndRightRecursiveRulesStayQuick) {
  for (const char* grammar :
       {"root ::= root root | \"a\" | \"\"", "root ::= \"a\" root \"b\"? | \"a\"",
        "root ::= x*\nx ::= \"a\"* | \"aa\" x", "root ::= a\na ::= b | \"x\" a\nb ::= a \"y\" | \"a\" | b b"}) {
    const auto compiled = compile({ConstraintKind::kEbnf, grammar});
    Matcher m(compiled);
    for (int i = 0; i < 500; ++i)
      ASSERT_TRUE(m.accept_bytes("a")) << grammar << " at " << i << ": " << m.status().to_string();
    EXPECT_TRUE(m.is_complete()) << grammar;
    mask_of(m);
  }
}

// Bug case 3: all escapes can be written under a length bound, and each counts as one character.
TEST(Matcher, EscapesUnderALengthBound) {
  const auto compiled = compile({ConstraintKind::kJsonSchema, R"({"type": "string", "maxLength": 4})"});
  Matcher m(compiled);
  ASSERT_TRUE(m.accept_bytes("\""));
  const auto allows = [&](const char* bytes) {
    if (!m.accept_bytes(bytes)) return false;
    m.rollback(1);
    return true;
  };
  EXPECT_TRUE(allows("\\"));
  for (const char* escape : {"\\n", "\\\"", "\\\\", "\\u", "\\/", "\\b", "\\f", "\\r", "\\t", "\\ud83d\\ude00"})
    EXPECT_TRUE(allows(escape)) << escape;
  const auto& tokenizer = bundled_tokenizer();
  const auto mask = mask_of(m);
  EXPECT_TRUE(has_bit(mask, static_cast<uint32_t>(*tokenizer.find_ordinary("\\"))));
  EXPECT_TRUE(matches(compiled, "\"\\n\\\"\\\\\\ud83d\\ude00\""));
  EXPECT_FALSE(matches(compiled, "\"\\n\\\"\\\\\\ud83d\\ude00x\""));
  EXPECT_FALSE(matches(compiled, "\"abcde\""));
}

TEST(Matcher, ThreadsShareACompiledGrammar) {
  const auto shared = compile({ConstraintKind::kJsonSchema, kSchema}),
             own = compile({ConstraintKind::kJsonSchema, kSchema});
  std::mt19937_64 random(9);
  std::vector<Walk> walks;
  std::vector<std::vector<std::vector<uint32_t>>> masks;
  for (int i = 0; i < 24; ++i) {
    walks.push_back(random_walk(own, random, 20, 80));
    Matcher m(own);
    auto& list = masks.emplace_back();
    for (uint32_t t : walks.back().tokens) {
      list.push_back(mask_of(m));
      ASSERT_TRUE(m.accept(t));
    }
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      std::vector<uint32_t> mask(bundled_vocabulary()->mask_words());
      for (size_t i = k % 2; i < walks.size(); i += 2) {
        Matcher m(shared);
        for (size_t n = 0; n < walks[i].tokens.size(); ++n) {
          if (!m.fill_mask(mask).ok() || mask != masks[i][n] || !m.accept(walks[i].tokens[n])) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Matcher, ChangesItsThread) {
  const auto compiled =
      compile({ConstraintKind::kJsonSchema,
               R"({"type": "array", "items": {"type": "string", "pattern": "^[a-f]*$"}, "uniqueItems": true})"});
  Matcher m(compiled);
  ASSERT_TRUE(m.accept_bytes(R"(["a", "b", ")"));
  const auto here = mask_of(m);
  const uint64_t bytes = compiled->memory_bytes();
  std::vector<uint32_t> there;
  bool repeats = true;
  std::thread([&] {
    there = mask_of(m);
    repeats = m.accept_bytes("a\"");
    EXPECT_TRUE(m.accept_bytes("c\""));
  }).join();
  EXPECT_EQ(here, there);
  EXPECT_FALSE(repeats);
  EXPECT_TRUE(m.accept_bytes("]"));
  EXPECT_TRUE(m.is_complete());
  EXPECT_GT(compiled->memory_bytes(), bytes);  // the other thread's own arena
}

TEST(Matcher, RandomSourcesNeverCrash) {
  std::mt19937_64 random(10);
  const std::string letters = "ab01(){}[]|*+?^$\\.,:=\"'#<>-_ \nudpxkrot\xc3\xa9\xff";
  for (int i = 0; i < 4000; ++i) {
    std::string source = i % 3 == 0 ? "root ::= " : "";
    for (size_t n = random() % 30; n > 0; --n) source += letters[random() % letters.size()];
    for (ConstraintKind kind : {ConstraintKind::kRegex, ConstraintKind::kEbnf, ConstraintKind::kTags,
                                ConstraintKind::kTools, ConstraintKind::kJsonSchema}) {
      auto r = compile_constraint({kind, source}, bundled_vocabulary());
      if (!r.ok()) {
        EXPECT_FALSE(r.status().message().empty());
        EXPECT_NE(r.status().code(), Code::kInternal) << source;
        continue;
      }
      Matcher m(r.value());
      const auto mask = mask_of(m);
      const bool some = std::any_of(mask.begin(), mask.end(), [](uint32_t w) { return w != 0; });
      EXPECT_TRUE(some) << source;
    }
    (void)parse_so_args(source);
    (void)Matcher::restore(compile({ConstraintKind::kRegex, "a*"}), source);
  }
}

// A JSON string accepts every spelling of the values in its set and of no others.
TEST(Matcher, JsonStringsTakeAllSpellings) {
  std::mt19937_64 random(8);
  const std::vector<std::string> units = {"a", "b", "\"", "\\", "/", "\n", "é", "日", "😀", "\x01"};
  const auto spell = [&](const std::string& c) -> std::string {
    static const std::vector<std::vector<std::string>> kWays = {{"a", "\\u0061"},
                                                                {"b", "\\u0062"},
                                                                {"\\\"", "\\u0022"},
                                                                {"\\\\", "\\u005c", "\\u005C"},
                                                                {"/", "\\/", "\\u002f"},
                                                                {"\\n", "\\u000a", "\\u000A"},
                                                                {"é", "\\u00e9", "\\u00E9"},
                                                                {"日", "\\u65e5"},
                                                                {"😀", "\\ud83d\\ude00", "\\uD83D\\uDE00"},
                                                                {"\\u0001"}};
    for (size_t i = 0; i < units.size(); ++i) {
      if (units[i] == c) return kWays[i][random() % kWays[i].size()];
    }
    return c;
  };
  const char* const kPatterns[] = {"^[ab]{2}", "[^a-z]", "^.{0,3}$", "é|日", "^(?!a)[^]{1,4}$", "😀$", "^[\"\\\\]*$"};
  for (const char* pattern : kPatterns) {
    GrammarBuilder b;
    const Text t = parse_regex(b, pattern, RegexMode::kSearch).value();
    const Text listed = b.one_of(std::vector<std::string>{"a\"b", "é", "日😀", "a", ""});
    for (const Text& set : {t, b.complement(t), listed, b.complement(listed), b.all_of({t, b.complement(listed)})}) {
      GrammarBuilder g;  // a second builder, since finish() spends one
      const Text again = parse_regex(g, pattern, RegexMode::kSearch).value();
      const Text again_listed = g.one_of(std::vector<std::string>{"a\"b", "é", "日😀", "a", ""});
      const Text same = set == t                      ? again
                        : set == listed               ? again_listed
                        : set == b.complement(t)      ? g.complement(again)
                        : set == b.complement(listed) ? g.complement(again_listed)
                                                      : g.all_of({again, g.complement(again_listed)});
      auto grammar = g.finish(g.json_string(same));
      ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
      const auto compiled = Compiled::create(std::move(grammar).value(), bundled_vocabulary()).value();
      for (int i = 0; i < 200; ++i) {
        std::string value, spelled = "\"";
        for (size_t n = random() % 5; n > 0; --n) {
          const std::string& c = units[random() % units.size()];
          value += c;
          spelled += spell(c);
        }
        ASSERT_EQ(matches(compiled, spelled + "\""), b.contains(set, value)) << pattern << " on " << spelled;
      }
      for (const char* bad :
           {"\"\n\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\x\"", "\"a", "\"\xff\"", "\"\\ud83d\\u0061\""}) {
        EXPECT_FALSE(matches(compiled, bad)) << pattern << " on " << bad;
      }
    }
  }
}

TEST(Vocabulary, RefusesWhatItCannotUse) {
  EXPECT_FALSE(Vocabulary::create({}, {}).ok());
  EXPECT_FALSE(Vocabulary::create({{"a"}}, {7}).ok());
  const auto doubled = Vocabulary::create({{"ab"}, {"ab"}, {""}, {"<end>", true}}, {3}).value();
  auto grammar = compile_constraint({ConstraintKind::kRegex, "ab"}, doubled).value();
  Matcher m(grammar);
  std::vector<uint32_t> mask(1);
  ASSERT_TRUE(m.fill_mask(mask).ok());
  EXPECT_EQ(mask[0], 3u);
}

}  // namespace
}  // namespace deepinfer::grammar
