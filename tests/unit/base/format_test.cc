#include "base/format.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ParseBytes, Units) {
  const std::pair<const char*, uint64_t> cases[] = {{"0", 0},
                                                    {"17", 17},
                                                    {"2GiB", uint64_t{2} << 30},
                                                    {"2 gib", uint64_t{2} << 30},
                                                    {"1.5k", 1536},
                                                    {"64GB", 64'000'000'000},
                                                    {"800MB", 800'000'000},
                                                    {"1T", uint64_t{1} << 40},
                                                    {"12B", 12}};
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> r = parse_bytes(text);
    ASSERT_TRUE(r.ok()) << text << ": " << r.status().message();
    EXPECT_EQ(r.value(), bytes) << text;
  }
  for (const char* text : {"", "GiB", "-1G", "2 giga", "1e3", "nan", "inf", "9999999T", "2GiBx", "0x10"}) {
    const Result<uint64_t> r = parse_bytes(text);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace deepinfer
