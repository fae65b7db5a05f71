// Text to tokens and back, and the number of tokens of a Messages request.
#include <fmt/ranges.h>

#include "recipe/json.h"
#include "recipe/logprobs.h"
#include "serve/generation.h"
#include "serve/prepare.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr size_t kInlineBytes = 32 << 10;

// Runs work(x) here, or for large bodies on a worker, and its answer on the loop.
void compute(Service& service, const std::shared_ptr<Exchange>& x, std::function<Response(Exchange&)> work) {
  if (x->body().size() <= kInlineBytes) return x->respond(work(*x));
  const bool queued = service.workers.submit([x, work = std::move(work)] {
    auto response = std::make_shared<Response>(work(*x));
    x->loop().post([x, response] { x->respond(std::move(*response)); });
  });
  if (!queued) respond_api_error(*x, {.status = 503, .message = "Too many large requests are waiting. Try again later.", .type = "server_error", .code = "overloaded"});
}

Response error_response(const Exchange& x, const recipe::ApiError& error) {
  return {.status = error.status, .body = recipe::error_body(x.protocol, error, x.request_id)};
}

Response bad_request(const Exchange& x, std::string message, std::string param) {
  return error_response(x, {.message = std::move(message), .param = std::move(param)});
}

// The chat form: the prompt that /v1/chat/completions would give.
Response tokenize_chat(const Service& service, Exchange& x) {
  Prepared p;
  if (auto error = recipe::parse_request(recipe::Protocol::kChat, x.body(), service.request_options, p.request)) return error_response(x, *error);
  if (auto error = prepare_prompt(service, x.key_name, p)) return error_response(x, *error);
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", p.engine.prompt.size(),
                                service.backend->limits().context_max, fmt::join(p.engine.prompt, ","));
  return {.body = out + ",\"prompt\":" + recipe::to_compact_json(recipe::render_request(p.request).text) + "}"};
}

Response tokenize(const Service& service, Exchange& x) {
  Result<Json> body = recipe::parse_json(x.body(), {.bytes_max = service.config.limits->body_bytes_max});
  if (!body.ok()) return bad_request(x, "invalid JSON request: " + body.status().message(), "");
  if (body->find("messages") != nullptr) return tokenize_chat(service, x);
  const Json* text = body->find("prompt");
  if (text == nullptr) text = body->find("text");
  if (text == nullptr || !text->is_string()) return bad_request(x, "prompt must be a string, or messages a conversation.", "prompt");
  const Json* offsets_wanted = body->find("return_offsets");
  const std::string& bytes = text->as_string();
  const text::Encoding encoding = service.tokenizer.encode_with_ranges(bytes);
  const std::vector<text::TokenId>& ids = encoding.ids;
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", ids.size(),
                                service.backend->limits().context_max, fmt::join(ids, ","));
  if (offsets_wanted != nullptr && offsets_wanted->is_bool() && offsets_wanted->as_bool()) {
    out += ",\"offsets\":[";
    for (const text::TokenRange& r : encoding.ranges) out += fmt::format("{}[{},{}]", out.back() == '[' ? "" : ",", r.begin, r.end);
    out += "]";
  }
  return {.body = out + "}"};
}

Response detokenize(const Service& service, Exchange& x) {
  Result<Json> body = recipe::parse_json(x.body(), {.bytes_max = service.config.limits->body_bytes_max});
  if (!body.ok()) return bad_request(x, "invalid JSON request: " + body.status().message(), "");
  const Json* tokens = body->find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return bad_request(x, "tokens must be a list of token ids.", "tokens");
  std::string bytes;
  const int64_t vocab_size = service.tokenizer.vocab_size();
  for (const Json& item : tokens->as_array()) {
    const auto id = item.is_integer() ? item.to_int64() : std::nullopt;
    if (!id || *id < 0 || *id >= vocab_size) {
      return bad_request(x, fmt::format("tokens must be a list of token ids, which are 0 to {} for this model.", vocab_size - 1), "tokens");
    }
    bytes += service.tokenizer.token_bytes(static_cast<text::TokenId>(*id));
  }
  std::string out = "{\"prompt\":";
  recipe::append_json_string(out, recipe::printable(bytes));
  return {.body = out + "}"};
}

Response count_tokens(const Service& service, Exchange& x) {
  Prepared p;
  if (auto error = recipe::parse_request(recipe::Protocol::kMessages, x.body(), service.request_options, p.request)) return error_response(x, *error);
  if (auto error = prepare_prompt(service, x.key_name, p)) return error_response(x, *error);
  return {.body = fmt::format("{{\"input_tokens\":{}}}", p.engine.prompt.size())};
}

}  // namespace

void add_tokenize_routes(Router& router, Service& service) {
  const auto add = [&](const char* path, recipe::Protocol protocol, Response (*work)(const Service&, Exchange&)) {
    router.add({.method = "POST", .path = path, .protocol = protocol, .handler = [&service, work](const std::shared_ptr<Exchange>& x) {
                  compute(service, x, [&service, work](Exchange& e) { return work(service, e); });
                }});
  };
  add("/v1/tokenize", recipe::Protocol::kChat, tokenize);
  add("/tokenize", recipe::Protocol::kChat, tokenize);
  add("/v1/detokenize", recipe::Protocol::kChat, detokenize);
  add("/detokenize", recipe::Protocol::kChat, detokenize);
  add("/v1/messages/count_tokens", recipe::Protocol::kMessages, count_tokens);
  add("/anthropic/v1/messages/count_tokens", recipe::Protocol::kMessages, count_tokens);
}

}  // namespace deepinfer::serve
