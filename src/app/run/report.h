// What `deepinfer run` says about an answer besides the answer: figures, why it ended, and all of it as JSON.
#pragma once

#include <string>

#include "app/run/session.h"
#include "recipe/json.h"

namespace deepinfer::app {

// Sums over a conversation.
struct Totals {
  int64_t answers = 0, prompt_tokens = 0, output_tokens = 0, decoded_tokens = 0;
  double prefill_s = 0, decode_s = 0;

  void add(const engine::GenerateResult& r);
  // "34 prompt tokens at 1200 tokens/s, 80 tokens at 310 tokens/s"
  std::string to_string() const;
};

// A sentence when the answer did not end by itself; empty otherwise.
std::string why_cut(const Answer& answer);

struct ReportContext {
  std::string model;
  uint64_t seed = 0;
  double load_s = 0;
};
recipe::Json answer_json(const Answer& answer, const ReportContext& context);

}  // namespace deepinfer::app
