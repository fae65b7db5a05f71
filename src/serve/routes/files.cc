// /v1/files: the inputs and outputs of batches, in OpenAI's shapes.
#include "recipe/logprobs.h"
#include "serve/multipart.h"
#include "serve/state_routes.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr int64_t kFilesPerPage = 10'000;
constexpr size_t kFilenameBytesMax = 512;

Json file_object(const StoredFile& f) {
  Json out = Json::object();
  out.set("id", f.id);
  out.set("object", "file");
  out.set("bytes", f.bytes);
  out.set("created_at", f.created);
  out.set("filename", f.filename);
  out.set("purpose", f.purpose);
  out.set("status", "processed");
  return out;
}

Response upload(Service& service, Exchange& x) {
  const Result<std::vector<FormPart>> form = parse_multipart(x.header("content-type"), x.body());
  if (!form.ok()) return state_error(x, 400, form.status().message());
  const FormPart* file = nullptr;
  std::string_view purpose;
  for (const FormPart& part : form.value()) {
    if (part.name == "file") {
      file = &part;
    } else if (part.name == "purpose") {
      purpose = part.content;
    } else {
      return state_error(x, 400, "The form has a field that this service does not have; it takes file and purpose.",
                         recipe::printable(part.name));
    }
  }
  if (file == nullptr) return state_error(x, 400, "The form has no field file.", "file");
  if (purpose != "batch")
    return state_error(x, 400, "purpose must be batch: files are the inputs of batches here.", "purpose");
  if (file->filename.empty() || file->filename.size() > kFilenameBytesMax) {
    return state_error(x, 400, fmt::format("The file needs a name of 1 to {} bytes.", kFilenameBytesMax), "file");
  }
  if (file->content.size() > service.state->limits().file_bytes_max) {
    service.metrics.limit_hit("file_bytes_max");
    return state_error(x, 413,
                       fmt::format("The file has {} bytes; file_bytes_max is {}.", file->content.size(),
                                   service.state->limits().file_bytes_max),
                       "file");
  }
  const StoredFile stored{.id = service.ids.next("file-"),
                          .owner = x.key_name,
                          .purpose = "batch",
                          .filename = recipe::printable(file->filename),
                          .bytes = static_cast<int64_t>(file->content.size()),
                          .created = service.now()};
  if (const Status added = service.state->add_file(stored, file->content); !added.ok()) return state_error(x, added);
  return {.body = recipe::to_compact_json(file_object(stored))};
}

Response list_files(Service& service, Exchange& x) {
  const auto limit = query_limit(x, kFilesPerPage, kFilesPerPage);
  if (!limit) return state_error(x, 400, fmt::format("limit must be between 1 and {}.", kFilesPerPage), "limit");
  const std::string order = x.query_value("order");
  if (!order.empty() && order != "asc" && order != "desc")
    return state_error(x, 400, "order must be asc or desc.", "order");
  auto files =
      service.state->files(x.key_name, x.query_value("purpose"), x.query_value("after"), order == "asc", *limit + 1);
  if (!files.ok()) return state_error(x, files.status());
  const bool more = static_cast<int64_t>(files.value().size()) > *limit;
  if (more) files.value().pop_back();
  recipe::JsonArray data;
  for (const StoredFile& f : files.value()) data.push_back(file_object(f));
  return list_response(std::move(data), more);
}

Response get_file(Service& service, Exchange& x) {
  const Result<StoredFile> file = service.state->file(x.path_argument(), x.key_name);
  if (!file.ok()) return state_error(x, file.status());
  return {.body = recipe::to_compact_json(file_object(file.value()))};
}

Response get_content(Service& service, Exchange& x) {
  Result<std::string> content = service.state->content(x.path_argument(), x.key_name);
  if (!content.ok()) return state_error(x, content.status());
  return {.content_type = "application/octet-stream", .body = std::move(content).value()};
}

Response delete_file(Service& service, Exchange& x) {
  if (const Status removed = service.state->remove_file(x.path_argument(), x.key_name); !removed.ok())
    return state_error(x, removed);
  Json out = Json::object();
  out.set("id", x.path_argument());
  out.set("object", "file");
  out.set("deleted", true);
  return {.body = recipe::to_compact_json(out)};
}

}  // namespace

void add_file_routes(Router& router, Service& service) {
  add_state_route(router, service, "POST", "/v1/files", &upload);
  add_state_route(router, service, "GET", "/v1/files", &list_files);
  add_state_route(router, service, "GET", "/v1/files/{id}/content", &get_content);
  add_state_route(router, service, "GET", "/v1/files/{id}", &get_file);
  add_state_route(router, service, "DELETE", "/v1/files/{id}", &delete_file);
}

}  // namespace deepinfer::serve
