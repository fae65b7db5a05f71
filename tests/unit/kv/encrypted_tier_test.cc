// Encryption at rest: what lies below is unreadable, and opens with its key and in its place only.
#include "kv/encrypted_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kv/host_tier.h"
#include "kv/record.h"
#include "kv/ssd_tier.h"

namespace deepinfer::kv {
namespace {

BlockKey key_of(uint8_t i) { return {.bytes = {i, 1, 2, 3}}; }

std::vector<std::byte> record_of(uint8_t i) {
  std::vector<std::byte> record(record_bytes(8, 5000));
  seal_record(key_of(i), std::vector<int32_t>(8, i), std::vector<std::byte>(5000, std::byte{0x5a}), record);
  return record;
}

Tier::Completion wait_for(Tier& tier, Tier::Ticket ticket) {
  std::array<Tier::Completion, 4> done;
  for (int i = 0; i < 150000; ++i) {
    for (size_t k = 0, n = tier.poll(done); k < n; ++k) {
      if (done[k].ticket == ticket) return done[k];
    }
    ::usleep(200);
  }
  ADD_FAILURE() << "no completion";
  return {};
}

Code get(Tier& tier, uint8_t i, size_t room = 6000) {
  std::vector<std::byte> buffer(room);
  const Tier::Completion done = wait_for(tier, tier.get(key_of(i), buffer));
  if (!done.status.ok()) return done.status.code();
  buffer.resize(done.bytes);
  EXPECT_EQ(buffer, record_of(i));
  return Code::kOk;
}

TEST(EncryptedTier, OpensWithItsKeyAndInItsPlaceOnly) {
  const auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  EncryptedTier mine(host, {1}), other(host, {2});
  for (uint8_t i = 0; i < 5; ++i)
    EXPECT_TRUE(wait_for(mine, mine.put(key_of(i), record_of(i), {.space = 3})).status.ok());
  for (uint8_t i = 0; i < 5; ++i) EXPECT_EQ(get(mine, i), Code::kOk);
  EXPECT_EQ(get(mine, 9), Code::kNotFound);
  EXPECT_EQ(get(other, 1), Code::kNotFound);
  EXPECT_NE(get(mine, 1, 1000), Code::kOk);
  // What lies below: a whole record that holds nothing readable, and is no other block's.
  std::vector<std::byte> below(9000);
  const Tier::Completion raw = wait_for(*host, host->get(key_of(1), below));
  below.resize(raw.bytes);
  EXPECT_TRUE(record_is_whole(below));
  const std::vector<std::byte> plain(16, std::byte{0x5a});
  EXPECT_EQ(std::search(below.begin(), below.end(), plain.begin(), plain.end()), below.end());
  std::vector<std::byte> moved = below;
  std::vector<std::byte> payload(below.begin() + 40, below.end() - 8);
  seal_record(key_of(2), {}, payload, moved);
  wait_for(*host, host->put(key_of(2), moved, {}));
  EXPECT_EQ(get(mine, 2), Code::kNotFound);
  seal_record(key_of(3), {}, std::span(payload).first(20), std::span(moved).first(record_bytes(0, 20)));
  wait_for(*host, host->put(key_of(3), std::span(moved).first(record_bytes(0, 20)), {}));
  EXPECT_EQ(get(mine, 3), Code::kNotFound);
  wait_for(*host, host->put(key_of(4), record_of(4), {}));
  EXPECT_EQ(get(mine, 4), Code::kNotFound) << "a plain record was taken";
}

TEST(EncryptedTier, SsdFindsItsRecordsAgainAndScrubs) {
  const std::string dir = testing::TempDir() + "encrypted_" + std::to_string(::getpid());
  const auto open = [&] {
    return std::shared_ptr<SsdTier>(SsdTier::open(dir, {.bytes_max = 64 << 20, .segment_bytes = 4 << 20}).value());
  };
  {
    EncryptedTier tier(open(), {7});
    for (uint8_t i = 0; i < 20; ++i) EXPECT_TRUE(wait_for(tier, tier.put(key_of(i), record_of(i), {})).status.ok());
  }
  {
    const auto ssd = open();
    EXPECT_EQ(ssd->stats().recovered, 20);
    EXPECT_EQ(ssd->scrub(), 0);
    EncryptedTier tier(ssd, {7});
    for (uint8_t i = 0; i < 20; ++i) EXPECT_EQ(get(tier, i), Code::kOk);
  }
  std::filesystem::remove_all(dir);
}

TEST(EncryptedTier, KeyFilesAreChecked) {
  const std::string path = testing::TempDir() + "key_" + std::to_string(::getpid());
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path, std::ios::trunc) << text;
    ::chmod(path.c_str(), mode);
    return read_encryption_key(path).status().code();
  };
  EXPECT_EQ(write(std::string(32, 'k'), 0600), Code::kOk);
  EXPECT_EQ(write(std::string(64, 'a') + "\n", 0600), Code::kOk);
  EXPECT_EQ(read_encryption_key(path).value()[5], 0xaa);
  EXPECT_EQ(write(std::string(64, 'a'), 0644), Code::kInvalidArgument);
  EXPECT_EQ(write(std::string(64, 'x'), 0600), Code::kInvalidArgument);
  EXPECT_EQ(write("short", 0600), Code::kInvalidArgument);
  std::filesystem::remove(path);
  EXPECT_FALSE(read_encryption_key(path).ok());
}

}  // namespace
}  // namespace deepinfer::kv
