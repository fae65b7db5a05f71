#include "base/io_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

namespace deepinfer {
namespace {

class IoQueues : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<IoQueue>> q = IoQueue::create({.depth = 16, .threads = GetParam(), .thread_count = 3});
    ASSERT_TRUE(q.ok()) << q.status().to_string();
    io = std::move(q).value();
    path = testing::TempDir() + "io_queue_" + std::to_string(::getpid());
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    ASSERT_GE(fd, 0);
  }
  void TearDown() override {
    io.reset();
    ::close(fd);
    std::filesystem::remove(path);
  }
  std::map<uint64_t, IoQueue::Done> wait_all() {
    std::map<uint64_t, IoQueue::Done> out;
    std::array<IoQueue::Done, 4> done;
    while (io->in_flight() > 0) {
      const size_t n = io->wait(done);
      for (size_t i = 0; i < n; ++i) EXPECT_TRUE(out.emplace(done[i].tag, done[i]).second);
    }
    return out;
  }

  std::unique_ptr<IoQueue> io;
  std::string path;
  int fd = -1;
};

TEST_P(IoQueues, ReadsWhatWasWritten) {
  std::mt19937 random(1);
  constexpr size_t kBlock = 3 * kIoAlignment, kBlocks = 40;
  std::vector<std::byte> content(kBlock * kBlocks);
  for (std::byte& b : content) b = static_cast<std::byte>(random());
  for (size_t i = 0; i < kBlocks;) {
    const std::span<const std::byte> block = std::span(content).subspan(i * kBlock, kBlock);
    if (io->write(fd, block, i * kBlock, i)) {
      ++i;
      continue;
    }
    EXPECT_EQ(io->in_flight(), 16);  // full
    wait_all();
  }
  for (const auto& [tag, done] : wait_all()) EXPECT_EQ(done.bytes, static_cast<int64_t>(kBlock)) << done.error;
  std::vector<std::vector<std::byte>> read(10, std::vector<std::byte>(kBlock));
  for (size_t i = 0; i < read.size(); ++i) ASSERT_TRUE(io->read(fd, read[i], 4 * i * kBlock, i));
  EXPECT_EQ(wait_all().size(), read.size());
  for (size_t i = 0; i < read.size(); ++i)
    EXPECT_EQ(std::memcmp(read[i].data(), content.data() + 4 * i * kBlock, kBlock), 0) << i;
}

TEST_P(IoQueues, TellsErrorsAndShortReads) {
  ASSERT_EQ(::ftruncate(fd, 100), 0);
  std::vector<std::byte> buffer(4096), other(4096);
  ASSERT_TRUE(io->read(fd, buffer, 0, 1));
  ASSERT_TRUE(io->read(-1, other, 0, 2));
  const std::map<uint64_t, IoQueue::Done> done = wait_all();
  EXPECT_EQ(done.at(1).bytes, 100);
  EXPECT_EQ(done.at(1).error, 0);
  EXPECT_EQ(done.at(2).error, EBADF);
}

TEST_P(IoQueues, NothingToWaitFor) {
  std::array<IoQueue::Done, 4> done;
  EXPECT_EQ(io->poll(done), 0u);
  EXPECT_EQ(io->wait(done), 0u);
}

INSTANTIATE_TEST_SUITE_P(Both, IoQueues, testing::Bool(),
                         [](const auto& info) { return info.param ? "Threads" : "BestOfTheKernel"; });

TEST(AlignedBuffers, AreAligned) {
  AlignedBuffer a(5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % kIoAlignment, 0u);
  EXPECT_EQ(a.size(), kIoAlignment);
  AlignedBuffer b = std::move(a);
  b.resize(kIoAlignment + 1);
  EXPECT_EQ(b.size(), 2 * kIoAlignment);
}

}  // namespace
}  // namespace deepinfer
