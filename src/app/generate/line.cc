#include "app/generate/line.h"

#include "base/mix.h"
#include "engine/api_request.h"
#include "grammar/constraint.h"
#include "recipe/constants.h"
#include "recipe/echo.h"
#include "recipe/render.h"

namespace deepinfer::app {
namespace {

using recipe::Json;

Status bad_kind(std::string_view name, const Json& value, std::string_view wanted) {
  return make_error(Code::kInvalidArgument, "{} must be {}, not {}.", name, wanted, value.kind_name());
}

bool is_set(const Json* value) { return value != nullptr && !value->is_null(); }

Status read_flag(const Json& body, std::string_view name, bool* out) {
  const Json* value = body.find(name);
  if (!is_set(value)) return Status();
  if (!value->is_bool()) return bad_kind(name, *value, "true or false");
  *out = value->as_bool();
  return Status();
}

Status read_ids(const Json& body, std::string_view name, int64_t vocab_size, std::vector<int32_t>* out) {
  const Json* value = body.find(name);
  if (!is_set(value)) return Status();
  if (!value->is_array()) return bad_kind(name, *value, "a list of token ids");
  if (value->as_array().empty()) return make_error(Code::kInvalidArgument, "{} is empty.", name);
  for (const Json& item : value->as_array()) {
    const std::optional<int64_t> n = item.is_integer() ? item.to_int64() : std::nullopt;
    if (!n || *n < 0)
      return make_error(Code::kInvalidArgument, "{}[{}] is {}, which is no token id.", name, out->size(),
                        item.is_number() ? recipe::to_compact_json(item) : item.kind_name());
    if (*n >= vocab_size)
      return make_error(Code::kInvalidArgument, "{}[{}] is {}; token ids of this model are 0 to {}.", name,
                        out->size(), *n, vocab_size - 1);
    out->push_back(static_cast<int32_t>(*n));
  }
  return Status();
}

Result<recipe::Protocol> protocol_of(const Json& root) {
  const Json* url = root.find("url");
  if (!is_set(url) || !url->is_string()) return Status(Code::kInvalidArgument, "The line has a body, but no url.");
  const Json* method = root.find("method");
  if (is_set(method) && !(method->is_string() && method->as_string() == "POST")) {
    return Status(Code::kInvalidArgument, "method must be \"POST\".");
  }
  if (url->as_string() == "/v1/chat/completions") return recipe::Protocol::kChat;
  if (url->as_string() == "/v1/completions") return recipe::Protocol::kCompletions;
  if (url->as_string() == "/v1/responses") return recipe::Protocol::kResponses;
  if (url->as_string() == "/v1/messages") return recipe::Protocol::kMessages;
  return make_error(Code::kUnsupported,
                    "url is {}; /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages are possible.",
                    url->as_string());
}

}  // namespace

Result<std::unique_ptr<LineReader>> LineReader::create(const text::Tokenizer& tokenizer, LineOptions options) {
  DI_ASSIGN_OR_RETURN(const recipe::SpecialIds specials, recipe::SpecialIds::find(tokenizer, recipe::Version::kV41));
  std::unique_ptr<LineReader> self(new LineReader(tokenizer, std::move(options)));
  self->specials_ = specials;
  self->encoder_ = std::make_unique<recipe::PromptEncoder>(tokenizer, specials, recipe::PromptEncoder::Options());
  return self;
}

Status LineReader::read(std::string_view text, int64_t number, Line* line) {
  if (text.size() > kLineBytesMax) {
    return make_error(Code::kResourceExhausted, "The line has {} bytes; at most {} are possible.", text.size(),
                      kLineBytesMax);
  }
  DI_ASSIGN_OR_RETURN(Json root, recipe::parse_json(text, {.bytes_max = kLineBytesMax}));
  if (!root.is_object())
    return make_error(Code::kInvalidArgument, "The line must be a JSON object, not {}.", root.kind_name());
  line->batch = root.find("custom_id") != nullptr || root.find("body") != nullptr;
  if (const Json* id = root.find(line->batch ? "custom_id" : "id")) line->id = *id;
  line->request.seed = mix_seed(options_.seed + mix_seed(static_cast<uint64_t>(number)));
  line->answer.id = fmt::format("gen-{}", number);
  if (!line->batch) {
    const bool chat = is_set(root.find("messages"));
    const int kinds = chat + is_set(root.find("prompt")) + is_set(root.find("token_ids"));
    if (kinds != 1) return Status(Code::kInvalidArgument, "The line must have one of prompt, messages and token_ids.");
    return read_body(std::move(root), chat ? recipe::Protocol::kChat : recipe::Protocol::kCompletions, line);
  }
  DI_ASSIGN_OR_RETURN(const recipe::Protocol protocol, protocol_of(root));
  Json* body = root.find("body");
  if (body == nullptr || !body->is_object()) return Status(Code::kInvalidArgument, "body must be a JSON object.");
  return read_body(std::move(*body), protocol, line);
}

Status LineReader::read_body(Json body, recipe::Protocol protocol, Line* line) {
  const bool ids = is_set(body.find("token_ids"));
  if (ids) body.set("prompt", " ");  // what the converter sees of a prompt that is tokens already
  if (!is_set(body.find("model"))) body.set("model", options_.model_name);
  if (const Json* stream = body.find("stream"); stream != nullptr && stream->is_bool() && stream->as_bool()) {
    return Status(Code::kInvalidArgument, "stream must be false: answers of a batch come whole.");
  }
  recipe::RequestOptions options;
  options.models = {{options_.model_name, recipe::Version::kV41}};
  options.accept_any_model = true;
  options.limits.max_tokens_max = options_.context_max;
  recipe::Request request;
  if (const auto error = recipe::parse_request(protocol, recipe::to_compact_json(body), options, request)) {
    return make_error(Code::kInvalidArgument, "{}{}{}", error->param, error->param.empty() ? "" : ": ", error->message);
  }
  if (recipe::prompt_count(request) != 1)
    return Status(Code::kUnsupported, "prompt holds several prompts; write a line for each.");
  engine::Request& r = line->request;
  std::optional<grammar::Constraint> constraint;
  engine::read_api_request(request, specials_, &r, &constraint);
  DI_RETURN_IF_ERROR(read_prompt(request, body, line));
  if (ids && request.completion) request.completion->prompts = {{.text = {}, .ids = r.prompt}};
  DI_RETURN_IF_ERROR(read_ids(body, "allowed_token_ids", options_.vocab_size, &r.allowed_tokens));
  r.full_prefill = options_.full_prefill;
  DI_RETURN_IF_ERROR(read_flag(body, "full_prefill", &r.full_prefill));
  if (constraint) DI_RETURN_IF_ERROR(compile(*constraint, &r));
  int64_t max_tokens = 0;
  if (const auto error = recipe::resolve_max_tokens(request, static_cast<int64_t>(r.prompt.size()),
                                                    options_.context_max, max_tokens)) {
    return Status(Code::kInvalidArgument, error->message);
  }
  r.max_tokens = static_cast<int32_t>(max_tokens);
  const std::string id = line->answer.id;
  line->answer = recipe::make_stream_options(request);
  line->answer.id = id;
  line->answer.model = request.model;
  line->answer.stream = false;
  line->answer.created = options_.created;
  if (options_.vocabulary) {
    DI_ASSIGN_OR_RETURN(line->answer.completion_prefixes, recipe::echoed_prompts(request, *options_.vocabulary));
  }
  return Status();
}

Status LineReader::read_prompt(const recipe::Request& request, const Json& body, Line* line) {
  std::vector<int32_t>& ids = line->request.prompt;
  if (is_set(body.find("token_ids"))) {
    return read_ids(body, "token_ids", options_.vocab_size, &ids);
  }
  DI_ASSIGN_OR_RETURN(ids, engine::prompt_token_ids(request, 0, options_.vocab_size));
  if (!ids.empty()) return Status();
  const recipe::Prompt prompt = recipe::render_request(request);
  if (!prompt.images.empty()) return Status(Code::kUnsupported, "Images are not possible in a batch file yet.");
  DI_ASSIGN_OR_RETURN(recipe::EncodedPrompt encoded, encoder_->encode(prompt));
  ids = std::move(encoded.ids);
  return Status();
}

Status LineReader::compile(const grammar::Constraint& constraint, engine::Request* r) {
  if (!compiler_) {
    DI_ASSIGN_OR_RETURN(auto vocabulary, grammar::Vocabulary::from_tokenizer(tokenizer_));
    compiler_ = std::make_unique<grammar::Compiler>(std::move(vocabulary), options_.grammar);
  }
  DI_ASSIGN_OR_RETURN(const auto job, compiler_->submit(constraint));
  job->wait_ms(UINT32_MAX);  // bounded by the compile's own limit
  DI_ASSIGN_OR_RETURN(r->grammar, job->result());
  return Status();
}

}  // namespace deepinfer::app
