// What the engine is asked for, and the ranges of every parameter.
//
//   Request r{.prompt = ids, .sampling = {.temperature = 0.7}, .seed = 7, .max_tokens = 100, .stop = {"\n\n"}};
//   DI_RETURN_IF_ERROR(check_request(r, limits));
//
// check_request() refuses a value that is out of range with kInvalidArgument and names the parameter and its range; a
// prompt that is too long for the context is refused as well. It allocates nothing that the request does not hold
// already.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/tier.h"
#include "ops/sampling.h"

namespace deepinfer::grammar {
class Compiled;
}

namespace deepinfer::engine {

struct Request {
  std::vector<int32_t> prompt;
  ops::SamplingParams sampling;
  // Same seed, same tokens. Absent: derived from EngineOptions::seed and the number of the request. The answers to
  // one prompt differ by their index, which is a part of the noise (ops/sampling.h), not of the seed.
  std::optional<uint64_t> seed;
  int32_t n = 1;           // answers
  int32_t max_tokens = 0;  // 0: until the context is full
  int32_t min_tokens = 0;  // end and stop tokens cannot come before so many tokens

  std::vector<int32_t> stop_tokens;  // beside the model's own end tokens
  std::vector<std::string> stop;     // texts; the answer's text ends before the first of them
  bool ignore_end = false;           // the model's own end tokens do not end the answer

  bool logprobs = false;         // natural log softmax of the model's logits, before everything else
  // instead, of the distribution drawn from: penalties, masks, temperature, truncation
  bool processed_logprobs = false;
  int32_t top_logprobs = 0;      // and of so many of the likeliest tokens
  bool prompt_logprobs = false;  // the same for every prompt token but the first; runs the whole prompt, uncached

  // The model's logits of every drawn token and, with prompt_logprobs, of every prompt token but the first: called on
  // the engine's thread with the token's position, and only then valid. It must be quick.
  std::function<void(int32_t sample, int32_t position, std::span<const float> logits)> on_logits;

  std::vector<int32_t> allowed_tokens;         // only these may be drawn; empty: all
  std::vector<int32_t> forced_tokens;          // replaces the drawn tokens one by one; -1 leaves the model's choice
  std::shared_ptr<grammar::Compiled> grammar;  // masks what does not fit; null: none
  std::vector<int32_t> grammar_after;          // the grammar holds behind these tokens only; empty: from the start
  int32_t grammar_bound = -1;                  // a token behind which grammar_after is forced; -1: none
  // cannot be drawn before the grammar holds; end tokens neither, if not empty
  std::vector<int32_t> before_grammar_banned;
  bool text = true;                            // events carry text; false: token ids only, and no stop texts
  // guessed ahead of it in a step; -1: as many as the engine allows, 0: none
  int32_t drafts_max = -1;
  bool full_prefill = false;                   // the decoder half reads the whole prompt, not only its last KEEP tokens
  bool cache = true;                           // read and fill the prefix cache
  int32_t tenant = 0;                          // from Engine::add_tenant
  int32_t priority = 0;                        // -8 .. 8
  kv::Traffic traffic = kv::Traffic::kChat;    // how long its computed blocks are kept, and how they are counted
  double timeout_s = 0;                        // 0: none
};

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t context_max = 0;
  int32_t samples_max = 16;
  int32_t top_logprobs_max = 1000;
  int32_t stop_max = 16;
  size_t stop_bytes_max = 4096;
  int32_t stop_tokens_max = 256;
  int32_t grammar_after_max = 256;
  int64_t prompt_logprobs_max = 1 << 22;  // prompt tokens times (top_logprobs + 1)
  bool has_text = false;                  // there is a tokenizer, so that stop texts can be found
};

Status check_request(const Request& request, const RequestLimits& limits);

}  // namespace deepinfer::engine
