// Drafts from a request's own text: what followed the last time that the text ended like this (tool loops, edits and
// quotes repeat themselves). No model is asked.
//
//   NgramIndex index;
//   index.append(prompt);                     // then every committed token; push() and a later enter() are the same
//   std::array<int32_t, 5> drafts;
//   NgramIndex::Proposal p = index.propose(drafts);   // p.count drafts; p.matched tokens of the end were found before
//
// The last kLongest, kMiddle and kShortest tokens are looked up, the longest first; of several earlier places the
// latest counts. A hit is compared token by token and its length counted up to kMatchMax. A text that overlaps with its
// own continuation (a repeated token) is continued periodically.
// Memory: 4 bytes a token for the text and at most 96 for its places, allocated as the text grows. propose() takes
// constant time. Every text is fine, the empty one included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::engine {

class NgramIndex {
 public:
  static constexpr int kShortest = 2, kMiddle = 4, kLongest = 8;
  static constexpr int kMatchMax = 32;

  struct Proposal {
    int count = 0;
    int matched = 0;  // 0 or kShortest .. kMatchMax
  };

  void append(std::span<const int32_t> tokens) {
    push(tokens);
    enter();
  }
  void push(std::span<const int32_t> tokens) { text_.insert(text_.end(), tokens.begin(), tokens.end()); }
  // Of what was pushed: before propose().
  void enter();
  // What would follow `text + ahead`, where `ahead` is known but not appended yet (at most kAheadMax tokens).
  static constexpr int kAheadMax = 16;
  Proposal propose(std::span<int32_t> drafts, std::span<const int32_t> ahead = {}) const;

  std::span<const int32_t> text() const { return text_; }
  size_t size() const { return text_.size(); }
  void clear();

 private:
  // Places of n-grams of one length: open addressing, key = hash of the tokens, value = index of the token behind.
  class Places {
   public:
    explicit Places(int n) : n_(n) {}
    int n() const { return n_; }
    void add(uint32_t hash, int32_t behind);
    int32_t find(uint32_t hash) const;  // -1: none
    void clear();

   private:
    struct Entry {
      uint32_t hash = 0;
      int32_t behind = 0;  // 0: free; nothing is behind no token
    };
    void grow();
    int n_;
    size_t used_ = 0;
    std::vector<Entry> entries_;
  };

  static uint32_t hash(std::span<const int32_t> tokens);

  std::vector<int32_t> text_;
  size_t entered_ = 0;  // tokens
  std::array<Places, 3> places_ = {Places(kLongest), Places(kMiddle), Places(kShortest)};
};

}  // namespace deepinfer::engine
