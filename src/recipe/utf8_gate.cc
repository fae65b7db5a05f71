#include "recipe/utf8_gate.h"

#include <cstdint>
#include <cstring>

namespace deepinfer::recipe {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Looks at the sequence at the start of [p, p + n), n > 0.
struct Sequence {
  size_t length;  // bytes of the character, or of the maximal part of one that must be replaced
  bool valid;
  bool unfinished;  // all n bytes are the start of a character
};

Sequence look(const unsigned char* p, size_t n) {
  const unsigned char c = p[0];
  if (c < 0x80) return {1, true, false};
  size_t need;
  unsigned char low = 0x80, high = 0xBF;  // of the second byte (Unicode table 3-7)
  if (c >= 0xC2 && c <= 0xDF) {
    need = 2;
  } else if (c >= 0xE0 && c <= 0xEF) {
    need = 3;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
  } else if (c >= 0xF0 && c <= 0xF4) {
    need = 4;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
  } else {
    return {1, false, false};
  }
  for (size_t k = 1; k < need; ++k) {
    if (k == n) return {n, false, true};
    if (p[k] < low || p[k] > high) return {k, false, false};
    low = 0x80, high = 0xBF;
  }
  return {need, true, false};
}

// Length of the valid prefix; stops at the first byte that needs care.
size_t valid_prefix(const unsigned char* p, size_t n) {
  size_t i = 0;
  while (i < n) {
    while (i + 8 <= n) {
      uint64_t word;
      std::memcpy(&word, p + i, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      i += 8;
    }
    if (i == n) break;
    const Sequence s = look(p + i, n - i);
    if (!s.valid) break;
    i += s.length;
  }
  return i;
}

}  // namespace

void Utf8Gate::append_clean(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t good = valid_prefix(p + i, bytes.size() - i);
    buffer_.append(bytes, i, good);
    i += good;
    if (i == bytes.size()) break;
    const Sequence s = look(p + i, bytes.size() - i);
    if (s.unfinished) {
      std::memcpy(tail_, bytes.data() + i, s.length);
      tail_size_ = s.length;
      return;
    }
    buffer_ += kReplacement;
    i += s.length;
  }
}

std::string_view Utf8Gate::push(std::string_view bytes) {
  from_earlier_ = 0;
  if (bytes.empty()) return {};
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  if (tail_size_ == 0) {
    const size_t good = valid_prefix(p, bytes.size());
    if (good == bytes.size()) return bytes;
    const Sequence s = look(p + good, bytes.size() - good);
    if (s.unfinished) {
      tail_size_ = s.length;
      std::memcpy(tail_, bytes.data() + good, s.length);
      return bytes.substr(0, good);
    }
    buffer_.clear();
    append_clean(bytes);
    return buffer_;
  }
  // The waiting bytes are a proper start of a character: the next bytes finish it, or the start is replaced.
  buffer_.clear();
  size_t used = 0;
  while (used < bytes.size()) {
    tail_[tail_size_] = bytes[used];
    const Sequence s = look(reinterpret_cast<const unsigned char*>(tail_), tail_size_ + 1);
    if (s.unfinished) {
      ++tail_size_, ++used;
      continue;
    }
    if (s.valid) {
      from_earlier_ = tail_size_ - used;
      buffer_.append(tail_, tail_size_ + 1);
      ++used;
    } else {
      // If this piece continued the start before it broke, the replacement counts as the earlier piece's.
      from_earlier_ = kReplacement.size();
      buffer_ += kReplacement;
    }
    tail_size_ = 0;
    append_clean(bytes.substr(used));
    return buffer_;
  }
  return {};
}

std::string_view Utf8Gate::break_off() {
  if (tail_size_ == 0) return {};
  tail_size_ = 0;
  return kReplacement;
}

}  // namespace deepinfer::recipe
