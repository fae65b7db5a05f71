// A line of a batch file -> what the engine and the answer's builder need.
//
//   LineReader reader(tokenizer, {.context_max = 8192, .seed = 0});
//   Line line;
//   Status status = reader.read(text, number, &line);      // a sentence that says what is wrong with the line
//
// Two forms of line, each a JSON object:
//   OpenAI's batch file   {"custom_id": .., "method": "POST", "url": "/v1/chat/completions", "body": {..}}; also
//                         /v1/completions, /v1/responses and /v1/messages
//   plain                 {"id": .., "prompt": TEXT} or "messages": [..] or "token_ids": [..], parameters beside it
// Parameters: those of the API (recipe/request.h), and allowed_token_ids and full_prefill. A line without a seed gets
// one from the job's seed and its number, so that it does not depend on the other lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "grammar/compiler.h"
#include "recipe/api_stream.h"
#include "recipe/json.h"
#include "recipe/output_vocabulary.h"
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
  int64_t vocab_size = 0;  // of the model
  const recipe::OutputVocabulary* vocabulary = nullptr;  // for prompts that are echoed; outlives the reader
  uint64_t seed = 0;
  std::string model_name;
  int64_t created = 0;        // of the answers, seconds since 1970
  bool full_prefill = false;  // of lines that do not say
  grammar::Compiler::Options grammar;
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
  Status compile(const grammar::Constraint& constraint, engine::Request* r);

  text::Tokenizer tokenizer_;
  LineOptions options_;
  recipe::SpecialIds specials_;
  std::unique_ptr<recipe::PromptEncoder> encoder_;
  std::unique_ptr<grammar::Compiler> compiler_;  // made by the first line that needs it
};

}  // namespace deepinfer::app
