// OpenAI Responses with storage (spec/protocol.md 10).
#include <algorithm>
#include <charconv>

#include "recipe/events_responses.h"
#include "serve/generation.h"
#include "serve/response_store.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr int kItemsDefault = 20, kItemsMax = 100;

Response refuse(const Exchange& x, int status, std::string message, std::string param = {}) {
  recipe::ApiError e = {.status = status, .message = std::move(message), .param = std::move(param)};
  if (status >= 500) e.type = e.code = "server_error";
  return {.status = status, .body = recipe::error_body(x.protocol, e, x.request_id)};
}

Response not_found(const Exchange& x) {
  return refuse(x, 404, "Response with id '" + std::string(x.path_argument()) + "' not found.");
}

std::vector<Json> output_items(const std::string& body) {
  Result<Json> response = recipe::parse_json(body);
  Json* output = response.ok() ? response->find("output") : nullptr;
  return output != nullptr && output->is_array() ? std::move(output->as_array()) : std::vector<Json>();
}

// Every item has an id, by which a list of them is paged.
std::vector<Json> numbered_items(std::vector<Json> items, std::string_view response) {
  for (size_t i = 0; i < items.size(); ++i) {
    const Json* id = items[i].find("id");
    if (items[i].is_object() && (id == nullptr || !id->is_string()))
      items[i].set("id", fmt::format("item_{}_{}", response, i));
  }
  return items;
}

void create(Service& service, const std::shared_ptr<Exchange>& x) {
  GenerationOptions options;
  options.protocol = recipe::Protocol::kResponses;
  options.id_prefix = "resp_";
  const std::string owner = x->key_name;
  options.started = [&service, owner](const Prepared& p, const std::shared_ptr<GenerationControl>& control) {
    if (!p.request.store) return;
    service.responses.add({.id = p.answer.id,
                           .owner = owner,
                           .body = recipe::running_response(p.answer),
                           .input_items = numbered_items(p.request.input_items, p.answer.id),
                           .previous = p.request.previous_response_id,
                           .cancel = [weak = std::weak_ptr(control)] {
                             if (const auto c = weak.lock()) c->stop();
                           },
                           .created = p.answer.created});
  };
  options.finished = [&service](const Prepared& p, const recipe::ApiStream* answer) {
    if (!p.request.store) return;
    if (answer == nullptr) return service.responses.drop(p.answer.id);
    std::string body = answer->body();
    std::vector<Json> items = output_items(body);
    service.responses.finish(p.answer.id, std::move(body), std::move(items), service.now());
  };
  start_generation(service, x, std::move(options));
}

Response list_items(Service&, const StoredResponse& r, Exchange& x) {
  int limit = kItemsDefault;
  if (const std::string text = x.query_value("limit"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > kItemsMax) {
      return refuse(x, 400, "Invalid limit value, the valid range of limit is [1, 100]", "limit");
    }
  }
  const std::string order = x.query_value("order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return refuse(x, 400, "Invalid order value, it is asc or desc", "order");
  }
  std::vector<Json> items = r.input_items;
  if (order != "asc") std::reverse(items.begin(), items.end());
  const auto id_of = [](const Json& item) { return item.find("id") != nullptr ? *item.find("id") : Json(); };
  size_t begin = 0;
  if (const std::string after = x.query_value("after"); !after.empty()) {
    while (begin < items.size() && !(id_of(items[begin]) == Json(after))) ++begin;
    if (begin == items.size()) return refuse(x, 400, "There is no item with the id in after.", "after");
    ++begin;
  }
  const size_t end = std::min(items.size(), begin + static_cast<size_t>(limit));
  Json list = Json::object();
  list.set("object", "list");
  list.set("data", recipe::JsonArray(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                     items.begin() + static_cast<std::ptrdiff_t>(end)));
  list.set("first_id", begin < end ? id_of(items[begin]) : Json());
  list.set("last_id", begin < end ? id_of(items[end - 1]) : Json());
  list.set("has_more", end < items.size());
  return {.body = recipe::to_compact_json(list)};
}

Response get(Service&, const StoredResponse& r, Exchange& x) {
  if (x.query_value("stream") == "true") {
    return refuse(x, 400, "A stored response is given as a whole; its events are not kept. Ask without stream.",
                  "stream");
  }
  return {.body = r.body};
}

Response cancel(Service&, const StoredResponse& r, Exchange& x) {
  if (!r.running) return refuse(x, 400, "Cannot cancel a response that has ended.");
  r.cancel();
  return {.body = r.body};
}

Response remove(Service& service, const StoredResponse& r, Exchange& x) {
  const Result<bool> removed = service.responses.remove(r.id, x.key_name, service.now());
  if (!removed.ok())
    return refuse(x, removed.status().code() == Code::kResourceExhausted ? 507 : 500, removed.status().message());
  Json out = Json::object();
  out.set("id", x.path_argument());
  out.set("object", "response");
  out.set("deleted", true);
  return {.body = recipe::to_compact_json(out)};
}

using StoredHandler = Response (*)(Service&, const StoredResponse&, Exchange&);

Response with_stored(Service& service, StoredHandler handler, Exchange& x) {
  const auto found = service.responses.find(x.path_argument(), x.key_name, service.now());
  if (!found.ok()) return refuse(x, 500, found.status().message());
  return found.value() ? handler(service, *found.value(), x) : not_found(x);
}

void add(Router& router, Service& service, std::string_view method, std::string path, StoredHandler handler) {
  router.add({.method = method, .path = std::move(path), .protocol = recipe::Protocol::kResponses,
              .handler = [&service, handler](const std::shared_ptr<Exchange>& x) {
                if (!service.responses.persistent()) return x->respond(with_stored(service, handler, *x));
                const bool queued = service.workers.submit([&service, handler, x] {
                  auto response = std::make_shared<Response>(with_stored(service, handler, *x));
                  x->loop().post([x, response] { x->respond(std::move(*response)); });
                });
                if (!queued) x->respond(refuse(*x, 503, "Too many requests are waiting. Try again later."));
              }});
}

}  // namespace

void add_response_routes(Router& router, Service& service) {
  constexpr auto kProtocol = recipe::Protocol::kResponses;
  for (const char* path : {"/v1/responses", "/responses"}) {
    router.add({.method = "POST",
                .path = path,
                .protocol = kProtocol,
                .handler = [&service](const std::shared_ptr<Exchange>& x) { create(service, x); }});
  }
  add(router, service, "POST", "/v1/responses/{id}/cancel", &cancel);
  add(router, service, "GET", "/v1/responses/{id}/input_items", &list_items);
  add(router, service, "GET", "/v1/responses/{id}", &get);
  add(router, service, "DELETE", "/v1/responses/{id}", &remove);
}

}  // namespace deepinfer::serve
