// /openapi.json: OpenAPI 3.1 of the routes that this service has, with the request fields of recipe/request_fields.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "recipe/json.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "serve/routes.h"
#include "serve/routes/openapi_schemas.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;
using recipe::Protocol;

Json object(std::initializer_list<std::pair<std::string_view, Json>> members) {
  Json out = Json::object();
  for (const auto& [key, value] : members) out.set(key, value);
  return out;
}

Json list(std::initializer_list<std::string_view> items) {
  Json out = Json::array();
  for (const std::string_view item : items) out.as_array().emplace_back(item);
  return out;
}

std::string_view schema_name(Protocol protocol) {
  switch (protocol) {
    case Protocol::kChat: return "ChatRequest";
    case Protocol::kResponses: return "ResponsesRequest";
    case Protocol::kMessages: return "MessagesRequest";
    case Protocol::kCompletions: return "CompletionsRequest";
  }
  return "";
}

struct FieldType {
  std::string_view type;
  double least = 0, most = -1;  // no bounds if most < least; infinite: no upper one
  std::string_view lower = "minimum";
};

// The types of fields that have one type in every API that has them; the others say theirs in words.
const std::map<std::string_view, FieldType>& field_types(const recipe::RequestLimits& limits) {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  static const auto tokens_max = static_cast<double>(limits.max_tokens_max);
  static const std::map<std::string_view, FieldType> kTypes = {
      {"model", {"string"}},
      {"max_tokens", {"integer", 1, tokens_max}},
      {"max_completion_tokens", {"integer", 1, tokens_max}},
      {"max_output_tokens", {"integer", 1, tokens_max}},
      {"temperature", {"number", 0, 2}},
      {"top_p", {"number", 0, 1, "exclusiveMinimum"}},
      {"top_logprobs", {"integer", 0, 20}},
      {"seed", {"integer", 0, kNone}},
      {"n", {"integer", 1, static_cast<double>(limits.n_max)}},
      {"frequency_penalty", {"number", -2, 2}},
      {"presence_penalty", {"number", -2, 2}},
      {"min_tokens", {"integer", 0, tokens_max}},
      {"top_k", {"integer"}},
      {"min_p", {"number", 0, 1}},
      {"stream", {"boolean"}},
      {"echo", {"boolean"}},
      {"ignore_eos", {"boolean"}},
      {"parallel_tool_calls", {"boolean"}},
      {"store", {"boolean"}},
      {"stream_options", {"object"}},
      {"logit_bias", {"object"}},
      {"tools", {"array"}},
      {"instructions", {"string"}},
      {"prompt", {"string"}},
      {"suffix", {"string"}},
      {"user", {"string"}},
      {"user_id", {"string"}},
      {"previous_response_id", {"string"}}};
  return kTypes;
}

Json field_schema(Protocol protocol, std::string_view name, const recipe::RequestLimits& limits) {
  if (name == "messages") {
    const Json item = object({{"type", "object"},
                              {"required", list({"role"})},
                              {"properties", object({{"role", object({{"type", "string"}})}})}});
    return object({{"type", "array"}, {"minItems", 1}, {"items", item}});
  }
  const auto at = field_types(limits).find(name);
  if (at == field_types(limits).end()) return Json::object();
  const FieldType& t = at->second;
  if (name == "prompt") return object({{"type", list({"string", "array"})}});
  Json out = name == "model" ? object({{"type", t.type}}) : object({{"type", list({t.type, "null"})}});
  if (t.most < t.least) return out;
  const bool whole = t.type == "integer";
  const auto number = [whole](double value) { return whole ? Json(static_cast<int64_t>(value)) : Json(value); };
  out.set(t.lower, number(t.least));
  // Messages lowers a max_tokens that is too high.
  if (std::isfinite(t.most) && !(protocol == Protocol::kMessages && name == "max_tokens"))
    out.set("maximum", number(t.most));
  return out;
}

Json request_schema(Protocol protocol, const recipe::RequestLimits& limits) {
  Json properties = Json::object();
  for (const recipe::RequestField& f : recipe::request_fields()) {
    if (f.protocol != protocol || f.use == recipe::FieldUse::kRefused ||
        f.path.find_first_of(".[") != std::string_view::npos)
      continue;
    Json field = f.use == recipe::FieldUse::kHonoured ? field_schema(protocol, f.path, limits) : Json::object();
    std::string text(f.note);
    if (f.use == recipe::FieldUse::kChecked) text = text.empty() ? "checked, without effect" : text;
    if (f.use == recipe::FieldUse::kIgnored) text = text.empty() ? "ignored" : "ignored: " + text;
    if (!text.empty()) field.set("description", text);
    properties.set(f.path, std::move(field));
  }
  Json required = protocol == Protocol::kResponses     ? list({"model"})
                  : protocol == Protocol::kCompletions ? list({"model", "prompt"})
                                                       : list({"model", "messages"});
  return object({{"type", "object"}, {"required", std::move(required)}, {"properties", std::move(properties)}});
}

bool generates(const Route& r) {
  return r.method == "POST" &&
         (r.path.ends_with("/completions") || r.path.ends_with("/responses") || r.path.ends_with("/messages"));
}

Json ref(std::string_view name) { return object({{"$ref", fmt::format("#/components/schemas/{}", name)}}); }

// The statuses of errors that a route may answer with.
std::vector<int> error_statuses(const Route& r) {
  std::vector<int> codes = {400, 408, 413, 415, 431, 500, 503};
  const bool state = r.path.starts_with("/v1/files") || r.path.starts_with("/v1/batches");
  if (r.access == Access::kKey) codes.insert(codes.end(), {401, 403});
  if (r.access == Access::kKey && r.method == "POST") codes.push_back(429);
  if (r.path.find('{') != std::string::npos) codes.push_back(404);
  if (generates(r)) codes.push_back(504);
  if (r.method == "POST" && r.protocol == Protocol::kResponses) codes.push_back(404);
  if (r.protocol == Protocol::kMessages) codes.push_back(529);
  if (r.method == "DELETE" && r.protocol == Protocol::kResponses) codes.push_back(507);
  if (state) codes.insert(codes.end(), {501, 507});
  if (state && r.path.ends_with("/cancel")) codes.push_back(409);
  std::ranges::sort(codes);
  codes.erase(std::ranges::unique(codes).begin(), codes.end());
  return codes;
}

std::string_view answer_type(const Route& r) {
  if (r.name == "/metrics") return "text/plain";
  return r.path.ends_with("/content") ? "application/octet-stream" : kJsonType;
}

Json operation(const Route& r, std::string_view model) {
  Json op = Json::object();
  std::string id = r.method == "GET" ? "get" : r.method == "POST" ? "post" : "delete";
  for (const char c : r.path) id += c == '/' || c == '{' || c == '}' || c == '.' || c == '-' ? '_' : c;
  op.set("operationId", id);
  if (const size_t open = r.path.find('{'); open != std::string::npos) {
    const std::string name = r.path.substr(open + 1, r.path.find('}') - open - 1);
    Json parameters = Json::array();
    parameters.as_array().push_back(
        object({{"name", name}, {"in", "path"}, {"required", true}, {"schema", object({{"type", "string"}})}}));
    op.set("parameters", std::move(parameters));
  }
  const bool counts = r.path.ends_with("/count_tokens") || r.path.ends_with("/input_tokens");
  std::string_view body = body_schema(r.method, r.path);
  if (generates(r) || counts) body = schema_name(r.protocol);
  if (!body.empty()) {
    Json media = object({{"schema", ref(body)}});
    if (Json example = body_example(r.path, model); !example.is_null()) media.set("example", std::move(example));
    const std::string_view type = r.path == "/v1/files" ? std::string_view("multipart/form-data") : kJsonType;
    op.set("requestBody", object({{"required", true}, {"content", object({{type, std::move(media)}})}}));
  }
  const std::string_view type = answer_type(r);
  const Json schema = type == kJsonType ? ref(answer_schema(r.method, r.path)) : object({{"type", "string"}});
  Json ok = object({{"description", "The answer"}, {"content", object({{type, object({{"schema", schema}})}})}});
  if (generates(r)) ok.find("content")->set(kEventStream, Json::object());
  Json responses = object({{"200", std::move(ok)}});
  const std::string_view error = r.protocol == Protocol::kMessages ? "MessagesError" : "Error";
  for (const int status : error_statuses(r)) {
    responses.set(std::to_string(status), object({{"$ref", fmt::format("#/components/responses/{}", error)}}));
  }
  if (r.path == "/ready")
    responses.set("503", object({{"description", "It ends"},
                                 {"content", object({{kJsonType, object({{"schema", ref("Status")}})}})}}));
  op.set("responses", std::move(responses));
  if (r.access == Access::kOpen) op.set("security", Json::array());
  return op;
}

Json error_response(Json properties, Json required) {
  Json schema = object({{"type", "object"}, {"required", std::move(required)}, {"properties", std::move(properties)}});
  return object({{"description", "What is wrong"},
                 {"content", object({{"application/json", object({{"schema", std::move(schema)}})}})}});
}

std::string document(const Router& router, std::string_view model, const recipe::RequestLimits& limits) {
  std::map<std::string, Json> paths;  // sorted
  for (const auto& route : router.routes()) {
    if (route->name == "page") continue;
    Json& path = paths.try_emplace(route->path, Json::object()).first->second;
    path.set(route->method == "GET" ? "get" : route->method == "POST" ? "post" : "delete", operation(*route, model));
  }
  Json all = Json::object(), schemas = hand_written_schemas();
  for (auto& [path, item] : paths) all.set(path, std::move(item));
  for (const Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages, Protocol::kCompletions}) {
    schemas.set(schema_name(p), request_schema(p, limits));
  }
  const Json text = object({{"type", "string"}}), any = Json::object();
  const Json openai_error =
      object({{"type", "object"},
              {"required", list({"message", "type", "param", "code"})},
              {"properties", object({{"message", text}, {"type", text}, {"param", any}, {"code", any}})}});
  const Json messages_error = object({{"type", "object"},
                                      {"required", list({"type", "message"})},
                                      {"properties", object({{"type", text}, {"message", text}})}});
  const Json openai = object({{"error", openai_error}});
  const Json anthropic = object({{"type", text}, {"error", messages_error}, {"request_id", any}});
  const Json keys = object({{"bearer", object({{"type", "http"}, {"scheme", "bearer"}})},
                            {"x-api-key", object({{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}})}});
  Json security = Json::array();
  for (const std::string_view name : {"bearer", "x-api-key"})
    security.as_array().push_back(object({{name, Json::array()}}));
  security.as_array().push_back(Json::object());
  return recipe::to_compact_json(
      object({{"openapi", "3.1.0"},
              {"info", object({{"title", "DeepInfer"}, {"version", DEEPINFER_VERSION}})},
              {"security", std::move(security)},
              {"paths", std::move(all)},
              {"components",
               object({{"schemas", std::move(schemas)},
                       {"responses", object({{"Error", error_response(openai, list({"error"}))},
                                             {"MessagesError", error_response(anthropic, list({"type", "error"}))}})},
                       {"securitySchemes", keys}})}}));
}

}  // namespace

void add_openapi_routes(Router& router, Service& service) {
  router.add({.method = "GET",
              .path = "/openapi.json",
              .access = Access::kOpen,
              .handler = [&router, &service](const std::shared_ptr<Exchange>& x) {
                // The table does not change once the service runs.
                x->respond({.body = document(router, service.config.model_name, service.request_options.limits)});
              }});
}

}  // namespace deepinfer::serve
