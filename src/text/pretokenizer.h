// DeepSeek's pre-tokenizer: cuts text into the pieces inside which BPE merges (spec/protocol.md 1.1).
//
//   PieceSplitter splitter;
//   splitter.start(text);                                    // valid UTF-8
//   while (splitter.next()) {
//     const std::span<const uint32_t> s = splitter.starts();
//     for (size_t i = 0; i + 1 < s.size(); ++i) use(splitter.base() + s[i], s[i + 1] - s[i]);
//   }
//
// How: a window of text is turned into bit masks, one bit per byte and one mask per kind of character; the three
// patterns become boolean formulas over neighbouring bits that give all piece starts of 64 bytes at once. Work is
// linear in the text. Limit: a piece of kMaxWindow bytes may be cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class PieceSplitter {
 public:
  static constexpr size_t kMaxWindow = size_t{1} << 31;

  void start(std::string_view text);
  // Finds the pieces of the next window; false when the text is used up.
  bool next();
  const char* base() const { return base_; }
  // Offsets from base(): the start of each piece, and at last the end of the last one.
  std::span<const uint32_t> starts() const { return {starts_.data(), count_}; }

 private:
  // The kinds of characters; each byte of a character carries its kind. A word holds the bits of 64 bytes.
  struct Word {
    uint64_t letter;  // \p{L} or \p{M}
    uint64_t ascii_letter;
    uint64_t punct;  // \p{P} or \p{S}
    uint64_t ascii_punct;
    uint64_t blank;    // \s without newlines
    uint64_t space;    // U+0020
    uint64_t newline;  // \r or \n
    uint64_t number;   // \p{N}
    uint64_t other;    // none of these
    uint64_t cjk;      // in the second pattern's set, besides its kind
  };
  void classify(size_t bytes);
  void find_starts(size_t bytes);
  void mark_blank_tails(size_t word, uint64_t run_starts);
  void mark_number_groups(size_t words);
  void mark_character_start(size_t byte);
  void list_starts(size_t bytes);

  std::string_view rest_;  // what no window has covered yet
  const char* base_ = nullptr;
  size_t window_ = 0;
  size_t count_ = 0;
  std::vector<Word> words_;
  std::vector<uint64_t> marks_;  // piece starts
  std::vector<uint32_t> starts_;
};

}  // namespace deepinfer::text
