#include "recipe/call_ids.h"

#include <cstdint>

#include <fmt/format.h>

#include "base/mix.h"

namespace deepinfer::recipe {
namespace {

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t h = mix_bits(seed ^ text.size());
  for (const char c : text) h = mix_bits(h ^ static_cast<unsigned char>(c)) + 0x9E3779B97F4A7C15u;
  return h;
}

}  // namespace

std::string call_id(std::string_view response_id, int choice, int call, bool empty_thought) {
  static constexpr char kDigits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id = fmt::format("call_{:02}_{}", call, empty_thought ? "ET_" : "");
  const uint64_t place = static_cast<uint64_t>(choice) << 32 | static_cast<uint32_t>(call);
  for (uint64_t part = 0; part < 3; ++part) {  // 8 digits of base 62 are 47 bits
    uint64_t bits = mix_bits(hash(response_id, part) ^ mix_bits(place + part));
    for (int i = 0; i < 8; ++i, bits /= 62) id += kDigits[bits % 62];
  }
  return id;
}

}  // namespace deepinfer::recipe
