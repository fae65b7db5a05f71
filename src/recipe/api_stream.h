// One response in the form of its API: server-sent events while tokens arrive, or the whole body at the end, both built
// from the same parser events (spec/protocol.md 9.4, 10.5, 11.5, 12).
//
//   ApiStreamOptions options = make_stream_options(request);
//   options.id = "chatcmpl-42";  options.model = "deepseek-v4.1-flash";  options.created = now;
//   DI_ASSIGN_OR_RETURN(std::unique_ptr<ApiStream> stream, ApiStream::create(options, &vocabulary));
//   std::string out;
//   stream->begin({.prompt_tokens = 21, .cached_tokens = 16}, out);   // frames that stand before the first token
//   stream->push(0, tokens, out);                                     // one model step of choice 0
//   if (stream->stopped(0)) ...                                       // a stop sequence matched: end generation
//   stream->finish(0, FinishReason::kStop, out);                      // the last choice's writes the closing frames
//   send(options.stream ? out : stream->body());
//
// `out` is appended to; with stream = false it stays empty. Deltas of one push are joined where their order allows. The
// whole body is the fold of the stream but for repeated argument keys (the last counts) and, in Messages, calls whose
// arguments are no JSON object (input {}). Not thread-safe: one owner per response.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "recipe/output_parser.h"
#include "recipe/output_vocabulary.h"
#include "recipe/request.h"
#include "recipe/token_output.h"
#include "recipe/usage.h"

namespace deepinfer::recipe {

class Sealer;

// Where Chat Completions report usage: on the last finish chunk, or, if the client asked for usage, on a further chunk
// without choices as OpenAI does.
enum class UsageChunk : uint8_t { kFinal, kSeparate };

struct ApiStreamOptions {
  Protocol protocol = Protocol::kChat;
  ParserOptions parser;
  bool token_ids = true;  // push() brings ids: only special ids are markup; else push_text() and spellings
  bool stream = true;
  bool thinking = true;
  bool logprobs = false;
  int n = 1;        // choices of a prompt: Chat and Completions only
  int prompts = 1;  // Completions only: choice p * n + i is answer i to prompt p
  bool include_usage = false;
  UsageChunk usage_chunk = UsageChunk::kFinal;
  std::set<std::string, std::less<>> custom_tools;  // calls of these are custom tool calls

  std::string id;
  std::string model;               // as reported
  std::string system_fingerprint;  // empty: null
  int64_t created = 0;             // seconds since 1970
  std::function<int64_t()> now;    // for completed_at; empty: created

  // Responses.
  std::string echo;                // members of the response object that repeat the request, from responses_echo()
  const Sealer* sealer = nullptr;  // set: reasoning items carry encrypted_content
  // Completions: text put before the choices of each prompt (echo); empty: none.
  std::vector<std::string> completion_prefixes;
};

// What the request says about its response; identity and model are left to the caller. A sealer is used only if the
// request asked for encrypted reasoning.
ApiStreamOptions make_stream_options(const Request& request, const Sealer* sealer = nullptr);

// The members that a Responses object repeats from its request, as JSON text without braces: `"instructions":null,...`.
std::string responses_echo(const Request& request);

// What the engine reports when it cannot go on.
struct StreamError {
  int status = 500;
  std::string message;
};

class ApiStream {
 public:
  // kInvalidArgument if the parser options are not usable or n is not 1 where the protocol has one choice.
  static Result<std::unique_ptr<ApiStream>> create(ApiStreamOptions options, const OutputVocabulary* vocabulary);
  virtual ~ApiStream() = default;
  ApiStream(const ApiStream&) = delete;
  ApiStream& operator=(const ApiStream&) = delete;

  // Before the first push.
  virtual void begin(const Usage& prompt, std::string& out) = 0;
  // Completions with several prompts: further ones that have begun; usage is the sum.
  virtual void add_prompt(const Usage& prompt) { (void)prompt; }
  virtual void push(int choice, std::span<const TokenLogprob> tokens, std::string& out) = 0;
  virtual void push_ids(int choice, std::span<const int32_t> ids, std::string& out) = 0;
  virtual void push_text(int choice, std::string_view text, int64_t tokens, std::string& out) = 0;
  virtual bool stopped(int choice) const = 0;
  virtual void finish(int choice, FinishReason engine_reason, std::string& out) = 0;
  // Ends the whole response with an error: an error frame in a stream, an error body else.
  virtual void fail(const StreamError& error, std::string& out) = 0;

  // After the last finish or a fail. With stream = true for Responses only, which are stored.
  virtual std::string body() const = 0;
  // 200, or the status of the error that body() holds.
  virtual int http_status() const = 0;
  virtual Usage usage() const = 0;

 protected:
  ApiStream() = default;
};

}  // namespace deepinfer::recipe
