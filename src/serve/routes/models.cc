// The models that requests may name, in OpenAI's shape, and in Anthropic's for clients that send anthropic-version.
#include "serve/routes.h"
#include "serve/service.h"
#include "serve/utc_time.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

bool is_anthropic(const Exchange& x) {
  return x.protocol == recipe::Protocol::kMessages || !x.header("anthropic-version").empty();
}

Json model_object(const Service& service, const std::string& name, bool anthropic) {
  Json out = Json::object();
  if (anthropic) {
    out.set("type", "model");
    out.set("id", name);
    out.set("display_name", name);
    out.set("created_at", utc_time(service.started));
    out.set("max_input_tokens", service.backend->limits().context_max);
    return out;
  }
  out.set("id", name);
  out.set("object", "model");
  out.set("created", service.started);
  out.set("owned_by", "deepinfer");
  out.set("context_length", service.backend->limits().context_max);
  if (service.config.bundled_model) out.set("bundled", true);
  return out;
}

void list(const Service& service, Exchange& x) {
  const bool anthropic = is_anthropic(x);
  const auto& models = service.request_options.models;
  recipe::JsonArray data;
  for (const recipe::ServedModel& m : models) data.push_back(model_object(service, m.name, anthropic));
  Json out = Json::object();
  if (!anthropic) out.set("object", "list");
  out.set("data", std::move(data));
  if (anthropic) {
    out.set("first_id", models.front().name);
    out.set("last_id", models.back().name);
    out.set("has_more", false);
  }
  x.respond({.body = recipe::to_compact_json(out)});
}

void get(const Service& service, Exchange& x) {
  if (is_anthropic(x)) x.protocol = recipe::Protocol::kMessages;  // of an error
  for (const recipe::ServedModel& m : service.request_options.models) {
    if (m.name == x.path_argument())
      return x.respond({.body = recipe::to_compact_json(model_object(service, m.name, is_anthropic(x)))});
  }
  respond_error(x, 404, "The model '" + std::string(x.path_argument()) + "' does not exist.",
                is_anthropic(x) ? "not_found_error" : "invalid_request_error", "model_not_found", "model");
}

}  // namespace

void add_model_routes(Router& router, Service& service) {
  const auto add = [&](const std::string& path, recipe::Protocol protocol) {
    router.add({.method = "GET", .path = path, .protocol = protocol,
                .handler = [&service](const std::shared_ptr<Exchange>& x) { list(service, *x); }});
    router.add({.method = "GET", .path = path + "/{model}", .protocol = protocol,
                .handler = [&service](const std::shared_ptr<Exchange>& x) { get(service, *x); }});
  };
  for (const char* path : {"/v1/models", "/models", "/beta/models"}) add(path, recipe::Protocol::kChat);
  add("/anthropic/v1/models", recipe::Protocol::kMessages);
}

}  // namespace deepinfer::serve
