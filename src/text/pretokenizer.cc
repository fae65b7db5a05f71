#include "text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "text/unicode.h"

namespace deepinfer::text {
namespace {

constexpr size_t kWindow = 4096;

enum Kind : uint8_t { kLetter = 1, kPunct = 2, kBlank = 4, kOther = 8, kNumber = 16, kCjk = 32 };

bool is_cjk(uint32_t c) { return c - 0x4e00 <= 0x9fa5 - 0x4e00 || c - 0x3040 <= 0x30ff - 0x3040; }

// Kinds of the code points from U+0080 on, without kCjk.
struct KindTable {
  std::span<const uint16_t> block_of;
  std::vector<uint8_t> kinds;
};

const KindTable& kind_table() {
  static const KindTable table = [] {
    const CategoryTable& categories = category_table();
    KindTable out{categories.block_of, {}};
    for (const Category c : categories.blocks) {
      out.kinds.push_back(is_letter(c) || is_mark(c)          ? kLetter
                          : is_number(c)                      ? kNumber
                          : is_punctuation(c) || is_symbol(c) ? kPunct
                          : is_separator(c)                   ? kBlank
                                                              : kOther);
    }
    out.kinds[categories.index(0x85)] = kBlank;  // the only \s outside ASCII that is not a separator
    return out;
  }();
  return table;
}

// Of 64 bytes: ascii_masks() gives the kinds of ASCII bytes, and han_leads() the first bytes of characters from U+4E00
// to U+9F7F that lie in the 64 bytes as a whole.
struct AsciiMasks {
  uint64_t letter, digit, white, newline, space, graphic, high;
};

#if defined(__SSE2__)
// Bytes in [first, first + count): moved to the bottom of the signed range, one signed comparison is enough.
__m128i in_range(__m128i v, uint8_t first, uint8_t count) {
  return _mm_cmplt_epi8(_mm_add_epi8(v, _mm_set1_epi8(static_cast<char>(0x80 - first))),
                        _mm_set1_epi8(static_cast<char>(0x80 + count)));
}

AsciiMasks ascii_masks(const char* p) {
  AsciiMasks m{};
  for (int i = 0; i < 4; ++i) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    const auto put = [&](uint64_t& mask, __m128i bytes) {
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << (16 * i);
    };
    const __m128i space = _mm_cmpeq_epi8(v, _mm_set1_epi8(' '));
    put(m.letter, in_range(_mm_or_si128(v, _mm_set1_epi8(0x20)), 'a', 26));
    put(m.digit, in_range(v, '0', 10));
    put(m.white, _mm_or_si128(space, in_range(v, '\t', 5)));
    put(m.newline, _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\r'))));
    put(m.space, space);
    put(m.graphic, in_range(v, 0x21, 0x5e));
    put(m.high, v);
  }
  return m;
}

uint64_t han_leads(const char* p) {
  uint64_t whole = 0, low = 0, high = 0, from_b8 = 0, below_be = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    const auto put = [&](uint64_t& mask, __m128i bytes) {
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << (16 * i);
    };
    put(whole, in_range(v, 0xe5, 4));
    put(low, _mm_cmpeq_epi8(v, _mm_set1_epi8(static_cast<char>(0xe4))));
    put(high, _mm_cmpeq_epi8(v, _mm_set1_epi8(static_cast<char>(0xe9))));
    put(from_b8, in_range(v, 0xb8, 8));
    put(below_be, in_range(v, 0x80, 0x3e));
  }
  return (whole | (low & from_b8 >> 1) | (high & below_be >> 1)) & ~uint64_t{0} >> 2;
}
#else
AsciiMasks ascii_masks(const char* p) {
  AsciiMasks m{};
  for (int i = 0; i < 64; ++i) {
    const uint8_t c = static_cast<uint8_t>(p[i]);
    const auto put = [&](uint64_t& mask, bool yes) { mask |= static_cast<uint64_t>(yes) << i; };
    put(m.letter, static_cast<uint8_t>((c | 0x20) - 'a') < 26);
    put(m.digit, static_cast<uint8_t>(c - '0') < 10);
    put(m.white, c == ' ' || static_cast<uint8_t>(c - '\t') < 5);
    put(m.newline, c == '\n' || c == '\r');
    put(m.space, c == ' ');
    put(m.graphic, static_cast<uint8_t>(c - 0x21) < 0x5e);
    put(m.high, c >= 0x80);
  }
  return m;
}

uint64_t han_leads(const char* p) {
  uint64_t leads = 0;
  for (int i = 0; i < 62; ++i) {
    const uint8_t c = static_cast<uint8_t>(p[i]), after = static_cast<uint8_t>(p[i + 1]);
    const bool han = (c >= 0xe5 && c <= 0xe8) || (c == 0xe4 && after >= 0xb8) || (c == 0xe9 && after < 0xbe);
    leads |= static_cast<uint64_t>(han) << i;
  }
  return leads;
}
#endif

uint64_t low_bits(size_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Length and code point of the character whose first byte, above 0x7f, is *p.
uint32_t decode(const uint8_t* p, int* length) {
  if (p[0] < 0xe0) {
    *length = 2;
    return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
  }
  if (p[0] < 0xf0) {
    *length = 3;
    return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
  }
  *length = 4;
  return (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

// Runs of `mask` that start at `starts`: the bits just after each run's end. `carry` links consecutive words.
uint64_t run_ends(uint64_t mask, uint64_t starts, bool* carry) {
  const unsigned __int128 sum = static_cast<unsigned __int128>(mask) + starts + (*carry ? 1 : 0);
  *carry = static_cast<uint64_t>(sum >> 64) != 0;
  return static_cast<uint64_t>(sum) & ~mask;
}

}  // namespace

void PieceSplitter::start(std::string_view text) {
  rest_ = text;
  window_ = kWindow;
  count_ = 0;
}

bool PieceSplitter::next() {
  while (!rest_.empty()) {
    size_t bytes = std::min(window_, rest_.size());
    if (bytes < rest_.size()) {  // end before a character
      while (bytes > 0 && (static_cast<uint8_t>(rest_[bytes]) & 0xc0) == 0x80) --bytes;
    }
    base_ = rest_.data();
    classify(bytes);
    find_starts(bytes);
    list_starts(bytes);
    if (bytes < rest_.size()) {
      // What follows the window can only change its last two pieces: a run of white space may hold a piece that ends at
      // a newline and one after it, and every other formula looks one character ahead.
      if (count_ < 4 && window_ < kMaxWindow) {
        window_ *= 4;
        continue;
      }
      if (count_ >= 4) count_ -= 2;
    }
    rest_.remove_prefix(starts_[count_ - 1]);
    window_ = kWindow;
    return true;
  }
  return false;
}

void PieceSplitter::classify(size_t bytes) {
  const KindTable& table = kind_table();
  const size_t words = (bytes + 63) / 64;
  if (words_.size() < words + 1) words_.resize(words + 1);
  const uint8_t* const text = reinterpret_cast<const uint8_t*>(base_);
  uint64_t carried_bits = 0;  // bytes of the last character of the previous word that lie in this one
  uint8_t carried_kind = 0;
  for (size_t w = 0; w < words; ++w) {
    const size_t at = 64 * w, in_word = std::min<size_t>(64, bytes - at);
    AsciiMasks m;
    if (in_word == 64) {
      m = ascii_masks(base_ + at);
    } else {
      char padded[64] = {};
      std::memcpy(padded, base_ + at, in_word);
      m = ascii_masks(padded);
    }
    const uint64_t punct = m.graphic & ~(m.letter | m.digit);
    Word word{.letter = m.letter,
              .ascii_letter = m.letter,
              .punct = punct,
              .ascii_punct = punct,
              .blank = m.white & ~m.newline,
              .space = m.space,
              .newline = m.newline,
              .number = m.digit,
              .other = ~(m.graphic | m.white | m.high) & low_bits(in_word),
              .cjk = 0};
    if ((m.high | carried_bits) != 0) {
      const auto put = [&](uint64_t bits, uint8_t kind) {
        const auto all = [&](Kind k) { return (kind & k) ? bits : 0; };
        word.letter |= all(kLetter);
        word.punct |= all(kPunct);
        word.blank |= all(kBlank);
        word.other |= all(kOther);
        word.number |= all(kNumber);
        word.cjk |= all(kCjk);
      };
      put(carried_bits, carried_kind);
      // Chinese comes in long runs.
      uint64_t han = in_word == 64 ? han_leads(base_ + at) : 0;
      han |= han << 1 | han << 2;
      put(han, kLetter | kCjk);
      uint64_t left = m.high & ~carried_bits & ~han;
      carried_bits = 0;
      while (left != 0) {
        const int bit = std::countr_zero(left);
        int length;
        const uint32_t c = decode(text + at + bit, &length);
        const uint64_t bits = low_bits(static_cast<size_t>(length)) << bit;
        left &= ~bits;
        uint8_t kind = table.kinds[size_t{table.block_of[c / CategoryTable::kBlock]} * CategoryTable::kBlock +
                                   c % CategoryTable::kBlock];
        if (is_cjk(c)) kind |= kCjk;
        put(bits, kind);
        if (bit + length > 64) {
          carried_bits = low_bits(static_cast<size_t>(bit + length - 64));
          carried_kind = kind;
        }
      }
    }
    words_[w] = word;
  }
  words_[words] = Word{};
}

void PieceSplitter::find_starts(size_t bytes) {
  const size_t words = (bytes + 63) / 64;
  if (marks_.size() < words) marks_.resize(words);
  Word before{};  // the previous word
  bool letters_carry = false, newlines_carry = false, long_numbers = false;
  for (size_t w = 0; w < words; ++w) {
    const Word& m = words_[w];
    const Word& after = words_[w + 1];
    // The mask moved so that each byte sees the one before it, two before it, or after it.
#define PREVIOUS(mask) (m.mask << 1 | before.mask >> 63)
#define TWO_BEFORE(mask) (m.mask << 2 | before.mask >> 62)
    const uint64_t previous_blank_or_other = PREVIOUS(blank) | PREVIOUS(other);
    const uint64_t previous_plain_punct = PREVIOUS(punct) & ~PREVIOUS(cjk);
    // Between segments: numbers (pattern 1), CJK runs (pattern 2), the rest.
    uint64_t mark = (m.cjk ^ PREVIOUS(cjk)) | (m.number ^ PREVIOUS(number));
    // One ASCII punctuation character, not part of a longer run of punctuation, before ASCII letters; other letters
    // after those.
    const uint64_t after_lead =
        m.ascii_letter & PREVIOUS(ascii_punct) & ~TWO_BEFORE(space) & ~(TWO_BEFORE(punct) & ~TWO_BEFORE(cjk));
    mark |= run_ends(m.ascii_letter, after_lead, &letters_carry) & m.letter;
    // Letters take a blank or another character before them; punctuation takes a space before and newlines after it.
    mark |= m.letter & ~PREVIOUS(letter) & ~previous_blank_or_other & ~after_lead;
    mark |= m.punct & ~PREVIOUS(punct) & ~PREVIOUS(space);
    mark |= m.other & ~PREVIOUS(other);
    const uint64_t after_punct = m.newline & previous_plain_punct;
    mark |= (m.blank | m.newline) & ~(PREVIOUS(blank) | PREVIOUS(newline)) & ~after_punct;
    mark |= run_ends(m.newline, after_punct, &newlines_carry);
    // The last blank, or the last other character, before what it belongs to or is parted from.
    const uint64_t next_letter = m.letter >> 1 | after.letter << 63, next_cjk = m.cjk >> 1 | after.cjk << 63;
    const uint64_t next_visible = next_letter | (m.punct | m.other) >> 1 | (after.punct | after.other) << 63;
    const uint64_t leads = (m.blank & next_visible & ~next_cjk) | (m.other & next_letter & ~(m.cjk ^ next_cjk));
    marks_[w] = mark | leads;
    for (uint64_t left = leads & ~m.space; left != 0; left &= left - 1) {
      const size_t at = 64 * w + static_cast<size_t>(std::countr_zero(left));
      if (static_cast<uint8_t>(base_[at]) < 0x80) continue;
      marks_[w] &= ~(left & -left);
      mark_character_start(at);
    }
    if (const uint64_t tails = m.blank & PREVIOUS(newline) & ~marks_[w]; tails != 0) mark_blank_tails(w, tails);
    long_numbers |= (m.number & PREVIOUS(number) & TWO_BEFORE(number) & (m.number << 3 | before.number >> 61)) != 0;
#undef PREVIOUS
#undef TWO_BEFORE
    before = m;
  }
  if (long_numbers) mark_number_groups(words);
  marks_[0] |= 1;
  if (bytes % 64 != 0) marks_[words - 1] &= low_bits(bytes % 64);
}

// Blanks after a newline start a piece unless another newline follows them in the same run of white space.
void PieceSplitter::mark_blank_tails(size_t word, uint64_t run_starts) {
  for (; run_starts != 0; run_starts &= run_starts - 1) {
    const int bit = std::countr_zero(run_starts);
    size_t w = word;
    uint64_t ended = ~words_[w].blank & ~low_bits(static_cast<size_t>(bit));
    while (ended == 0 && w + 1 < words_.size()) ended = ~words_[++w].blank;
    if ((words_[w].newline & ended & -ended) == 0) marks_[word] |= uint64_t{1} << bit;
  }
}

// \p{N}{1,3}: a start at every third character of a run of numbers.
void PieceSplitter::mark_number_groups(size_t words) {
  size_t group = 0;              // characters in the current group
  size_t expected = ~size_t{0};  // the byte after the last number seen
  for (size_t w = 0; w < words; ++w) {
    for (uint64_t left = words_[w].number; left != 0; left &= left - 1) {
      const size_t at = 64 * w + static_cast<size_t>(std::countr_zero(left));
      const bool goes_on = at == expected;
      expected = at + 1;
      if ((static_cast<uint8_t>(base_[at]) & 0xc0) == 0x80) continue;
      if (!goes_on) group = 0;
      if (group == 3) {
        marks_[w] |= left & -left;
        group = 0;
      }
      ++group;
    }
  }
}

void PieceSplitter::mark_character_start(size_t byte) {
  while ((static_cast<uint8_t>(base_[byte]) & 0xc0) == 0x80) --byte;
  marks_[byte / 64] |= uint64_t{1} << byte % 64;
}

void PieceSplitter::list_starts(size_t bytes) {
  if (starts_.size() < bytes + 65) starts_.resize(bytes + 65);
  uint32_t* out = starts_.data();
  const size_t words = (bytes + 63) / 64;
  for (size_t w = 0; w < words; ++w) {
    uint64_t mark = marks_[w];
    const uint32_t at = static_cast<uint32_t>(64 * w);
    const int count = std::popcount(mark);
    // Sixteen without asking, since a loop of unknown length costs a misprediction per word; what is too many is
    // overwritten.
    for (int i = 0; i < 16; ++i) {
      out[i] = at + static_cast<uint32_t>(std::countr_zero(mark));
      mark &= mark - 1;
    }
    for (int i = 16; i < count; ++i) {
      out[i] = at + static_cast<uint32_t>(std::countr_zero(mark));
      mark &= mark - 1;
    }
    out += count;
  }
  *out++ = static_cast<uint32_t>(bytes);
  count_ = static_cast<size_t>(out - starts_.data());
}

}  // namespace deepinfer::text
