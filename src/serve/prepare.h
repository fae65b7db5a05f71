// A request body -> what the engine, the grammar compiler and the answer's builder need.
//
//   Prepared p;
//   if (auto error = prepare(service, Protocol::kChat, body, key_name, p)) respond(*error);
//
// Parses, renders and tokenizes: microseconds for a chat line, milliseconds for a long new prompt. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "grammar/constraint.h"
#include "recipe/api_stream.h"
#include "recipe/request.h"

namespace deepinfer::serve {

class Service;

struct Prepared {
  struct Prompt {
    std::vector<int32_t> ids;
    int32_t max_tokens = 0;
  };

  recipe::Request request;
  std::string scope;  // of the caches; empty: the common one
  engine::Request engine;
  std::vector<Prompt> others;  // Completions: the prompts behind the first, to be asked as `engine` is
  recipe::ApiStreamOptions answer;
  // in the prompt's order; where there are any, nothing below `scope` is set
  std::vector<recipe::Image> images;
  std::optional<grammar::Constraint> constraint;  // to be compiled into engine.grammar
};

// A request with images is prepared as far as them: they are to be checked (serve/image_check.h), and then refused
// while no model here can see. `owner` keeps the caches of different API keys apart where it is not empty.
std::optional<recipe::ApiError> prepare(const Service& service, recipe::Protocol protocol, std::string_view body,
                                        std::string_view owner, Prepared& out);

// The request of a body; Responses may continue stored ones, of their owner only.
std::optional<recipe::ApiError> parse_api_request(const Service& service, recipe::Protocol protocol,
                                                  std::string_view body, std::string_view owner, recipe::Request& out);

// The prompt's ids alone, for count_tokens.
std::optional<recipe::ApiError> prepare_prompt(const Service& service, std::string_view owner, Prepared& out);

}  // namespace deepinfer::serve
