// Text to tokens and back, and the number of tokens of a Messages request.
#include <fmt/ranges.h>

#include "recipe/json.h"
#include "recipe/logprobs.h"
#include "serve/generation.h"
#include "serve/image_check.h"
#include "serve/prepare.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr size_t kInlineBytes = 32 << 10;

// A response, or images that are to be checked before the request is refused for having them.
struct Computed {
  Response response;
  std::vector<recipe::Image> images = {};
};

void answer(Service& service, const std::shared_ptr<Exchange>& x, Computed computed) {
  if (computed.images.empty()) return x->respond(std::move(computed.response));
  std::shared_ptr<ImageCheck> check =
      check_images(service, x->loop(), std::move(computed.images),
                   [x](const recipe::ApiError& error) { respond_api_error(*x, error); });
  if (!check) return respond_api_error(*x, too_many_images());
  x->on_gone = [check = std::move(check)]() mutable { check.reset(); };
}

// Runs work(x) here, or for large bodies on a worker, and answers on the loop.
void compute(Service& service, const std::shared_ptr<Exchange>& x, std::function<Computed(Exchange&)> work) {
  const bool disk = x->protocol == recipe::Protocol::kResponses && service.responses.persistent();
  if (x->body().size() <= kInlineBytes && !disk) return answer(service, x, work(*x));
  const bool queued = service.workers.submit([&service, x, work = std::move(work)] {
    auto computed = std::make_shared<Computed>(work(*x));
    x->loop().post([&service, x, computed] { answer(service, x, std::move(*computed)); });
  });
  if (!queued)
    respond_api_error(*x, {.status = 503,
                           .message = "Too many large requests are waiting. Try again later.",
                           .type = "server_error",
                           .code = "overloaded"});
}

Computed error_response(const Exchange& x, const recipe::ApiError& error) {
  return {.response = {.status = error.status, .body = recipe::error_body(x.protocol, error, x.request_id)}};
}

Computed bad_request(const Exchange& x, std::string message, std::string param) {
  return error_response(x, {.message = std::move(message), .param = std::move(param)});
}

// The chat form: the prompt that /v1/chat/completions would give.
Computed tokenize_chat(const Service& service, Exchange& x) {
  Prepared p;
  if (auto error = recipe::parse_request(recipe::Protocol::kChat, x.body(), service.request_options, p.request))
    return error_response(x, *error);
  if (auto error = prepare_prompt(service, x.key_name, p)) return error_response(x, *error);
  if (!p.images.empty()) return {.response = {}, .images = std::move(p.images)};
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", p.engine.prompt.size(),
                                service.backend->limits().context_max, fmt::join(p.engine.prompt, ","));
  return {.response = {.body = out + ",\"prompt\":" + recipe::to_compact_json(recipe::render_request(p.request).text) +
                               "}"}};
}

Computed tokenize(const Service& service, Exchange& x) {
  Result<Json> body = recipe::parse_json(x.body(), {.bytes_max = service.config.limits->body_bytes_max});
  if (!body.ok()) return bad_request(x, "invalid JSON request: " + body.status().message(), "");
  if (body->find("messages") != nullptr) return tokenize_chat(service, x);
  const Json* text = body->find("prompt");
  if (text == nullptr) text = body->find("text");
  if (text == nullptr || !text->is_string())
    return bad_request(x, "prompt must be a string, or messages a conversation.", "prompt");
  const Json* alias = body->find("text");
  if (alias != nullptr && !alias->is_string()) return bad_request(x, "text must be a string.", "text");
  const Json* offsets_wanted = body->find("return_offsets");
  if (offsets_wanted != nullptr && !offsets_wanted->is_bool() && !offsets_wanted->is_null()) {
    return bad_request(x, "return_offsets must be true or false.", "return_offsets");
  }
  const std::string& bytes = text->as_string();
  const text::Encoding encoding = service.tokenizer.encode_with_ranges(bytes);
  const std::vector<text::TokenId>& ids = encoding.ids;
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", ids.size(),
                                service.backend->limits().context_max, fmt::join(ids, ","));
  if (offsets_wanted != nullptr && offsets_wanted->is_bool() && offsets_wanted->as_bool()) {
    out += ",\"offsets\":[";
    for (const text::TokenRange& r : encoding.ranges)
      out += fmt::format("{}[{},{}]", out.back() == '[' ? "" : ",", r.begin, r.end);
    out += "]";
  }
  return {.response = {.body = out + "}"}};
}

Computed detokenize(const Service& service, Exchange& x) {
  Result<Json> body = recipe::parse_json(x.body(), {.bytes_max = service.config.limits->body_bytes_max});
  if (!body.ok()) return bad_request(x, "invalid JSON request: " + body.status().message(), "");
  const Json* tokens = body->find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return bad_request(x, "tokens must be a list of token ids.", "tokens");
  std::string bytes;
  const int64_t vocab_size = service.tokenizer.vocab_size();
  for (const Json& item : tokens->as_array()) {
    const auto id = item.is_integer() ? item.to_int64() : std::nullopt;
    if (!id || *id < 0 || *id >= vocab_size) {
      return bad_request(
          x, fmt::format("tokens must be a list of token ids, which are 0 to {} for this model.", vocab_size - 1),
          "tokens");
    }
    bytes += service.tokenizer.token_bytes(static_cast<text::TokenId>(*id));
  }
  std::string out = "{\"prompt\":";
  recipe::append_json_string(out, recipe::printable(bytes));
  return {.response = {.body = out + "}"}};
}

// Of Messages and of Responses.
Computed count_tokens(const Service& service, Exchange& x) {
  Prepared p;
  if (auto error = parse_api_request(service, x.protocol, x.body(), x.key_name, p.request))
    return error_response(x, *error);
  if (auto error = prepare_prompt(service, x.key_name, p)) return error_response(x, *error);
  if (!p.images.empty()) return {.response = {}, .images = std::move(p.images)};
  const std::string_view kind =
      x.protocol == recipe::Protocol::kResponses ? R"("object":"response.input_tokens",)" : "";
  return {.response = {.body = fmt::format("{{{}\"input_tokens\":{}}}", kind, p.engine.prompt.size())}};
}

}  // namespace

void add_tokenize_routes(Router& router, Service& service) {
  const auto add = [&](const char* path, recipe::Protocol protocol, Computed (*work)(const Service&, Exchange&)) {
    router.add({.method = "POST",
                .path = path,
                .protocol = protocol,
                .handler = [&service, work](const std::shared_ptr<Exchange>& x) {
                  compute(service, x, [&service, work](Exchange& e) { return work(service, e); });
                }});
  };
  add("/v1/tokenize", recipe::Protocol::kChat, tokenize);
  add("/tokenize", recipe::Protocol::kChat, tokenize);
  add("/v1/detokenize", recipe::Protocol::kChat, detokenize);
  add("/detokenize", recipe::Protocol::kChat, detokenize);
  add("/v1/messages/count_tokens", recipe::Protocol::kMessages, count_tokens);
  add("/anthropic/v1/messages/count_tokens", recipe::Protocol::kMessages, count_tokens);
  add("/v1/responses/input_tokens", recipe::Protocol::kResponses, count_tokens);
}

}  // namespace deepinfer::serve
