// Identity of a checkpoint's content (internal to checkpoint/; the public calls are Checkpoint::digest and
// full_digest).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::checkpoint {

// SHA-256 in pieces.
//
//   Sha256 h;
//   h.add("abc");
//   std::string hex = h.finish();
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  void add_number(uint64_t v);    // 8 bytes, little-endian
  void add_text(std::string_view text);  // length, then the bytes: no two lists of texts look alike
  std::string finish();           // 64 lower-case hexadecimal digits

 private:
  void* context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace deepinfer::checkpoint
