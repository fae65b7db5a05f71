#include "serve/prepare.h"

#include "engine/api_request.h"
#include "recipe/echo.h"
#include "recipe/render.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::ApiError;

ApiError internal_error(const Status& status) {
  return {.status = 500, .message = status.message(), .type = "internal_error", .code = "internal_error"};
}

void read_engine_options(const Service& service, Prepared& p) {
  engine::read_api_request(p.request, service.specials, &p.engine, &p.constraint);
  p.engine.timeout_s = service.config.limits->request_timeout_s;
}

// Of the prompt of that number; images are left in p.images.
std::optional<ApiError> encode_prompt(const Service& service, size_t number, Prepared& p, std::vector<int32_t>& out) {
  Result<std::vector<int32_t>> ids = engine::prompt_token_ids(p.request, number, service.tokenizer.vocab_size());
  if (!ids.ok()) return ApiError{.status = 400, .message = ids.status().message(), .param = "prompt"};
  if (!ids.value().empty()) {
    out = std::move(ids).value();
    return std::nullopt;
  }
  const recipe::Prompt prompt = recipe::render_request(p.request, number);
  for (const recipe::ImageRef& at : prompt.images) {
    p.images.push_back(std::move(p.request.conversation.messages[at.message].content.images[at.image]));
  }
  if (!p.images.empty()) return std::nullopt;
  Result<recipe::EncodedPrompt> encoded = service.encoder.encode(prompt, p.scope);
  if (!encoded.ok()) return internal_error(encoded.status());
  out = std::move(encoded.value().ids);
  return std::nullopt;
}

std::optional<ApiError> find_max_tokens(const Service& service, const recipe::Request& request, size_t prompt_tokens,
                                        int32_t& out) {
  int64_t max_tokens = 0;
  const int64_t context_max = service.backend->limits().context_max;
  auto error = recipe::resolve_max_tokens(request, static_cast<int64_t>(prompt_tokens), context_max, max_tokens);
  out = static_cast<int32_t>(max_tokens);
  return error;
}

// The prompts behind the first one.
std::optional<ApiError> prepare_others(const Service& service, Prepared& p) {
  for (size_t i = 1; i < recipe::prompt_count(p.request); ++i) {
    Prepared::Prompt& other = p.others.emplace_back();
    if (auto error = encode_prompt(service, i, p, other.ids)) return error;
    if (auto error = find_max_tokens(service, p.request, other.ids.size(), other.max_tokens)) return error;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> parse_api_request(const Service& service, recipe::Protocol protocol, std::string_view body,
                                          std::string_view owner, recipe::Request& out) {
  if (protocol != recipe::Protocol::kResponses || !service.config.store_responses) {
    return recipe::parse_request(protocol, body, service.request_options, out);
  }
  recipe::RequestOptions options = service.request_options;
  options.load_previous = [&service, owner](std::string_view id) {
    return service.responses.chain(id, owner, service.now());
  };
  return recipe::parse_request(protocol, body, options, out);
}

std::optional<ApiError> prepare_prompt(const Service& service, std::string_view owner, Prepared& p) {
  p.scope = owner;
  if (!p.request.user_id.empty()) p.scope.append("\n").append(p.request.user_id);
  return encode_prompt(service, 0, p, p.engine.prompt);
}

std::optional<ApiError> prepare(const Service& service, recipe::Protocol protocol, std::string_view body,
                                std::string_view owner, Prepared& p) {
  if (auto error = parse_api_request(service, protocol, body, owner, p.request)) return error;
  if (auto error = prepare_prompt(service, owner, p)) return error;
  if (!p.images.empty()) return std::nullopt;
  if (auto error = find_max_tokens(service, p.request, p.engine.prompt.size(), p.engine.max_tokens)) return error;
  if (auto error = prepare_others(service, p)) return error;
  read_engine_options(service, p);
  p.answer = recipe::make_stream_options(p.request, service.sealer ? &*service.sealer : nullptr);
  p.answer.model = p.request.model;
  if (service.config.policies.separate_usage) p.answer.usage_chunk = recipe::UsageChunk::kSeparate;
  p.answer.created = service.now();
  p.answer.now = [&service] { return service.now(); };
  Result<std::vector<std::string>> echoed = recipe::echoed_prompts(p.request, service.vocabulary);
  if (!echoed.ok()) return ApiError{.status = 400, .message = echoed.status().message(), .param = "echo"};
  p.answer.completion_prefixes = std::move(echoed).value();
  return std::nullopt;
}

}  // namespace deepinfer::serve
