// /openapi.json: OpenAPI 3.1 of the routes that this service has, with the request fields of recipe/request_fields.h.
#include <map>

#include "recipe/json.h"
#include "recipe/request_fields.h"
#include "serve/routes.h"
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

// The types of fields that have one type in every API that has them; the others say theirs in words.
Json field_type(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kTypes = {
      {"model", "string"},       {"messages", "array"},           {"max_tokens", "integer"},       {"max_completion_tokens", "integer"},
      {"temperature", "number"}, {"top_p", "number"},             {"seed", "integer"},             {"n", "integer"},
      {"stream", "boolean"},     {"stream_options", "object"},    {"tools", "array"},              {"instructions", "string"},
      {"echo", "boolean"},       {"parallel_tool_calls", "boolean"}, {"max_output_tokens", "integer"}, {"prompt", "string"},
      {"suffix", "string"},      {"frequency_penalty", "number"}, {"presence_penalty", "number"},  {"top_logprobs", "integer"},
      {"logit_bias", "object"},  {"min_tokens", "integer"},       {"top_k", "integer"},            {"min_p", "number"},
      {"store", "boolean"},      {"previous_response_id", "string"}};
  const auto at = kTypes.find(name);
  if (at == kTypes.end()) return Json::object();
  return object({{"type", list({at->second, "null"})}});
}

Json request_schema(Protocol protocol) {
  Json properties = Json::object();
  for (const recipe::RequestField& f : recipe::request_fields()) {
    if (f.protocol != protocol || f.use == recipe::FieldUse::kRefused || f.path.find_first_of(".[") != std::string_view::npos) continue;
    Json field = f.use == recipe::FieldUse::kHonoured ? field_type(f.path) : Json::object();
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
  return r.method == "POST" && (r.path.ends_with("/completions") || r.path.ends_with("/responses") || r.path.ends_with("/messages"));
}

Json content(std::string_view type) { return object({{type, object({{"schema", Json::object()}})}}); }

// Of an upload, or of a new batch.
Json state_request_body(bool upload) {
  const Json text = object({{"type", "string"}});
  const Json schema =
      upload ? object({{"type", "object"},
                       {"required", list({"file", "purpose"})},
                       {"properties", object({{"file", object({{"type", "string"}, {"format", "binary"}})}, {"purpose", object({{"enum", list({"batch"})}})}})}})
             : object({{"type", "object"},
                       {"required", list({"input_file_id", "endpoint", "completion_window"})},
                       {"properties", object({{"input_file_id", text},
                                              {"endpoint", text},
                                              {"completion_window", object({{"enum", list({"24h"})}})},
                                              {"metadata", object({{"type", list({"object", "null"})}})}})}});
  const std::string_view type = upload ? "multipart/form-data" : kJsonType;
  return object({{"required", true}, {"content", object({{type, object({{"schema", schema}})}})}});
}

std::string_view answer_type(const Route& r) {
  if (r.name == "/metrics") return "text/plain";
  return r.path.ends_with("/content") ? "application/octet-stream" : kJsonType;
}

Json operation(const Route& r) {
  Json op = Json::object();
  std::string id = r.method == "GET" ? "get" : r.method == "POST" ? "post" : "delete";
  for (const char c : r.path) id += c == '/' || c == '{' || c == '}' || c == '.' || c == '-' ? '_' : c;
  op.set("operationId", id);
  if (const size_t open = r.path.find('{'); open != std::string::npos) {
    const std::string name = r.path.substr(open + 1, r.path.find('}') - open - 1);
    Json parameters = Json::array();
    parameters.as_array().push_back(object({{"name", name}, {"in", "path"}, {"required", true}, {"schema", object({{"type", "string"}})}}));
    op.set("parameters", std::move(parameters));
  }
  const bool counts = r.path.ends_with("/count_tokens");
  if (generates(r) || counts) {
    const Json schema = object({{"$ref", "#/components/schemas/" + std::string(schema_name(r.protocol))}});
    op.set("requestBody", object({{"required", true}, {"content", object({{"application/json", object({{"schema", schema}})}})}}));
  } else if (r.method == "POST" && r.path.ends_with("tokenize")) {
    const Json schema = object({{"schema", object({{"type", "object"}})}});
    op.set("requestBody", object({{"required", true}, {"content", object({{"application/json", schema}})}}));
  } else if (r.method == "POST" && (r.path == "/v1/files" || r.path == "/v1/batches")) {
    op.set("requestBody", state_request_body(r.path == "/v1/files"));
  }
  Json ok = object({{"description", "The answer"}, {"content", content(answer_type(r))}});
  if (generates(r)) ok.find("content")->set("text/event-stream", object({{"schema", object({{"type", "string"}})}}));
  const Json error = object({{"$ref", r.protocol == Protocol::kMessages ? "#/components/responses/MessagesError" : "#/components/responses/Error"}});
  op.set("responses", object({{"200", std::move(ok)}, {"default", error}}));
  if (r.access == Access::kOpen) op.set("security", Json::array());
  return op;
}

Json error_response(Json properties) {
  Json schema = object({{"type", "object"}, {"properties", std::move(properties)}});
  return object({{"description", "What is wrong"}, {"content", object({{"application/json", object({{"schema", std::move(schema)}})}})}});
}

std::string document(const Router& router) {
  std::map<std::string, Json> paths;  // sorted
  for (const auto& route : router.routes()) {
    if (route->name == "page") continue;
    Json& path = paths.try_emplace(route->path, Json::object()).first->second;
    path.set(route->method == "GET" ? "get" : route->method == "POST" ? "post" : "delete", operation(*route));
  }
  Json all = Json::object(), schemas = Json::object();
  for (auto& [path, item] : paths) all.set(path, std::move(item));
  for (const Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages, Protocol::kCompletions}) {
    schemas.set(schema_name(p), request_schema(p));
  }
  const Json text = object({{"type", "string"}}), any = Json::object();
  const Json openai = object({{"error", object({{"type", "object"}, {"properties", object({{"message", text}, {"type", text}, {"param", any}, {"code", any}})}})}});
  const Json anthropic = object({{"type", text}, {"error", object({{"type", "object"}, {"properties", object({{"type", text}, {"message", text}})}})}, {"request_id", any}});
  const Json keys = object({{"bearer", object({{"type", "http"}, {"scheme", "bearer"}})},
                            {"x-api-key", object({{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}})}});
  Json security = Json::array();
  for (const std::string_view name : {"bearer", "x-api-key"}) security.as_array().push_back(object({{name, Json::array()}}));
  security.as_array().push_back(Json::object());
  return recipe::to_compact_json(
      object({{"openapi", "3.1.0"},
              {"info", object({{"title", "DeepInfer"}, {"version", DEEPINFER_VERSION}})},
              {"security", std::move(security)},
              {"paths", std::move(all)},
              {"components", object({{"schemas", std::move(schemas)},
                                     {"responses", object({{"Error", error_response(openai)}, {"MessagesError", error_response(anthropic)}})},
                                     {"securitySchemes", keys}})}}));
}

}  // namespace

void add_openapi_routes(Router& router, Service&) {
  router.add({.method = "GET", .path = "/openapi.json", .access = Access::kOpen, .handler = [&router](const std::shared_ptr<Exchange>& x) {
                // The table does not change once the service runs.
                x->respond({.body = document(router)});
              }});
}

}  // namespace deepinfer::serve
