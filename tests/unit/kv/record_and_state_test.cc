// Byte forms: records of tiers and sequence states come back as they went, and every damage is found.
#include <gtest/gtest.h>

#include <random>

#include "kv/checksum.h"
#include "kv/record.h"
#include "kv/sequence_state.h"

namespace deepinfer::kv {
namespace {

TEST(Record, ComesBackAndEveryFlippedBitIsFound) {
  const BlockKey key{.bytes = {1, 2, 3}};
  const std::vector<int32_t> tokens{5, -1, 1 << 30, 7};
  std::vector<std::byte> page(33);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> record(record_bytes(tokens.size(), page.size()));
  seal_record(key, tokens, page, record);
  const auto opened = open_record(record, key, tokens);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_TRUE(std::ranges::equal(opened.value(), page));

  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(open_record(record, key, tokens).status().code(), Code::kDataLoss) << bit;
    record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (size_t n = 0; n < record.size(); ++n)
    EXPECT_FALSE(open_record(std::span(record).first(n), key, tokens).ok()) << n;
  std::vector<int32_t> other = tokens;
  other[3] = 8;
  EXPECT_FALSE(open_record(record, key, other).ok());
  EXPECT_FALSE(open_record(record, key, std::span(tokens).first(3)).ok());
  EXPECT_FALSE(open_record(record, BlockKey{}, tokens).ok());
}

// Stores are read by machines with other instructions than those that wrote them.
TEST(Record, ChecksumsAreEqualWhateverTheInstructions) {
  std::mt19937 rng(2);
  std::vector<uint8_t> bytes(5000);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng());
  for (size_t n = 0; n <= bytes.size(); n += n < 300 ? 1 : 97) {
    const uint64_t plain = checksum_plain(bytes.data(), n);
    EXPECT_EQ(kv_checksum(std::as_bytes(std::span(bytes)).first(n)), plain) << n;
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_EQ(checksum_avx2(bytes.data(), n), plain) << n;
    }
    if (__builtin_cpu_supports("avx512f")) {
      EXPECT_EQ(checksum_avx512(bytes.data(), n), plain) << n;
    }
  }
}

TEST(Record, CopiesHaveTheChecksumOfTheirBytesWhateverTheInstructions) {
  std::mt19937 rng(3);
  std::vector<uint8_t> bytes(9000), to(bytes.size());
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng());
  const auto check = [&](uint64_t (*copy)(const void*, void*, size_t), size_t begin, size_t n) {
    std::ranges::fill(to, 0);
    EXPECT_EQ(copy(bytes.data() + begin, to.data() + begin % 3, n), checksum_plain(bytes.data() + begin, n)) << n;
    EXPECT_TRUE(std::equal(bytes.begin() + begin, bytes.begin() + begin + n, to.begin() + begin % 3)) << n;
    EXPECT_EQ(std::count(to.begin() + begin % 3 + n, to.end(), 0), std::ssize(to) - begin % 3 - n) << n;
  };
  for (size_t n = 0; n < 8900; n += n < 300 || n % 1024 < 70 ? 1 : 61) {
    check(&copy_checksum_plain, n % 7, n);
    if (__builtin_cpu_supports("avx2")) check(&copy_checksum_avx2, n % 7, n);
    if (__builtin_cpu_supports("avx512f")) check(&copy_checksum_avx512, n % 7, n);
  }
}

TEST(Record, CopiesAreWholeOnlyIfTheRecordIs) {
  std::vector<std::byte> page(3000, std::byte{9}), to;
  std::vector<std::byte> record(record_bytes(0, page.size()));
  seal_record(BlockKey{}, {}, page, record);
  to.resize(record.size());
  EXPECT_TRUE(copy_record(record, to));
  EXPECT_EQ(to, record);
  for (size_t bit = 0; bit < record.size() * 8; bit += bit < 64 ? 9 : 411) {
    record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(copy_record(record, to), record_is_whole(record)) << bit;
    EXPECT_EQ(to, record);
    record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (size_t n = 0; n < record.size(); n += n < 100 ? 1 : 211)
    EXPECT_FALSE(copy_record(std::span(record).first(n), to)) << n;
}

SequenceState sample_state(std::mt19937& rng) {
  SequenceState s{.id = -5,
                  .seed = ~0ull,
                  .sample = 3,
                  .prompt_tokens = 100,
                  .decoder_begin = 60,
                  .window_begin = 17,
                  .cached = 128,
                  .computed = 129};
  for (unsigned i = rng() % 50; i > 0; --i) s.tokens.push_back(static_cast<int32_t>(rng()));
  for (unsigned i = rng() % 4; i > 0; --i)
    s.sections.push_back({.kind = i, .bytes = std::vector<std::byte>(rng() % 20, std::byte{9})});
  return s;
}

TEST(SequenceState, ComesBack) {
  std::mt19937 rng(3);
  for (int i = 0; i < 50; ++i) {
    const SequenceState s = sample_state(rng);
    const auto parsed = parse_sequence_state(serialize(s));
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(parsed.value(), s);
  }
}

TEST(SequenceState, DamageAndOtherVersionsAreRefused) {
  std::mt19937 rng(4);
  SequenceState s = sample_state(rng);
  s.tokens = {1, 2, 3};
  s.sections = {{.kind = 1, .bytes = {std::byte{1}}}};
  std::vector<std::byte> bytes = serialize(s);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(parse_sequence_state(bytes).ok()) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(parse_sequence_state(std::span(bytes).first(n)).ok()) << n;
  bytes[4] = std::byte{2};
  const Status status = parse_sequence_state(bytes).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("version 2"), std::string::npos);
}

// A right checksum over lengths that lie: nothing may be read beyond the bytes or allocated for them.
TEST(SequenceState, LyingCountsAreRefused) {
  std::mt19937 rng(5);
  const std::vector<std::byte> good = serialize(sample_state(rng));
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes = good;
    for (unsigned n = 1 + rng() % 4; n > 0; --n)
      bytes[16 + rng() % (bytes.size() - 16)] = static_cast<std::byte>(rng());
    const uint64_t sum = kv_checksum(std::span<const std::byte>(bytes).subspan(16));
    for (int k = 0; k < 8; ++k) bytes[8 + k] = static_cast<std::byte>(sum >> (8 * k));
    const auto parsed = parse_sequence_state(bytes);
    if (parsed.ok()) {
      EXPECT_EQ(serialize(parsed.value()), bytes);
    }
  }
}

}  // namespace
}  // namespace deepinfer::kv
