// A line of a batch file -> what the engine and the answer's builder need.
//
//   LineReader reader(tokenizer, {.context_max = 8192, .seed = 0});
//   Line line;
//   Status status = reader.read(text, number, &line);      // a sentence that says what is wrong with the line
//
// Two forms of line, each a JSON object:
//   OpenAI's batch file   {"custom_id": .., "method": "POST", "url": "/v1/chat/completions" or "/v1/completions",
//   "body": {..}} plain                 {"id": .., "prompt": TEXT} or "messages": [..] or "token_ids": [..], with the
//   parameters beside it
// Parameters: those of Chat Completions (recipe/request.h), and min_tokens, top_k, min_p, repetition_penalty,
// frequency_penalty, presence_penalty, logit_bias, stop_token_ids, allowed_token_ids, ignore_eos, full_prefill. A line
// without a seed gets one from the job's seed and its number, so that it does not depend on the other lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "grammar/vocabulary.h"
#include "recipe/api_stream.h"
#include "recipe/json.h"
#include "recipe/tokenize.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

struct Line {
  bool batch = false;  // OpenAI's form, also of the output
  recipe::Json id;     // custom_id or id; null if there is none
  engine::Request request;
  recipe::ApiStreamOptions answer;
};

struct LineOptions {
  int64_t context_max = 0;
  uint64_t seed = 0;
  std::string model_name;
  int64_t created = 0;        // of the answers, seconds since 1970
  bool full_prefill = false;  // of lines that do not say
};

class LineReader {
 public:
  static constexpr size_t kLineBytesMax = 48u << 20;

  static Result<std::unique_ptr<LineReader>> create(const text::Tokenizer& tokenizer, LineOptions options);

  // `number` counts lines from 1. What is known of the line (its id and form) is filled in even if it is refused.
  Status read(std::string_view text, int64_t number, Line* line);

 private:
  LineReader(const text::Tokenizer& tokenizer, LineOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}
  Status read_body(recipe::Json body, recipe::Protocol protocol, Line* line);
  Status read_prompt(const recipe::Request& request, const recipe::Json& body, Line* line);
  Status read_parameters(const recipe::Json& body, engine::Request* r) const;
  Status read_constraint(const recipe::Request& request, engine::Request* r);

  text::Tokenizer tokenizer_;
  LineOptions options_;
  std::unique_ptr<recipe::PromptEncoder> encoder_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
};

}  // namespace deepinfer::app
