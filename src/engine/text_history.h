// What a tenant's answers say: which token followed the last time, and how often, after the same few tokens. Answers to
// requests of one kind repeat each other (the frame of tool calls, set phrases), so it is a drafter that costs no
// forward. Internal to engine/.
//
//   TextHistory history;
//   history.append(text, prompt.size());          // text[prompt.size() ..] is new; what is before is its context
//   TextHistory::Guess g = history.guess(text);   // g.token behind the text, or -1
//
// Contexts are the last 8, 5, 3 and 2 tokens; the longest that is known counts. Each has its two likeliest tokens with
// counts that halve when full, so that new text wins over old. Memory: 16 bytes a context, 4 x `lines` of them and no
// more; a full line loses what was met least. append() takes constant time a token, guess() constant time. Contexts are
// known by a hash of 32 bits and their line, so that a guess may rarely be of another context: it is a guess.
// Nearly every line that is touched has left the caches: several tokens in one append() wait for memory together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace deepinfer::engine {

class TextHistory {
 public:
  static constexpr std::array<int, 4> kContexts = {8, 5, 3, 2};
  static constexpr size_t kContextMax = 8;
  static constexpr size_t kLines = 1 << 15;  // 2 MiB

  struct Guess {
    int32_t token = -1;
    int context = 0;  // place in kContexts
    float share = 0;  // of the times that the context was met, one more counted: below 1
  };

  // A power of two.
  explicit TextHistory(size_t lines = kLines) : lines_(lines) {}

  void append(std::span<const int32_t> text, size_t from);
  Guess guess(std::span<const int32_t> text) const;

 private:
  struct Entry {
    uint32_t hash = 0;
    int32_t token = -1, rival = -1;
    uint8_t count = 0, rival_count = 0, met = 0;
    uint8_t life = 0;  // 0: free
  };
  struct alignas(64) Line {  // of the cache
    std::array<Entry, 4> entries;
  };
  struct Keys {
    std::array<uint64_t, kContexts.size()> of = {};  // by context; only those that the text is long enough for
    size_t first = 0;
  };

  static Keys keys_of(std::span<const int32_t> text);
  size_t line_of(uint64_t key) const { return (key >> 32) & (lines_.size() - 1); }
  void fetch(const Keys& keys) const;
  void add(uint64_t key, int32_t token);

  std::vector<Line> lines_;
};

// Histories by tenant: of one tenant's answers nothing is seen, not even by time, in another's.
class TextHistories {
 public:
  static constexpr size_t kMost = 16;

  // Null: so many tenants have answers in work that none is free.
  std::shared_ptr<TextHistory> of(int32_t tenant);

 private:
  struct Entry {
    int32_t tenant = 0;
    uint64_t used = 0;
    std::shared_ptr<TextHistory> history;
  };
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace deepinfer::engine
