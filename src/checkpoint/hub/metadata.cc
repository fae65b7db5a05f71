#include "checkpoint/hub/metadata.h"

#include <algorithm>
#include <charconv>

#include <simdjson.h>

namespace deepinfer::checkpoint {
namespace {

constexpr size_t kMetadataBytesMax = 64u << 20;
constexpr size_t kFilesMax = 100'000;
constexpr size_t kPathBytesMax = 1024;

Status check_path(std::string_view path) {
  bool good = !path.empty() && path.size() <= kPathBytesMax && path.find('\0') == std::string_view::npos;
  for (size_t begin = 0; good && begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    good = !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (good) return Status();
  return make_error(
      Code::kDataLoss,
      "The hub lists a file under the path \"{}\", which would leave the model's folder; nothing was fetched.", path);
}

// "abc", W/"abc" -> abc
std::string bare_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

Status fill_from_head(HttpClient& http, const HubConfig& config, const ModelId& id, const std::string& commit,
                      RemoteFile& file) {
  DI_ASSIGN_OR_RETURN(const HttpReply reply, http.head(file_url(config, id, commit, file.path)));
  if (reply.status >= 400) return status_of_reply(reply, config, id, file.path);
  const std::string linked = reply.header("x-linked-etag"), size = reply.header("x-linked-size");
  file.digest = bare_etag(linked.empty() ? reply.header("etag") : linked);
  const std::string digits = size.empty() ? reply.header("content-length") : size;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), file.size);
  if (parsed.ec != std::errc() || digits.empty()) {
    return make_error(Code::kDataLoss, "The hub does not say how large {} of {} is.", file.path, id.to_string());
  }
  return Status();
}

Result<RemoteModel> parse(const std::string& body, HttpClient& http, const HubConfig& config, const ModelId& id) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  simdjson::dom::array siblings;
  std::string_view commit;
  if (parser.parse(body).get(root) || root["sha"].get(commit) || root["siblings"].get(siblings) ||
      !is_hex(commit, 40)) {
    return make_error(Code::kDataLoss,
                      "{} answered about {} in a form that is not a Hugging Face hub's; check HF_ENDPOINT.",
                      config.endpoint, id.to_string());
  }
  RemoteModel model{.commit = std::string(commit)};
  if (siblings.size() > kFilesMax) {
    return make_error(Code::kResourceExhausted, "{} has {} files; at most {} are supported.", id.to_string(),
                      siblings.size(), kFilesMax);
  }
  for (simdjson::dom::element entry : siblings) {
    std::string_view path, digest;
    if (entry["rfilename"].get(path)) {
      return make_error(Code::kDataLoss, "{} lists a file without a name in {}.", config.endpoint, id.to_string());
    }
    DI_RETURN_IF_ERROR(check_path(path));
    RemoteFile file{.path = std::string(path)};
    const bool has_size = !entry["size"].get(file.size) || !entry["lfs"]["size"].get(file.size);
    const bool has_digest =
        !entry["lfs"]["sha256"].get(digest) || !entry["lfs"]["oid"].get(digest) || !entry["blobId"].get(digest);
    if (digest.starts_with("sha256:")) digest.remove_prefix(7);
    file.digest = digest;
    if (!has_size || !has_digest) DI_RETURN_IF_ERROR(fill_from_head(http, config, id, model.commit, file));
    if (!is_hex(file.digest, 64) && !is_hex(file.digest, 40)) {
      return make_error(Code::kDataLoss,
                        "The hub gives no digest for {} of {}, so that it could not be checked; nothing was fetched.",
                        file.path, id.to_string());
    }
    model.files.push_back(std::move(file));
  }
  if (model.files.empty()) return make_error(Code::kNotFound, "{} has no files.", id.to_string());
  return model;
}

}  // namespace

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string file_url(const HubConfig& config, const ModelId& id, const std::string& commit, const std::string& path) {
  return fmt::format("{}/{}/resolve/{}/{}", config.endpoint, id.repo, commit, url_encode(path, true));
}

Status status_of_reply(const HttpReply& reply, const HubConfig& config, const ModelId& id, std::string_view what) {
  switch (reply.status) {
    case 200:
    case 206:
      return Status();
    case 401:
      if (config.token.empty()) {
        return make_error(Code::kNotFound,
                          "{} asks for a login to give {} of {} (status 401): the model is private or does not exist. "
                          "Check the name, or set HF_TOKEN to a token that may read it.",
                          config.endpoint, what, id.to_string());
      }
      return make_error(Code::kNotFound,
                        "{} does not accept the token for {} of {} (status 401). Check HF_TOKEN and the model's name.",
                        config.endpoint, what, id.to_string());
    case 403:
      return make_error(
          Code::kNotFound,
          "{0} refuses {1} of {2} (status 403): ask for access or accept the terms at {0}/{3}, and set HF_TOKEN.",
          config.endpoint, what, id.to_string(), id.repo);
    case 404:
      return make_error(Code::kNotFound, "{} has no {} of {} (status 404). Check the name and the revision.",
                        config.endpoint, what, id.to_string());
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return make_error(Code::kUnavailable, "{} cannot give {} of {} now (status {}).", config.endpoint, what,
                        id.to_string(), reply.status);
    default:
      return make_error(Code::kIo, "{} answered status {} for {} of {}.", config.endpoint, reply.status, what,
                        id.to_string());
  }
}

Result<RemoteModel> fetch_metadata(HttpClient& http, const HubConfig& config, const ModelId& id) {
  const std::string url =
      fmt::format("{}/api/models/{}/revision/{}?blobs=true", config.endpoint, id.repo, url_encode(id.revision, false));
  std::string body;
  const HttpClient::Sink sink = [&](const HttpReply&, std::string_view bytes) {
    if (body.size() + bytes.size() > kMetadataBytesMax) {
      return make_error(Code::kDataLoss, "{} sent more than {} MiB of metadata; check HF_ENDPOINT.", config.endpoint,
                        kMetadataBytesMax >> 20);
    }
    body += bytes;
    return Status();
  };
  DI_ASSIGN_OR_RETURN(const HttpReply reply, http.get(url, {}, sink));
  DI_RETURN_IF_ERROR(status_of_reply(reply, config, id, "the file list"));
  return parse(body, http, config, id);
}

}  // namespace deepinfer::checkpoint
