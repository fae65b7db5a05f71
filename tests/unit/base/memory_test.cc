#include "base/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace deepinfer {
namespace {

TEST(AvailableMemory, IsMoreThanNothingAndNamesItsLimit) {
  const MemoryRoom room = available_memory();
  EXPECT_GT(room.bytes, 1u << 20);
  EXPECT_FALSE(room.limited_by.empty());
}

TEST(AvailableMemory, SeesTheAddressSpaceLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer cannot live under such a limit";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 1u << 20;  // less than is in use already
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  const MemoryRoom room = available_memory();
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(room.bytes, 0u);
  EXPECT_NE(room.limited_by.find("ulimit"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
