#include "kv/record.h"

#include <cstring>

#include "kv/checksum.h"

namespace deepinfer::kv {
namespace {

constexpr char kMagic[4] = {'D', 'I', 'K', 'V'};
constexpr size_t kHeaderBytes = 4 + 4 + 16 + 4 + 4 + 8;
constexpr size_t kChecksumBytes = 8;

void put_number(std::byte* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t get_number(const std::byte* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  return value;
}

}  // namespace

uint64_t kv_checksum(std::span<const std::byte> bytes) {
  static const auto widest = __builtin_cpu_supports("avx512f") ? &checksum_avx512
                             : __builtin_cpu_supports("avx2")  ? &checksum_avx2
                                                               : &checksum_plain;
  return widest(bytes.data(), bytes.size());
}

uint64_t copy_checksum(std::span<const std::byte> bytes, std::byte* to) {
  static const auto widest = __builtin_cpu_supports("avx512f") ? &copy_checksum_avx512
                             : __builtin_cpu_supports("avx2")  ? &copy_checksum_avx2
                                                               : &copy_checksum_plain;
  return widest(bytes.data(), to, bytes.size());
}

size_t record_bytes(size_t tokens, size_t payload_bytes) {
  return kHeaderBytes + 4 * tokens + payload_bytes + kChecksumBytes;
}

void seal_record(const BlockKey& key, std::span<const int32_t> tokens, std::span<const std::byte> payload,
                 std::span<std::byte> record) {
  std::byte* at = record.data();
  std::memcpy(at, kMagic, 4);
  put_number(at + 4, kRecordVersion, 4);
  std::memcpy(at + 8, key.bytes.data(), 16);
  put_number(at + 24, tokens.size(), 4);
  put_number(at + 28, 0, 4);
  put_number(at + 32, payload.size(), 8);
  at += kHeaderBytes;
  for (int32_t t : tokens) {
    put_number(at, static_cast<uint32_t>(t), 4);
    at += 4;
  }
  if (!payload.empty()) std::memcpy(at, payload.data(), payload.size());
  at += payload.size();
  put_number(at, kv_checksum(record.first(at - record.data())), kChecksumBytes);
}

bool record_is_whole(std::span<const std::byte> record) {
  if (record.size() < kHeaderBytes + kChecksumBytes || std::memcmp(record.data(), kMagic, 4) != 0) return false;
  const size_t body = record.size() - kChecksumBytes;
  return get_number(record.data() + body, kChecksumBytes) == kv_checksum(record.first(body));
}

bool copy_record(std::span<const std::byte> record, std::span<std::byte> to) {
  if (record.size() < kHeaderBytes + kChecksumBytes || std::memcmp(record.data(), kMagic, 4) != 0) {
    if (!record.empty()) std::memcpy(to.data(), record.data(), record.size());
    return false;
  }
  const size_t body = record.size() - kChecksumBytes;
  const uint64_t sum = copy_checksum(record.first(body), to.data());
  std::memcpy(to.data() + body, record.data() + body, kChecksumBytes);
  return get_number(to.data() + body, kChecksumBytes) == sum;
}

Result<std::span<const std::byte>> open_record(std::span<const std::byte> record, const BlockKey& key,
                                               std::span<const int32_t> tokens, bool checked) {
  const auto bad = [&key](std::string_view what) {
    return make_error(Code::kDataLoss, "KV record of block {}: {}", key.hex(), what);
  };
  const size_t fixed = record_bytes(tokens.size(), 0);
  if (record.size() < fixed) return bad("it is cut short");
  const std::byte* at = record.data();
  if (std::memcmp(at, kMagic, 4) != 0 || get_number(at + 4, 4) != kRecordVersion)
    return bad("it has another format or version");
  if (std::memcmp(at + 8, key.bytes.data(), 16) != 0) return bad("it belongs to another key");
  if (get_number(at + 24, 4) != tokens.size() || get_number(at + 32, 8) != record.size() - fixed)
    return bad("its lengths do not fit");
  const size_t body = record.size() - kChecksumBytes;
  if (!checked && get_number(at + body, kChecksumBytes) != kv_checksum(record.first(body)))
    return bad("its checksum does not fit");
  at += kHeaderBytes;
  for (int32_t t : tokens) {
    if (get_number(at, 4) != static_cast<uint32_t>(t)) return bad("its tokens differ");
    at += 4;
  }
  return std::span<const std::byte>(at, record.size() - fixed);
}

}  // namespace deepinfer::kv
