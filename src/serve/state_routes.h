// What the routes over the state store share: their work is done by a worker, and without a store they say so
// (internal to serve/).
//
//   add_state_route(router, service, "GET", "/v1/files/{id}", [](Service& s, Exchange& x) -> Response { ... });
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "recipe/json.h"
#include "recipe/request.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {

using StateHandler = Response (*)(Service& service, Exchange& x);

inline Response state_error(const Exchange& x, int status, std::string message, std::string_view param = {}) {
  const std::string_view type = status >= 500 ? "server_error" : "invalid_request_error";
  recipe::ApiError error{.status = status,
                         .message = std::move(message),
                         .type = std::string(type),
                         .code = std::string(type),
                         .param = std::string(param)};
  return {.status = status, .body = recipe::error_body(x.protocol, error, x.request_id)};
}

inline Response state_error(const Exchange& x, const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument: return state_error(x, 400, status.message());
    case Code::kNotFound: return state_error(x, 404, status.message());
    case Code::kResourceExhausted: return state_error(x, 507, status.message());
    default: return state_error(x, 500, status.message());
  }
}

inline void add_state_route(Router& router, Service& service, std::string_view method, std::string path,
                            StateHandler handler) {
  router.add(
      {.method = method, .path = std::move(path), .handler = [&service, handler](const std::shared_ptr<Exchange>& x) {
         if (!service.state) {
           return x->respond(state_error(
               *x, 501, "This service keeps no files and batches. Start it with --state-dir FOLDER to have them."));
         }
         const bool queued = service.workers.submit([&service, handler, x] {
           Response response;
           try {
             response = handler(service, *x);
           } catch (const std::exception& e) {
             response = state_error(*x, 500, fmt::format("The service failed: {}.", e.what()));
           }
           x->loop().post([x, response = std::move(response)]() mutable { x->respond(std::move(response)); });
         });
         if (!queued) x->respond(state_error(*x, 503, "Too many requests are waiting. Try again later."));
       }});
}

// The query's limit; nothing if it is not between 1 and `max`.
inline std::optional<int64_t> query_limit(const Exchange& x, int64_t fallback, int64_t max) {
  const std::string text = x.query_value("limit");
  int64_t value = fallback;
  if (text.empty()) return value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > max) return std::nullopt;
  return value;
}

// One page of a list of objects that have ids.
inline Response list_response(recipe::JsonArray data, bool more) {
  const auto id_of = [](const recipe::Json& item) { return *item.find("id"); };
  recipe::Json list = recipe::Json::object();
  list.set("object", "list");
  list.set("first_id", data.empty() ? recipe::Json() : id_of(data.front()));
  list.set("last_id", data.empty() ? recipe::Json() : id_of(data.back()));
  list.set("has_more", more);
  list.set("data", std::move(data));
  return {.body = recipe::to_compact_json(list)};
}

}  // namespace deepinfer::serve
