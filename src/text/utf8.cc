#include "text/utf8.h"

#include <simdjson.h>

namespace deepinfer::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  if (bytes.size() < 16) {
    while (!bytes.empty()) {
      const Utf8Step step = read_utf8(bytes);
      if (step.head != Utf8Head::kCharacter) return false;
      bytes.remove_prefix(step.length);
    }
    return true;
  }
  return simdjson::validate_utf8(bytes.data(), bytes.size());
}

Utf8Step read_utf8(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8Head::kCharacter, 1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Head::kBroken, 1, 0};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range shuts out overlong forms, surrogates and values above U+10FFFF.
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  uint32_t code_point = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {Utf8Head::kIncomplete, static_cast<uint8_t>(i), 0};
    const bool fits = i == 1 ? at(i) >= low && at(i) <= high : (at(i) & 0xc0) == 0x80;
    if (!fits) return {Utf8Head::kBroken, static_cast<uint8_t>(i), 0};
    code_point = code_point << 6 | (at(i) & 0x3f);
  }
  return {Utf8Head::kCharacter, static_cast<uint8_t>(length), code_point};
}

std::string replace_broken_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + 16);
  size_t good = 0;  // start of the stretch not copied yet
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = read_utf8(bytes.substr(i));
    if (step.head != Utf8Head::kCharacter) {
      out.append(bytes, good, i - good);
      out += kReplacement;
      good = i + step.length;
    }
    i += step.length;
  }
  out.append(bytes, good);
  return out;
}

size_t count_code_points(std::string_view text) {
  size_t continuation = 0;
  for (const char c : text) continuation += (static_cast<uint8_t>(c) & 0xc0) == 0x80;
  return text.size() - continuation;
}

void append_utf8(uint32_t code_point, std::string* out) {
  const auto tail = [&](int shift) { out->push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3f))); };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xc0 | code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xf0 | code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace deepinfer::text
