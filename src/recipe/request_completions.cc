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
    // Several clients send one text as a list.
    if (Json* list = body.find("prompt"); list != nullptr && list->is_array()) {
      JsonArray& texts = list->as_array();
      if (texts.size() != 1 || !texts[0].is_string()) {
        return fail(root_ / "prompt", "A list of prompts must hold exactly one text here; send a request for each.");
      }
      Json only = std::move(texts[0]);
      *list = std::move(only);
    }
    Completion c;
    std::optional<int64_t> logprobs;
    if (!read(body, root_, "prompt", c.prompt, true) || !read(body, root_, "suffix", c.suffix) ||
        !read(body, root_, "echo", c.echo) || !read(body, root_, "logprobs", logprobs)) {
      return false;
    }
    if (logprobs && (*logprobs < 0 || *logprobs > 20)) {
      return fail(root_ / "logprobs", "Invalid logprobs value, the valid range of logprobs is [0, 20].");
    }
    if (c.echo && (c.suffix || logprobs))
      return fail(root_ / "echo", "echo cannot be used together with suffix or logprobs");
    out_.inference.logprobs = logprobs.has_value();
    if (logprobs) out_.inference.top_logprobs = static_cast<int>(*logprobs);
    out_.completion = std::move(c);
    return true;
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
