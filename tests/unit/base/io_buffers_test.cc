#include "base/io_buffers.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(IoBuffers, AreAlignedLargeEnoughAndApart) {
  IoBuffers buffers({.kept_bytes = 0});
  std::mt19937 random(1);
  std::vector<std::pair<IoBuffer, unsigned char>> taken;
  for (int i = 0; i < 400; ++i) {
    const size_t bytes = i % 50 == 0 ? 3'000'000 : 1 + random() % 300'000;
    IoBuffer b = buffers.take(bytes);
    ASSERT_GE(b.size(), bytes);
    EXPECT_LE(b.size(), std::max<size_t>(bytes + bytes / 8, 0) + 4096);
    EXPECT_EQ(b.size() % 4096, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 4096, 0u);
    const auto mark = static_cast<unsigned char>(random());
    std::memset(b.data(), mark, b.size());
    if (taken.size() > 60) {
      std::swap(taken[random() % taken.size()], taken.back());
      for (size_t k = 0; k < taken.back().first.size(); k += 511)
        ASSERT_EQ(static_cast<unsigned char>(taken.back().first.data()[k]), taken.back().second);
      taken.pop_back();
    }
    taken.emplace_back(std::move(b), mark);
  }
  taken.clear();
  EXPECT_EQ(buffers.bytes_held(), 0u);
}

TEST(IoBuffers, KeepsALittleForTheNextOnes) {
  IoBuffers buffers({.kept_bytes = 4 << 20});
  {
    std::vector<IoBuffer> many;
    for (int i = 0; i < 200; ++i) many.push_back(buffers.take(120'000));
    EXPECT_GE(buffers.bytes_held(), 200u * 120'000);
  }
  EXPECT_EQ(buffers.bytes_held(), 4u << 20);
  const IoBuffer a = buffers.take(120'000);
  EXPECT_EQ(buffers.bytes_held(), 4u << 20);
}

TEST(IoBuffers, MovesAndGoesBackOnce) {
  IoBuffers buffers({.kept_bytes = 0});
  IoBuffer a = buffers.take(5000), b = buffers.take(5000);
  EXPECT_NE(a.data(), b.data());
  a = std::move(b);
  const IoBuffer c = std::move(a);
  EXPECT_FALSE(c.empty());
  EXPECT_TRUE(buffers.take(size_t{1} << 60).empty());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&buffers] {
      for (int i = 0; i < 2000; ++i) std::memset(buffers.take(4096 * (1 + i % 9)).data(), i, 4096);
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace deepinfer
