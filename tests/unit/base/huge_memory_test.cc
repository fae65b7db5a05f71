#include "base/huge_memory.h"

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(HugeMemory, IsZeroedAlignedAndWritable) {
  for (size_t bytes : {size_t{1}, size_t{100'000}, size_t{2} << 20, (size_t{5} << 20) + 1}) {
    Result<HugeMemory> m = HugeMemory::allocate(bytes);
    ASSERT_TRUE(m.ok());
    ASSERT_GE(m->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m->as<char>()) % (bytes >= (2 << 20) ? 2 << 20 : 4096), 0u);
    for (size_t i = 0; i < bytes; i += 997) ASSERT_EQ(m->as<char>()[i], 0);
    std::memset(m->as<char>(), 7, m->bytes());
    HugeMemory moved = std::move(m).value();
    EXPECT_EQ(moved.as<char>()[bytes - 1], 7);
  }
}

TEST(HugeMemory, RefusesWhatNoMachineHas) {
  EXPECT_EQ(HugeMemory::allocate(~size_t{0}).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(HugeMemory::allocate(size_t{1} << 60).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(HugeMemory::allocate(0)->as<char>(), nullptr);
}

}  // namespace
}  // namespace deepinfer
