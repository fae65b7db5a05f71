// The models that requests may name.
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

std::string model_object(const Service& service, std::string_view name) {
  std::string out = "{\"id\":";
  recipe::append_json_string(out, name);
  out += ",\"object\":\"model\",\"created\":0,\"owned_by\":\"deepinfer\",\"context_length\":";
  out += std::to_string(service.backend->limits().context_max);
  if (service.config.bundled_model) out += ",\"bundled\":true";
  return out + "}";
}

}  // namespace

void add_model_routes(Router& router, Service& service) {
  const auto list = [&service](const std::shared_ptr<Exchange>& x) {
    std::string out = "{\"object\":\"list\",\"data\":[";
    for (const recipe::ServedModel& m : service.request_options.models) {
      if (out.back() != '[') out += ',';
      out += model_object(service, m.name);
    }
    x->respond({.body = out + "]}"});
  };
  for (const char* path : {"/v1/models", "/models"}) router.add({.method = "GET", .path = path, .handler = list});
  router.add({.method = "GET", .path = "/v1/models/{model}", .handler = [&service](const std::shared_ptr<Exchange>& x) {
                for (const recipe::ServedModel& m : service.request_options.models) {
                  if (m.name == x->path_argument()) return x->respond({.body = model_object(service, m.name)});
                }
                respond_error(*x, 404, "The model '" + std::string(x->path_argument()) + "' does not exist.",
                              "invalid_request_error", "model_not_found", "model");
              }});
}

}  // namespace deepinfer::serve
