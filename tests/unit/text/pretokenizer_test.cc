#include "text/pretokenizer.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/text/plain_splitter.h"

namespace deepinfer::text {
namespace {

std::vector<size_t> fast_piece_ends(std::string_view text) {
  PieceSplitter splitter;
  splitter.start(text);
  std::vector<size_t> ends;
  while (splitter.next()) {
    const std::span<const uint32_t> starts = splitter.starts();
    for (const uint32_t end : starts.subspan(1))
      ends.push_back(static_cast<size_t>(splitter.base() - text.data()) + end);
  }
  return ends;
}

// Some of every kind of character that the patterns tell apart, in one to four bytes.
constexpr uint32_t kCharacters[] = {'a',     'Z',    0xe9,   0x435,  0x301,  0x20dd, '1',     '2',      0x663,  0x2163,
                                    0x1d7ce, '(',    '.',    0xbf,   0x2014, '$',    0x20ac,  0x1f600,  0x309b, 0x30fb,
                                    0x30fc,  0x30a0, 0x3040, 0x3099, 0x3042, 0x5b57, 0x9fa5,  0x9fa6,   0x3005, ' ',
                                    ' ',     '\t',   '\n',   '\n',   '\r',   0xa0,   0x3000,  0x2028,   0x85,   0x0b,
                                    0,       0x1f,   0x200b, 0x200d, 0xfeff, 0xe000, 0xe0001, 0x10ffff, 0x20000};

TEST(PieceSplitter, EqualsThePlainPatternsOnRandomMixes) {
  std::mt19937_64 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int round = 0; round < 20000; ++round) {
    const size_t kinds = 1 + below(8), length = round % 100 == 0 ? below(20000) : below(200);
    std::vector<uint32_t> chosen;
    for (size_t i = 0; i < kinds; ++i) chosen.push_back(kCharacters[below(std::size(kCharacters))]);
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      const uint32_t c = chosen[below(kinds)];
      for (size_t repeat = below(20) == 0 ? below(80) : 1; repeat > 0; --repeat) append_utf8(c, &text);
    }
    ASSERT_EQ(fast_piece_ends(text), plain_piece_ends(text)) << "round " << round << ": " << text;
  }
}

TEST(PieceSplitter, EveryCodePointInContext) {
  std::string text;
  for (uint32_t c = 0; c < 0x110000; c += c < 0x30000 ? 1 : 97) {
    if (c >= 0xd800 && c < 0xe000) continue;
    text += "x(";
    append_utf8(c, &text);
    text += c % 2 ? "a " : "\n  ";
    append_utf8(c, &text);
    append_utf8(c, &text);
  }
  EXPECT_EQ(fast_piece_ends(text), plain_piece_ends(text));
}

}  // namespace
}  // namespace deepinfer::text
