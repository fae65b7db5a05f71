#include "text/utf8.h"

#include <gtest/gtest.h>

namespace deepinfer::text {
namespace {

TEST(Utf8, ReplacesBrokenBytesAsPythonDoes) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(replace_broken_utf8("ok ü"), "ok ü");
  EXPECT_EQ(replace_broken_utf8("\xff"
                                "a"),
            r + "a");
  EXPECT_EQ(replace_broken_utf8("\xf0\x9f\x98"), r);  // one for a truncated character
  EXPECT_EQ(replace_broken_utf8("\xf0\x9f\x98"
                                "a\xe4\xbd"),
            r + "a" + r);
  EXPECT_EQ(replace_broken_utf8("\xc0\xaf"), r + r);                  // overlong
  EXPECT_EQ(replace_broken_utf8("\xed\xa0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(replace_broken_utf8("\xf4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
}

TEST(Utf8, Validates) {
  EXPECT_TRUE(is_valid_utf8("") && is_valid_utf8("aü你😀") && is_valid_utf8("a longer text than sixteen bytes: ü你😀"));
  EXPECT_FALSE(is_valid_utf8("\x80") || is_valid_utf8("a longer text than sixteen bytes \xed\xa0\x80"));
  EXPECT_EQ(count_code_points("aü你😀"), 4u);
}

}  // namespace
}  // namespace deepinfer::text
