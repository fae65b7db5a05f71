// The completions endpoint: plain continuation and fill in the middle (spec/protocol.md 12).
#include "recipe/converters.h"
#include "recipe/request_reader.h"

namespace deepinfer::recipe {
namespace {

class CompletionsReader : public RequestReader {
 public:
  using RequestReader::RequestReader;

 private:
  bool convert(Json& body) override {
    out_.conversation.thinking = false;
    out_.conversation.effort.reset();
    if (!read_model(body) || !read_sampling(body) || !read_max_tokens(body, "max_tokens") ||
        !read_stops(body, "stop") || !read_seed(body) || !read_user(body, root_, "user") || !read_sampler(body) ||
        !read_stream_options(body)) {
      return false;
    }
    Completion c;
    std::optional<int64_t> logprobs;
    if (!read_prompt(body, c) || !read(body, root_, "suffix", c.suffix) ||
        !read(body, root_, "echo", c.echo) || !read(body, root_, "logprobs", logprobs)) {
      return false;
    }
    if (logprobs && (*logprobs < 0 || *logprobs > 20)) {
      return fail(root_ / "logprobs", "Invalid logprobs value, the valid range of logprobs is [0, 20].");
    }
    if (c.echo && (c.suffix || logprobs))
      return fail(root_ / "echo", "echo cannot be used together with suffix or logprobs");
    if (c.suffix && !c.prompt_ids.empty()) return fail(root_ / "suffix", "suffix needs a prompt that is a text");
    out_.inference.logprobs = logprobs.has_value();
    if (logprobs) out_.inference.top_logprobs = static_cast<int>(*logprobs);
    out_.completion = std::move(c);
    return true;
  }

  // A text or token ids; either may stand alone in a list, as several clients send it.
  bool read_prompt(Json& body, Completion& c) {
    const Json* prompt = body.find("prompt");
    if (prompt == nullptr || !prompt->is_array()) return read(body, root_, "prompt", c.prompt, true);
    const bool one = prompt->as_array().size() == 1;
    if (one && prompt->as_array()[0].is_string()) {
      c.prompt = prompt->as_array()[0].as_string();
      return true;
    }
    const JsonArray& ids = (one && prompt->as_array()[0].is_array() ? prompt->as_array()[0] : *prompt).as_array();
    for (const Json& item : ids) {
      const auto id = item.is_integer() ? item.to_int64() : std::nullopt;
      if (!id || *id < 0 || *id > INT32_MAX) {
        return fail(root_ / "prompt",
                    "prompt must be one text or one list of token ids, or a list of one of them; send a request for "
                    "each prompt.");
      }
      c.prompt_ids.push_back(static_cast<int32_t>(*id));
    }
    return !c.prompt_ids.empty() || fail(root_ / "prompt", "prompt is an empty list");
  }
};

}  // namespace

std::optional<ApiError> convert_completions(Json body, const RequestOptions& options, Request& out) {
  CompletionsReader reader(options, out);
  std::optional<ApiError> error = reader.run(std::move(body));
  // Newlines at the start of a continuation belong to it.
  if (!error) out.parsing.initial = InitialStage::kContent;
  return error;
}

}  // namespace deepinfer::recipe
