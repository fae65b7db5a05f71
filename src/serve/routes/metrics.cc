// Prometheus' page.
#include "serve/generation.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {

void add_metrics_routes(Router& router, Service& service) {
  router.add({.method = "GET", .path = "/metrics", .handler = [&service](const std::shared_ptr<Exchange>& x) {
                // The engine answers between two steps: not a wait for an I/O thread.
                const bool queued = service.workers.submit([&service, x] {
                  auto page = std::make_shared<std::string>(service.metrics_text());
                  x->loop().post([x, page] {
                    x->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(*page)});
                  });
                });
                if (!queued)
                  respond_api_error(*x, {.status = 503,
                                         .message = "Too much is waiting. Try again later.",
                                         .type = "server_error",
                                         .code = "overloaded"});
              }});
}

}  // namespace deepinfer::serve
