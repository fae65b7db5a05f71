// /v1/batches: requests of a file, carried out in the background, in OpenAI's shapes.
#include <algorithm>
#include <iterator>

#include "serve/batch_input.h"
#include "serve/batch_runner.h"
#include "serve/state_routes.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr int64_t kBatchesDefault = 20, kBatchesMax = 100;
constexpr int64_t kWindowS = 24 * 3600;
constexpr size_t kMetadataMax = 16, kMetadataKeyMax = 64, kMetadataValueMax = 512;

Json time_or_null(int64_t time) { return time == 0 ? Json() : Json(time); }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json parsed_or_null(const std::string& text) {
  Result<Json> parsed = text.empty() ? Result<Json>(Json()) : recipe::parse_json(text);
  return parsed.ok() ? std::move(parsed).value() : Json();
}

Json batch_object(const StoredBatch& b) {
  Json out = Json::object(), errors, counts = Json::object();
  if (!b.errors.empty()) {
    errors = Json::object();
    errors.set("object", "list");
    errors.set("data", parsed_or_null(b.errors));
  }
  counts.set("total", b.total);
  counts.set("completed", b.completed);
  counts.set("failed", b.failed);
  out.set("id", b.id);
  out.set("object", "batch");
  out.set("endpoint", b.endpoint);
  out.set("errors", std::move(errors));
  out.set("input_file_id", b.input_file);
  out.set("completion_window", b.window);
  out.set("status", b.status);
  out.set("output_file_id", text_or_null(b.output_file));
  out.set("error_file_id", text_or_null(b.error_file));
  out.set("created_at", b.created);
  out.set("in_progress_at", time_or_null(b.started));
  out.set("expires_at", b.expires);
  out.set("finalizing_at", time_or_null(b.finalizing));
  for (const char* status : {"completed", "failed", "expired"}) {
    out.set(std::string(status) + "_at", b.status == status ? time_or_null(b.ended) : Json());
  }
  out.set("cancelling_at", time_or_null(b.cancelling));
  out.set("cancelled_at", b.status == "cancelled" ? time_or_null(b.ended) : Json());
  out.set("request_counts", std::move(counts));
  out.set("metadata", parsed_or_null(b.metadata));
  return out;
}

bool is_metadata(const Json& value) {
  return value.is_object() && value.as_object().size() <= kMetadataMax &&
         std::ranges::all_of(value.as_object(), [](const recipe::JsonMember& m) {
           return m.key.size() <= kMetadataKeyMax && m.value.is_string() &&
                  m.value.as_string().size() <= kMetadataValueMax;
         });
}

const std::string* text_member(const Json& body, std::string_view name) {
  const Json* value = body.find(name);
  return value != nullptr && value->is_string() ? &value->as_string() : nullptr;
}

Response create(Service& service, Exchange& x) {
  const Result<Json> parsed = recipe::parse_json(x.body());
  if (!parsed.ok()) return state_error(x, 400, "The body is no JSON: " + parsed.status().message());
  const Json& body = parsed.value();
  if (!body.is_object()) return state_error(x, 400, "The body must be an object.");
  constexpr std::string_view kFields[] = {"input_file_id", "endpoint", "completion_window", "metadata"};
  for (const recipe::JsonMember& m : body.as_object()) {
    if (std::ranges::find(kFields, m.key) == std::end(kFields))
      return state_error(x, 400, "Unknown parameter: '" + m.key + "'.", m.key);
  }
  const std::string* input = text_member(body, "input_file_id");
  const std::string* endpoint = text_member(body, "endpoint");
  const std::string* window = text_member(body, "completion_window");
  if (endpoint == nullptr || std::ranges::find(kBatchEndpoints, *endpoint) == std::end(kBatchEndpoints)) {
    return state_error(x, 400, fmt::format("endpoint must be one of {}.", fmt::join(kBatchEndpoints, ", ")),
                       "endpoint");
  }
  if (window == nullptr || *window != "24h")
    return state_error(x, 400, "completion_window must be \"24h\".", "completion_window");
  const Json* metadata = body.find("metadata");
  const bool has_metadata = metadata != nullptr && !metadata->is_null();
  if (has_metadata && !is_metadata(*metadata)) {
    return state_error(x, 400,
                       "metadata must be an object of at most 16 texts of 512 bytes, with names of at most 64 bytes.",
                       "metadata");
  }
  if (input == nullptr)
    return state_error(x, 400, "input_file_id must be the id of an uploaded file.", "input_file_id");
  const Result<StoredFile> file = service.state->file(*input, x.key_name);
  if (file.status().code() == Code::kNotFound) return state_error(x, 400, file.status().message(), "input_file_id");
  if (!file.ok()) return state_error(x, file.status());
  if (file.value().purpose != "batch")
    return state_error(x, 400, "The input file must have the purpose batch.", "input_file_id");
  const int64_t now = service.now();
  const StoredBatch batch{.id = service.ids.next("batch_"),
                          .owner = x.key_name,
                          .endpoint = *endpoint,
                          .input_file = *input,
                          .window = *window,
                          .metadata = has_metadata ? recipe::to_compact_json(*metadata) : std::string(),
                          .created = now,
                          .expires = now + kWindowS};
  if (const Status added = service.state->add_batch(batch); !added.ok()) return state_error(x, added);
  service.batches->wake();
  return {.body = recipe::to_compact_json(batch_object(batch))};
}

Response list_batches(Service& service, Exchange& x) {
  const auto limit = query_limit(x, kBatchesDefault, kBatchesMax);
  if (!limit) return state_error(x, 400, fmt::format("limit must be between 1 and {}.", kBatchesMax), "limit");
  auto batches = service.state->batches(x.key_name, x.query_value("after"), *limit + 1);
  if (!batches.ok()) return state_error(x, batches.status());
  const bool more = static_cast<int64_t>(batches.value().size()) > *limit;
  if (more) batches.value().pop_back();
  recipe::JsonArray data;
  for (const StoredBatch& b : batches.value()) data.push_back(batch_object(b));
  return list_response(std::move(data), more);
}

Response get_batch(Service& service, Exchange& x) {
  const Result<StoredBatch> batch = service.state->batch(x.path_argument(), x.key_name);
  if (!batch.ok()) return state_error(x, batch.status());
  return {.body = recipe::to_compact_json(batch_object(batch.value()))};
}

Response cancel(Service& service, Exchange& x) {
  Result<StoredBatch> batch = service.state->batch(x.path_argument(), x.key_name);
  if (!batch.ok()) return state_error(x, batch.status());
  if (batch.value().ended != 0) {
    return state_error(x, 409, fmt::format("Cannot cancel a batch with status '{}'.", batch.value().status));
  }
  if (const Status cancelled = service.state->cancel_batch(batch.value().id, service.now()); !cancelled.ok())
    return state_error(x, cancelled);
  batch = service.state->batch(x.path_argument(), x.key_name);
  if (!batch.ok()) return state_error(x, batch.status());
  service.batches->wake();
  return {.body = recipe::to_compact_json(batch_object(batch.value()))};
}

}  // namespace

void add_batch_routes(Router& router, Service& service) {
  add_state_route(router, service, "POST", "/v1/batches", &create);
  add_state_route(router, service, "GET", "/v1/batches", &list_batches);
  add_state_route(router, service, "POST", "/v1/batches/{id}/cancel", &cancel);
  add_state_route(router, service, "GET", "/v1/batches/{id}", &get_batch);
}

}  // namespace deepinfer::serve
