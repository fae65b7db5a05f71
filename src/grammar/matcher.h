// A grammar bound to a vocabulary (Compiled), and one output's position in it (Matcher).
//
//   DI_ASSIGN_OR_RETURN(auto compiled, Compiled::create(std::move(grammar), vocabulary));
//   Matcher m(compiled);
//   std::vector<uint32_t> mask(vocabulary->mask_words());
//   DI_RETURN_IF_ERROR(m.fill_mask(mask));       // bit t % 32 of word t / 32: token t may come next
//   bool fits = m.accept(token);
//   m.rollback(3);                               // the last three tokens, as if never accepted
//
// fill_mask and accept agree exactly: an ordinary token is in the mask if and only if accept takes it. End tokens are
// in the mask if and only if is_complete(). Everything is lazy: states and masks are worked out when first met and kept
// in the Compiled, which all its matchers share.
//
// Threads: one Matcher belongs to one thread at a time; matchers of one Compiled may be used by several threads, which
// never wait for each other: each of the first 64 threads that come has an arena of its own (a copy of the grammar, and
// what it worked out, up to memory_bytes_max), and later ones share these. The first use by a thread copies the
// grammar; a matcher that changes its thread is replayed there once, at about 0.1 us for each byte of its text. Within
// an arena each output is bounded by the request_ limits.
//
// Errors: a limit of Limits (memory, stack, items) makes fill_mask return it; accept then returns false, and status()
// says why.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace deepinfer::grammar {

class Compiled {
 public:
  static Result<std::shared_ptr<Compiled>> create(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary,
                                                  const Limits& limits = {});
  ~Compiled();
  const Vocabulary& vocabulary() const;
  // Bytes held now, masks and automaton states included.
  uint64_t memory_bytes() const;

  struct Impl;
  struct Lane;
  Impl& impl() const { return *impl_; }

 private:
  explicit Compiled(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Compiled> compiled);
  Matcher(Matcher&&) noexcept = default;
  Matcher& operator=(Matcher&&) noexcept = default;

  // Writes all mask_words() words.
  Status fill_mask(std::span<uint32_t> mask);
  // Takes a token if it may come next (an end token: if the text is complete; nothing may follow then). Otherwise
  // false, unchanged.
  bool accept(uint32_t token);
  // Takes ordinary text, not cut into tokens; counts as one token for rollback. All or nothing.
  bool accept_bytes(std::string_view bytes);
  // Whether the end may come here.
  bool is_complete();
  // Whether an end token was accepted.
  bool is_ended() const { return ended_; }
  // Tokens accepted so far (an accept_bytes counts as one).
  size_t length() const { return steps_.size(); }
  // Forgets the last `tokens` steps; at most length().
  void rollback(size_t tokens);
  // An independent matcher at the same position; cheap.
  Matcher fork() const { return *this; }
  // The longest text that must come next (jump-ahead), at most `max_bytes`; cut at a character border. Empty where
  // there is a choice, where the end is possible, or where an added token may come.
  std::string forced_bytes(size_t max_bytes = 256);
  // The position as bytes, for hand-over and crash replay: what was accepted, to be replayed on the same grammar and
  // vocabulary.
  std::string serialise() const;
  static Result<Matcher> restore(std::shared_ptr<Compiled> compiled, std::string_view state);
  // Why an accept failed, if a limit did it.
  const Status& status() const { return status_; }

 private:
  Matcher(const Matcher&) = default;
  Matcher& operator=(const Matcher&) = default;
  struct Step {
    uint32_t node;       // position before the step
    uint32_t token;      // or kBytesStep
    uint32_t text_size;  // size of text_ before the step
  };
  static constexpr uint32_t kBytesStep = UINT32_MAX;
  class Work;
  bool settle(Compiled::Lane& lane);
  bool replay(Compiled::Lane& lane);

  std::shared_ptr<Compiled> compiled_;
  const Compiled::Lane* lane_ = nullptr;  // whose node_ is
  uint64_t epoch_ = 0;
  uint32_t node_ = 0;
  bool ended_ = false;
  std::vector<Step> steps_;
  std::string text_;  // of accept_bytes steps
  Status status_;
};

}  // namespace deepinfer::grammar
