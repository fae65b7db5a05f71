// One sequence on a model, without an engine: append tokens, read logits, draft, step back.
//
//   KvAllocator kv(options.pages, options.slots);
//   DI_ASSIGN_OR_RETURN(Sequence s, Sequence::create(*model, kv, decoder_begin));
//   std::vector<float> logits;
//   DI_RETURN_IF_ERROR(s.append(prompt, 1, &logits));           // prefill; logits of the last row
//   DI_ASSIGN_OR_RETURN(Draft d, s.draft(next_token, 5));       // greedy DSpark proposals
//   DI_RETURN_IF_ERROR(s.append(verify_tokens, 6, &logits));
//   s.truncate(accepted_length);                                // at most `backtrack` tokens back
//
// For several sequences in one step: add_rows() each to one StepPlan, model.forward(plan), then commit_rows() each.
// Sizes: logits are [outputs, vocab_size]. Errors: those of Model::forward and KvAllocator; a sequence stays as it was.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/kv_memory.h"
#include "model/model.h"

namespace deepinfer::model {

struct Draft {
  std::vector<int32_t> tokens;    // [drafts]
  std::vector<float> confidence;  // [drafts] logits
  std::vector<float> logits;      // [drafts, vocab_size], when asked for
};

class Sequence {
 public:
  static Result<Sequence> create(Model& model, KvAllocator& kv, int32_t decoder_begin = 0);
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&&) = delete;
  ~Sequence();

  // A sequence whose global KV below `hit` (whole pages) is shared with `source` and whose windows begin at `start`:
  // append source's tokens from `start` on (spec/model.md 15.6).
  static Result<Sequence> with_cached_prefix(const Sequence& source, int32_t hit, int32_t start, int32_t decoder_begin);

  // Runs tokens in steps of at most the model's rows. image_rows: per token a row of Role::kImageRows or -1; empty: all
  // text. `logits` may be null when outputs is 0.
  Status append(std::span<const int32_t> tokens, int32_t outputs, std::vector<float>* logits,
                std::span<const int32_t> image_rows = {});
  Result<Draft> draft(int32_t next_token, int32_t drafts, bool with_logits = false);
  void truncate(int32_t length);

  // Adds the next `tokens` to a plan (pages are taken now), and makes them part of the sequence after the step has run.
  Status add_rows(StepPlan& plan, std::span<const int32_t> tokens, int32_t outputs,
                  std::span<const int32_t> image_rows = {});
  void commit_rows(std::span<const int32_t> tokens, std::span<const int32_t> image_rows = {});

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t decoder_begin() const { return decoder_begin_; }
  int32_t slot() const { return slot_; }
  std::span<const int32_t> blocks() const { return blocks_; }

 private:
  Sequence(Model& model, KvAllocator& kv) : model_(&model), kv_(&kv) {}

  Model* model_;
  KvAllocator* kv_;
  int32_t slot_ = -1;
  int32_t decoder_begin_ = 0, window_begin_ = 0, cached_ = 0;
  std::vector<int32_t> tokens_;  // kNoToken at image positions
  std::vector<int32_t> blocks_;
  StepPlan plan_;
  std::vector<double> values_;
};

}  // namespace deepinfer::model
