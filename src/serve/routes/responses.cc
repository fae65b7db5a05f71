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

void not_found(Exchange& x) {
  respond_error(x, 404, "Response with id '" + std::string(x.path_argument()) + "' not found.");
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
    if (items[i].is_object() && (id == nullptr || !id->is_string())) items[i].set("id", fmt::format("item_{}_{}", response, i));
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
    service.responses.finish(p.answer.id, std::move(body), std::move(items));
  };
  start_generation(service, x, std::move(options));
}

void list_items(const StoredResponse& r, Exchange& x) {
  int limit = kItemsDefault;
  if (const std::string text = x.query_value("limit"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > kItemsMax) {
      return respond_error(x, 400, "Invalid limit value, the valid range of limit is [1, 100]", "invalid_request_error", {}, "limit");
    }
  }
  const std::string order = x.query_value("order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return respond_error(x, 400, "Invalid order value, it is asc or desc", "invalid_request_error", {}, "order");
  }
  std::vector<Json> items = r.input_items;
  if (order != "asc") std::reverse(items.begin(), items.end());
  const auto id_of = [](const Json& item) { return item.find("id") != nullptr ? *item.find("id") : Json(); };
  size_t begin = 0;
  if (const std::string after = x.query_value("after"); !after.empty()) {
    while (begin < items.size() && !(id_of(items[begin]) == Json(after))) ++begin;
    if (begin == items.size()) return respond_error(x, 400, "There is no item with the id in after.", "invalid_request_error", {}, "after");
    ++begin;
  }
  const size_t end = std::min(items.size(), begin + static_cast<size_t>(limit));
  Json list = Json::object();
  list.set("object", "list");
  list.set("data", recipe::JsonArray(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end)));
  list.set("first_id", begin < end ? id_of(items[begin]) : Json());
  list.set("last_id", begin < end ? id_of(items[end - 1]) : Json());
  list.set("has_more", end < items.size());
  x.respond({.body = recipe::to_compact_json(list)});
}

}  // namespace

void add_response_routes(Router& router, Service& service) {
  constexpr auto kProtocol = recipe::Protocol::kResponses;
  for (const char* path : {"/v1/responses", "/responses"}) {
    router.add({.method = "POST", .path = path, .protocol = kProtocol, .handler = [&service](const std::shared_ptr<Exchange>& x) {
                  create(service, x);
                }});
  }
  router.add({.method = "POST", .path = "/v1/responses/{id}/cancel", .protocol = kProtocol, .handler = [&service](const std::shared_ptr<Exchange>& x) {
                const auto found = service.responses.find(x->path_argument(), x->key_name);
                if (!found) return not_found(*x);
                if (!found->running) return respond_error(*x, 400, "Cannot cancel a response that has ended.");
                found->cancel();
                x->respond({.body = found->body});
              }});
  router.add({.method = "GET", .path = "/v1/responses/{id}/input_items", .protocol = kProtocol, .handler = [&service](const std::shared_ptr<Exchange>& x) {
                const auto found = service.responses.find(x->path_argument(), x->key_name);
                found ? list_items(*found, *x) : not_found(*x);
              }});
  router.add({.method = "GET", .path = "/v1/responses/{id}", .protocol = kProtocol, .handler = [&service](const std::shared_ptr<Exchange>& x) {
                const auto found = service.responses.find(x->path_argument(), x->key_name);
                found ? x->respond({.body = found->body}) : not_found(*x);
              }});
  router.add({.method = "DELETE", .path = "/v1/responses/{id}", .protocol = kProtocol, .handler = [&service](const std::shared_ptr<Exchange>& x) {
                if (!service.responses.remove(x->path_argument(), x->key_name)) return not_found(*x);
                Json out = Json::object();
                out.set("id", x->path_argument());
                out.set("object", "response");
                out.set("deleted", true);
                x->respond({.body = recipe::to_compact_json(out)});
              }});
}

}  // namespace deepinfer::serve
