// When a request's grammar begins to hold: after a sequence of token ids has come out, for example the end of thinking.
//
//   GrammarTrigger trigger(ids, bound);
//   int32_t next = trigger.forced();        // the token that must come now; -1: free
//   trigger.take(token);
//   if (trigger.open()) mask with the grammar
//
// Until then the answer is free. Matches may overlap (1 1 2 is found in 1 1 1 2). Once the token `bound` has come out,
// the sequence is forced token by token (spec/deepinfer.md G3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::engine {

class GrammarTrigger {
 public:
  GrammarTrigger(std::vector<int32_t> ids, int32_t bound);

  bool open() const { return matched_ == ids_.size(); }
  int32_t forced() const { return forcing_ && !open() ? ids_[forced_] : -1; }
  void take(int32_t token);

 private:
  std::vector<int32_t> ids_;
  std::vector<size_t> shorter_;  // of the first i ids: the longest part of their end that begins the sequence
  int32_t bound_;
  size_t matched_ = 0, forced_ = 0;
  bool forcing_ = false;
};

}  // namespace deepinfer::engine
