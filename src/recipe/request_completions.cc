// The completions endpoint: plain continuation and fill in the middle (spec/protocol.md 12).
#include <algorithm>

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
        !read_stops(body, "stop") || !read_seed(body) || !read_n(body) || !read_user(body, root_, "user") ||
        !read_sampler(body) || !read_stream_options(body)) {
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
    if (c.suffix && std::ranges::any_of(c.prompts, [](const CompletionPrompt& p) { return !p.ids.empty(); }))
      return fail(root_ / "suffix", "suffix needs a prompt that is a text");
    out_.inference.logprobs = logprobs.has_value();
    if (logprobs) out_.inference.top_logprobs = static_cast<int>(*logprobs);
    out_.completion = std::move(c);
    return true;
  }

  // A text, a list of token ids, or a list of several of them.
  bool read_prompt(Json& body, Completion& c) {
    const Path at = root_ / "prompt";
    const Json* prompt = body.find("prompt");
    if (prompt == nullptr || !prompt->is_array()) {
      return read(body, root_, "prompt", c.prompts.emplace_back().text, true);
    }
    const JsonArray& items = prompt->as_array();
    if (items.empty()) return fail(at, "prompt is an empty list");
    if (items[0].is_number()) return read_ids(items, at, c.prompts.emplace_back());
    if (!too_many(at, items.size(), options_.limits.prompts_max, "prompts")) return false;
    for (size_t i = 0; i < items.size(); ++i) {
      CompletionPrompt& p = c.prompts.emplace_back();
      const Path item = at[i];
      if (items[i].is_string()) {
        p.text = items[i].as_string();
      } else if (!items[i].is_array()) {
        return fail(item, "a list of prompts holds texts and lists of token ids");
      } else if (!read_ids(items[i].as_array(), item, p)) {
        return false;
      }
    }
    return true;
  }

  bool read_ids(const JsonArray& ids, const Path& at, CompletionPrompt& p) {
    if (ids.empty()) return fail(at, "prompt is an empty list");
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = ids[i].is_integer() ? ids[i].to_int64() : std::nullopt;
      if (!id || *id < 0 || *id > INT32_MAX) return bad(at[i], "expected a token id");
      p.ids.push_back(static_cast<int32_t>(*id));
    }
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
