// Request bodies of Chat, Responses, Messages and the completions endpoint -> Conversation and options
// (spec/protocol.md 9 to 12).
//
//   RequestOptions options;
//   options.models = {{"deepseek-v4.1-flash", Version::kV41}};
//   Request request;
//   if (std::optional<ApiError> e = parse_request(Protocol::kChat, body, options, request)) {
//     respond(e->status, error_body(Protocol::kChat, *e, request_id));
//   }
//
// A body that is not valid for its API gives an ApiError with the JSON path of the fault; nothing is dropped in silence
// except the fields listed in recipe/request_fields.h. Pure: no I/O except through the two callbacks of RequestOptions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/conversation.h"
#include "recipe/json.h"
#include "recipe/prompt.h"

namespace deepinfer::recipe {

class Sealer;

// A refusal in the terms of the APIs. type is the OpenAI one; error_body translates it for Messages (spec 11.7).
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code = "invalid_request_error";
  std::string param;  // JSON path of the fault, e.g. messages[3].content[0].type; empty = null
};

// The error object as the protocol's clients expect it. request_id is used by Messages only.
std::string error_body(Protocol protocol, const ApiError& error, std::string_view request_id = {});

// Every limit on a request, each with the name used in messages, flags and docs.
struct RequestLimits {
  size_t body_bytes_max = 48u << 20;
  int json_depth_max = 128;
  size_t json_values_max = 1'000'000;
  size_t messages_max = 100'000;             // messages, or input items
  size_t tools_max = 128;                    // a namespace counts its functions; tools found by tool search count too
  size_t schema_bytes_max = 1u << 20;        // printed size of one schema
  size_t announced_tools_bytes_max = 8u << 20;  // tools that tool references and searches announce, each time printed
  size_t images_max = 600;
  size_t image_bytes_max = 32u << 20;        // one inline image, decoded
  size_t inline_image_bytes_max = 64u << 20; // all inline images, decoded
  size_t image_url_bytes_max = 8192;
  size_t stop_sequences_max = 16;
  size_t stop_sequence_bytes_max = 4096;
  size_t user_id_bytes_max = 512;
  int64_t max_tokens_max = 393'216;
  int n_max = 8;
  size_t prompts_max = 128;
};

enum class WebSearch : uint8_t { kDrop, kReject };
enum class ReasoningBehavior : uint8_t { kFill, kReject };
enum class SamplingPolicy : uint8_t { kHonour, kDeepSeek };

struct ServedModel {
  std::string name;
  Version version = Version::kV41;
};

struct RequestOptions {
  // Names are compared exactly. Messages also accepts claude-*: claude-opus* gives claude_opus_model, others the first.
  std::vector<ServedModel> models;
  bool accept_any_model = false;  // whatever name is asked for is the first model
  std::string claude_opus_model;
  RequestLimits limits;
  bool default_thinking = true;
  WebSearch responses_web_search = WebSearch::kDrop;
  WebSearch messages_web_search = WebSearch::kReject;
  ReasoningBehavior reasoning_behavior = ReasoningBehavior::kFill;
  SamplingPolicy sampling_policy = SamplingPolicy::kHonour;
  HistoryReasoning history_reasoning = HistoryReasoning::kDropUnlessTools;
  bool allow_forced_tool_with_thinking = false;  // spec 9.2: accept a required tool choice while thinking
  bool messages_prefill = false;                 // Messages: a trailing assistant message is continued
  // Messages: leave out the billing line that coding agents put first into their system prompt. It holds a new checksum
  // in every request, which would keep all of the prompt from being found in the cache.
  bool drop_billing_line = false;
  bool reject_image_literal = false;             // refuse a typed image placeholder, as old servers did
  const Sealer* sealer = nullptr;                // opens encrypted reasoning; without one such items are refused
  // Responses storage (spec 10.6): the items (input and output, oldest first) of the whole chain that ends in this id,
  // or an error. Empty: storage is off and previous_response_id is ignored.
  std::function<Result<std::vector<Json>>(std::string_view response_id)> load_previous;
};

struct CompletionPrompt {
  std::string text;
  std::vector<int32_t> ids;  // in place of the text, as they are; not checked against a vocabulary
};

// What the completions endpoint continues or fills (spec 12). Each prompt has `n` choices: prompt p those from p * n on.
struct Completion {
  std::vector<CompletionPrompt> prompts;  // at least one
  std::optional<std::string> suffix;      // of each
  bool echo = false;                      // the answer begins with the prompt
};

struct Request {
  Protocol protocol = Protocol::kChat;
  std::string model;  // as asked for
  Version version = Version::kV41;
  Conversation conversation;
  InferenceOptions inference;
  ParsingOptions parsing;
  bool stream = false;
  bool include_usage = false;  // Chat stream_options
  std::string_view rule;       // that changed the prompt: "system_billing_line", or none
  std::string user_id;         // cache isolation key (user_id, user, metadata.user_id); empty = none
  // With allow_forced_tool_with_thinking: after </think> a call must follow (no prompt suffix was printed).
  bool force_call_after_thinking = false;
  std::vector<std::string> allowed_tools;  // allowed_tools: only these may be called; empty = all

  // Completions only; the conversation is then empty.
  std::optional<Completion> completion;

  // Responses only.
  bool store = false;              // asked for and storage is on
  std::string previous_response_id;
  bool include_encrypted_reasoning = false;
  std::vector<Json> input_items;   // this request's own input as items, for storage
  // Fields the response object echoes (spec 10.4): those the request set, as sent.
  Json echo = Json::object();

  const Tool* find_tool(std::string_view name) const;
};

// Parses and converts. On an error `out` is unspecified.
std::optional<ApiError> parse_request(Protocol protocol, std::string_view body, const RequestOptions& options,
                                      Request& out);

// The prompt of a parsed request; of completions, that of the given number.
Prompt render_request(const Request& request, size_t prompt = 0);
// How many prompts it has: one, but for completions.
size_t prompt_count(const Request& request);

// max_tokens of a request once the prompt's length is known (spec 14.4); an error if the context is too small.
std::optional<ApiError> resolve_max_tokens(const Request& request, int64_t prompt_tokens, int64_t context_limit,
                                           int64_t& out);

}  // namespace deepinfer::recipe
