// A set of Unicode code points (surrogates excluded), as sorted ranges.
//
//   CharSet vowels = CharSet::of(U"aeiou");
//   CharSet letters = CharSet::range('a', 'z') | CharSet::range('A', 'Z');
//   CharSet rest = ~letters;                       // among all code points
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer::grammar {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

class CharSet {
 public:
  struct Range {
    uint32_t first, last;  // both inclusive
    bool operator==(const Range&) const = default;
  };

  CharSet() = default;
  static CharSet all();  // U+0000..U+10FFFF without U+D800..U+DFFF
  static CharSet range(uint32_t first, uint32_t last);
  static CharSet of(std::u32string_view chars);

  void add(uint32_t first, uint32_t last);
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  // Sorted, disjoint, not touching.
  const std::vector<Range>& ranges() const { return ranges_; }

  CharSet operator|(const CharSet& other) const;
  CharSet operator&(const CharSet& other) const;
  CharSet operator~() const;
  bool operator==(const CharSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace deepinfer::grammar
