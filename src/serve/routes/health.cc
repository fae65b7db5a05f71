// Whether the service lives, takes requests, and what it is.
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {

void add_health_routes(Router& router, Service& service) {
  router.add(
      {.method = "GET", .path = "/health", .access = Access::kOpen, .handler = [](const std::shared_ptr<Exchange>& x) {
         x->respond({.body = R"({"status":"ok"})"});
       }});
  router.add({.method = "GET",
              .path = "/ready",
              .access = Access::kOpen,
              .handler = [&service](const std::shared_ptr<Exchange>& x) {
                if (service.draining) return x->respond({.status = 503, .body = R"({"status":"draining"})"});
                x->respond({.body = R"({"status":"ready"})"});
              }});
  router.add(
      {.method = "GET", .path = "/version", .access = Access::kOpen, .handler = [](const std::shared_ptr<Exchange>& x) {
         x->respond({.body = R"({"name":"deepinfer","version":")" DEEPINFER_VERSION R"("})"});
       }});
}

}  // namespace deepinfer::serve
