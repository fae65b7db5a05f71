#include "recipe/utf8_gate.h"

#include <random>

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace deepinfer::recipe {
namespace {

std::string through_gate(const std::vector<std::string>& pieces) {
  Utf8Gate gate;
  std::string out;
  for (const std::string& piece : pieces) out += gate.push(piece);
  out += gate.break_off();
  return out;
}

TEST(Utf8GateTest, HoldsBackAnUnfinishedCharacter) {
  Utf8Gate gate;
  EXPECT_EQ(gate.push("a\xF0\x9F"), "a");
  EXPECT_EQ(gate.waiting(), 2u);
  EXPECT_EQ(gate.push("\x98"), "");
  EXPECT_EQ(gate.push("\x80!"), "😀!");
  EXPECT_EQ(gate.from_earlier(), 3u);
  EXPECT_EQ(gate.push("\xE7"), "");
  EXPECT_EQ(gate.push("x"), "\xEF\xBF\xBDx");
  EXPECT_EQ(gate.from_earlier(), 3u);
}

TEST(Utf8GateTest, AgreesWithTheTextRoomHoweverItIsCut) {
  static const std::vector<std::string> kPieces = {
      "a",        "é",        "米",           "😀",   "\xC0", "\x80",       "\xE0\x80", "\xED\xA0\x80",
      "\xF4\x90", "\xE7\xB1", "\xF0\x9F\x98", "\xFF", "\xC3", "abcdefghijk"};
  std::mt19937_64 random(11);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i)
      text += random() % 3 == 0 ? std::string(1, static_cast<char>(random())) : kPieces[random() % kPieces.size()];
    const std::string expected = text::replace_broken_utf8(text);
    std::vector<std::string> bytes, cut;
    for (char c : text) bytes.emplace_back(1, c);
    const size_t at = random() % (text.size() + 1);
    ASSERT_EQ(through_gate({text}), expected);
    ASSERT_EQ(through_gate(bytes), expected);
    ASSERT_EQ(through_gate({text.substr(0, at), text.substr(at)}), expected);
  }
}

}  // namespace
}  // namespace deepinfer::recipe
