#include "base/cpu_quota.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/affinity.h"
#include "base/huge_memory.h"
#include "base/thread_pool.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

void put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

TEST(CpuQuota, TheTightestOnTheWayCounts) {
  testing::TempDir dir;
  const std::string& root = dir.path();
  EXPECT_TRUE(std::isinf(quota_cores(root, "0::/\n")));
  put(root + "/cpu.max", "max 100000");
  EXPECT_TRUE(std::isinf(quota_cores(root, "0::/\n")));
  put(root + "/a/cpu.max", "250000 100000");
  put(root + "/a/b/cpu.max", "400000 100000");
  EXPECT_EQ(quota_cores(root, "0::/a/b\n"), 2.5);
  EXPECT_EQ(quota_cores(root, "0::/a/b/not-here\n"), 2.5);
  EXPECT_TRUE(std::isinf(quota_cores(root, "0::/c\n")));
  put(root + "/cpu/x/cpu.cfs_quota_us", "150000");
  put(root + "/cpu/x/cpu.cfs_period_us", "100000");
  put(root + "/cpu/cpu.cfs_quota_us", "-1");
  put(root + "/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota_cores(root, "7:memory:/x\n3:cpu,cpuacct:/x\n0::/\n"), 1.5);
  EXPECT_TRUE(std::isinf(quota_cores(root, "3:cpu,cpuacct:/\n2:cpuset:/x\n")));
  EXPECT_TRUE(std::isinf(quota_cores(root, "nonsense\n::\n")));
}

TEST(Affinity, AThreadStaysOnItsCore) {
  std::thread([] {
    ASSERT_TRUE(pin_to_core(1));
    cpu_set_t set;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
  }).join();
  EXPECT_FALSE(pin_to_core(-1));
  EXPECT_GE(available_cores(), 1);
}

TEST(Affinity, InterleavedMemoryIsMemory) {
  HugeMemory m = HugeMemory::allocate(4 << 20).value();
  interleave(m.as<void>(), m.bytes());  // false on machines with one node
  for (size_t i = 0; i < m.bytes(); i += 4096) m.as<char>()[i] = 1;
  EXPECT_EQ(m.as<char>()[4096], 1);
}

}  // namespace
}  // namespace deepinfer
