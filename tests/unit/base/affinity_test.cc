#include "base/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace deepinfer {
namespace {

cpu_set_t own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

TEST(LeaveCore, LeavesTheAffinityAsItWas) {
  std::thread([] {
    const cpu_set_t before = own_cores();
    for (int i = 0; i < 100; ++i) leave_core(current_core());
    const cpu_set_t after = own_cores();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

TEST(LeaveCore, StaysWhereItIsAloneOrNotOnThatCore) {
  std::thread([] {
    EXPECT_FALSE(leave_core(-1));
    EXPECT_FALSE(leave_core(1 << 20));
    ASSERT_TRUE(pin_to_core(0));
    const int core = current_core();
    EXPECT_FALSE(leave_core(core));
    EXPECT_FALSE(leave_core(core + 1));
    EXPECT_EQ(current_core(), core);
  }).join();
}

}  // namespace
}  // namespace deepinfer
