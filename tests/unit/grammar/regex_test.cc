// Regular expressions: syntax, assertions, what is refused, and random ones beside Python's re.
#include <cstdio>
#include <fstream>

#include "grammar/regex.h"
#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

bool regex_matches(std::string_view pattern, std::string_view text, RegexMode mode = RegexMode::kWhole) {
  GrammarBuilder b;
  auto t = parse_regex(b, pattern, mode);
  EXPECT_TRUE(t.ok()) << pattern << ": " << t.status().to_string();
  return t.ok() && b.contains(t.value(), text);
}

Status regex_error(std::string_view pattern) {
  GrammarBuilder b;
  return parse_regex(b, pattern, RegexMode::kWhole).status();
}

TEST(Regex, AnchorsAndSearch) {
  EXPECT_TRUE(regex_matches("^abc$", "abc"));
  EXPECT_FALSE(regex_matches("abc", "xabc"));
  EXPECT_TRUE(regex_matches("abc", "xxabcyy", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("^abc", "xabc", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("^abc", "abcx", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("abc$", "xabc", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("abc$", "abcx", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("^a|b$", "ax", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("^a|b$", "xb", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("^a|b$", "xax", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("(^|,)x(,|$)", "a,x,b", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("(^|,)x(,|$)", "x", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("(^|,)x(,|$)", "axb", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("", "anything", RegexMode::kSearch));
}

TEST(Regex, LookAround) {
  EXPECT_TRUE(regex_matches("(?=.*[0-9])[a-z0-9]{4,8}", "abc1"));
  EXPECT_FALSE(regex_matches("(?=.*[0-9])[a-z0-9]{4,8}", "abcd"));
  EXPECT_TRUE(regex_matches("^(?!admin)[a-z]+$", "user", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("^(?!admin)[a-z]+$", "administrator", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("^((?!foo).)*$", "fobar", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("^((?!foo).)*$", "xfoox", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("(?<=ab)c", "xabcx", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("(?<=ab)c", "xacx", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("(?<!a)b", "b", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("(?<!a)b", "ab", RegexMode::kSearch));
  EXPECT_EQ(regex_error("a(?<=a)b").code(), Code::kUnsupported);
}

TEST(Regex, WordBoundaries) {
  EXPECT_TRUE(regex_matches("\\bfoo\\b", "a foo b", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("\\bfoo\\b", "foo", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("\\bfoo\\b", "foox", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("\\bfoo\\b", "xfoo", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("\\Boo", "foo", RegexMode::kSearch));
  EXPECT_FALSE(regex_matches("\\Bfoo", "foo", RegexMode::kSearch));
  EXPECT_TRUE(regex_matches("[a-z ]+\\b", "ab cd"));
  EXPECT_FALSE(regex_matches("[a-z ]+\\b", "ab cd "));
}

TEST(Regex, ClassesAndEscapes) {
  EXPECT_TRUE(regex_matches("[\\d\\-x]+", "1-x"));
  EXPECT_TRUE(regex_matches("\\u{1F600}", "😀"));
  EXPECT_TRUE(regex_matches("\\ud83d\\ude00", "😀"));
  EXPECT_TRUE(regex_matches("\\p{L}+", "Ünï日本"));
  EXPECT_FALSE(regex_matches("\\p{L}+", "a1"));
  EXPECT_TRUE(regex_matches("\\P{L}", "1"));
  EXPECT_TRUE(regex_matches("\\p{General_Category=Decimal_Number}", "٣"));
  EXPECT_TRUE(regex_matches("[^]", "\n"));
  EXPECT_FALSE(regex_matches(".", "\u2028"));
  EXPECT_TRUE(regex_matches("\\s", "\ufeff"));
  EXPECT_TRUE(regex_matches("\\cJ", "\n"));
}

TEST(Regex, RefusedByName) {
  EXPECT_NE(regex_error("(a)\\1").message().find("back reference"), std::string::npos);
  EXPECT_NE(regex_error("\\p{Script=Greek}").message().find("Script=Greek"), std::string::npos);
  for (const char* bad : {"(ab",
                          "ab)",
                          "*a",
                          "a**",
                          "a{3,1}",
                          "a{",
                          "[b-a]",
                          "[a",
                          "\\",
                          "a{99",
                          "\\u12",
                          "\\x1",
                          "(?<n>a)(?<n>b)",
                          "[\\d-x]",
                          "^*",
                          "(?=a)*",
                          "\\q",
                          "}",
                          "]",
                          "(?i:a)",
                          "\xff"}) {
    EXPECT_FALSE(regex_error(bad).ok()) << bad;
  }
}

TEST(Regex, CountsDoNotBlowUp) {
  for (const char* pattern :
       {"(([a-z]{0,200}){0,200}){0,200}", "[a-z]{0,100000}", "(a|b)*a(a|b){12}", "(x?){1000}x{1000}"}) {
    const auto compiled = compile({ConstraintKind::kRegex, pattern});
    ASSERT_NE(compiled, nullptr);
    Matcher m(compiled);
    mask_of(m);
  }
  EXPECT_TRUE(regex_matches("(a{2}){3}", "aaaaaa"));
  EXPECT_FALSE(regex_matches("(a{2}){3}", "aaaaa"));
  EXPECT_FALSE(regex_matches("(a{3}){0,2}", "aaaa"));
  EXPECT_TRUE(regex_matches("(a{2,3}){2,4}", "aaaaaaa"));
}

// A random pattern over a few letters that means the same to Python.
std::string random_pattern(std::mt19937_64& random, int depth) {
  static const char* const kAtoms[] = {"a", "b", "c", "[ab]", "[^a]", "\\d", "\\w", ".", "é", "[a-cé]"};
  switch (depth == 0 ? 0 : random() % 7) {
    case 1:
      return random_pattern(random, depth - 1) + random_pattern(random, depth - 1);
    case 2:
      return "(?:" + random_pattern(random, depth - 1) + "|" + random_pattern(random, depth - 1) + ")";
    case 3: {
      static const char* const kMarks[] = {"*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"};
      return "(?:" + random_pattern(random, depth - 1) + ")" + kMarks[random() % 7];
    }
    case 4:
      return "(?" + std::string(random() % 2 ? "=" : "!") + random_pattern(random, depth - 1) + ")" +
             random_pattern(random, depth - 1);
    case 5: {
      static const char* const kAssertions[] = {"\\b", "\\B", "^", "$"};
      return random_pattern(random, depth - 1) + kAssertions[random() % 4] + random_pattern(random, depth - 1);
    }
    default:
      return kAtoms[random() % 10];
  }
}

TEST(Regex, RandomPatternsAgreeWithPython) {
  const std::string folder = testing::TempDir(), in = folder + "/patterns.txt", script = folder + "/judge.py";
  std::ofstream(script) << "import re, sys\n"
                           "for line in open(sys.argv[1], encoding='utf-8').read().split('\\n')[:-1]:\n"
                           "    mode, pattern, *texts = line.split('\\t')\n"
                           "    p = re.compile(pattern.replace('$', '\\\\Z'), re.A)\n"
                           "    f = p.fullmatch if mode == 'w' else p.search\n"
                           "    print(''.join('1' if f(t) else '0' for t in texts))\n";
  std::mt19937_64 random(20260101);
  struct Job {
    RegexMode mode;
    std::string pattern;
    std::vector<std::string> texts;
  };
  std::vector<Job> jobs;
  {
    std::ofstream out(in);
    for (int i = 0; i < 1500; ++i) {
      Job j{i % 2 ? RegexMode::kSearch : RegexMode::kWhole, random_pattern(random, 4), {}};
      out << (i % 2 ? 's' : 'w') << '\t' << j.pattern;
      for (int k = 0; k < 25; ++k) {
        static const char* const kLetters[] = {"a", "b", "c", "1", "é", " "};
        std::string text;
        for (size_t n = random() % 7; n > 0; --n) text += kLetters[random() % 6];
        out << '\t' << text;
        j.texts.push_back(text);
      }
      out << '\n';
      jobs.push_back(std::move(j));
    }
  }
  std::FILE* python = popen(("PYTHONWARNINGS=ignore python3 " + script + " " + in).c_str(), "r");
  ASSERT_NE(python, nullptr);
  int compared = 0, refused = 0;
  for (const Job& j : jobs) {
    char line[256];
    ASSERT_NE(std::fgets(line, sizeof line, python), nullptr) << "python3 is needed; it stopped at " << j.pattern;
    GrammarBuilder b;
    auto t = parse_regex(b, j.pattern, j.mode);
    if (!t.ok()) {
      EXPECT_EQ(t.status().code(), Code::kUnsupported) << j.pattern << ": " << t.status().to_string();
      ++refused;
      continue;
    }
    for (size_t k = 0; k < j.texts.size(); ++k) {
      ++compared;
      EXPECT_EQ(b.contains(t.value(), j.texts[k]), line[k] == '1')
          << j.pattern << " on '" << j.texts[k] << "'" << (j.mode == RegexMode::kSearch ? " searched" : "");
    }
  }
  EXPECT_EQ(pclose(python), 0);
  EXPECT_GT(compared, 25'000);
  EXPECT_LT(refused, 300);
}

}  // namespace
}  // namespace deepinfer::grammar
