#include "base/status.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return make_error(Code::kInvalidArgument, "{} is odd; give an even number", x);
  return x / 2;
}

Result<int> quarter(int x) {
  DI_ASSIGN_OR_RETURN(const int h, half(x));
  return half(h);
}

TEST(Status, CarriesCodeAndMessage) {
  EXPECT_EQ(quarter(8).value(), 2);
  const Result<int> r = quarter(6);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(r.status().to_string(), "invalid argument: 3 is odd; give an even number");
  EXPECT_EQ(r.status().with_context("row 2").message(), "row 2: 3 is odd; give an even number");
  EXPECT_EQ(Status().to_string(), "ok");
}

}  // namespace
}  // namespace deepinfer
