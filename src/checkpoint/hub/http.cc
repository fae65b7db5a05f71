#include "checkpoint/hub/http.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <mutex>

#include <curl/curl.h>

namespace deepinfer::checkpoint {
namespace {

constexpr long kConnectTimeoutS = 20;
constexpr long kRedirectsMax = 8;
constexpr size_t kHeaderBytesMax = 64 << 10;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// scheme://host:port, which is what a token is valid for.
std::string origin(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) return "";
  return lower(url.substr(0, std::min(url.find_first_of("/?#", scheme + 3), url.size())));
}

bool found_nobody(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT ||
         code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

}  // namespace

std::string url_encode(std::string_view text, bool keep_slash) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (unsigned char c : text) {
    if (std::isalnum(c) || std::strchr("-._~", c) != nullptr || (c == '/' && keep_slash)) {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out;
}

std::string HttpReply::header(const std::string& lower_case_name) const {
  const auto it = headers.find(lower_case_name);
  return it == headers.end() ? "" : it->second;
}

struct HttpClient::Impl {
  CURL* curl = nullptr;
  curl_slist* authorization = nullptr;
  HubConfig config;
  const std::atomic<bool>* stop = nullptr;
  char error[CURL_ERROR_SIZE] = "";

  // Of the request in progress.
  const Sink* sink = nullptr;
  HttpReply reply;
  size_t header_bytes = 0;
  Status refused;
  bool unreachable = false;

  static size_t on_header(char* data, size_t size, size_t count, void* self_pointer) {
    auto* self = static_cast<Impl*>(self_pointer);
    const std::string_view line(data, size * count);
    self->header_bytes += line.size();
    if (self->header_bytes > kHeaderBytesMax) return 0;
    if (line.starts_with("HTTP/")) {
      self->reply.headers.clear();
    } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
      self->reply.headers[lower(line.substr(0, colon))] = trim(line.substr(colon + 1));
    }
    return line.size();
  }

  static size_t on_body(char* data, size_t size, size_t count, void* self_pointer) {
    auto* self = static_cast<Impl*>(self_pointer);
    const std::string_view bytes(data, size * count);
    curl_easy_getinfo(self->curl, CURLINFO_RESPONSE_CODE, &self->reply.status);
    if (self->reply.status != 200 && self->reply.status != 206) return bytes.size();
    self->refused = (*self->sink)(self->reply, bytes);
    return self->refused.ok() ? bytes.size() : 0;
  }

  static int on_progress(void* self_pointer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const auto* self = static_cast<Impl*>(self_pointer);
    return self->stop != nullptr && self->stop->load() ? 1 : 0;
  }

  Result<HttpReply> perform(const std::string& url) {
    if (curl == nullptr) return Status(Code::kInternal, "libcurl could not be started.");
    reply = HttpReply();
    refused = Status();
    unreachable = false;
    header_bytes = 0;
    error[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    const bool to_endpoint = origin(url) == origin(config.endpoint);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, to_endpoint ? authorization : nullptr);
    const CURLcode code = curl_easy_perform(curl);
    if (stop != nullptr && stop->load()) return Status(Code::kCancelled, "Stopped.");
    if (!refused.ok()) return refused;
    if (code != CURLE_OK) {
      const char* const why = error[0] != '\0' ? error : curl_easy_strerror(code);
      unreachable = found_nobody(code);
      if (!unreachable) return make_error(Code::kUnavailable, "{} did not answer fully: {}.", origin(url), why);
      return make_error(Code::kUnavailable,
                        "Cannot reach {}: {}. Check the network, HF_ENDPOINT, and https_proxy if there is a proxy.",
                        origin(url), why);
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
    return std::move(reply);
  }
};

HttpClient::HttpClient(const HubConfig& config, const std::atomic<bool>* stop) : impl_(std::make_unique<Impl>()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  impl_->config = config;
  impl_->stop = stop;
  CURL* curl = impl_->curl = curl_easy_init();
  if (curl == nullptr) return;
  if (!config.token.empty()) {
    impl_->authorization = curl_slist_append(nullptr, ("Authorization: Bearer " + config.token).c_str());
  }
  // A hub reached through TLS may not lead the program to an unprotected place.
  const char* protocols = config.endpoint.starts_with("https://") ? "https" : "http,https";
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kRedirectsMax);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(config.stall_timeout_s));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "deepinfer");
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, impl_->error);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Impl::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, impl_.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Impl::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, impl_.get());
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Impl::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, impl_.get());
  if (!config.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, config.ca_file.c_str());
}

HttpClient::~HttpClient() {
  if (impl_->curl != nullptr) curl_easy_cleanup(impl_->curl);
  curl_slist_free_all(impl_->authorization);
}

bool HttpClient::unreachable() const { return impl_->unreachable; }

Result<HttpReply> HttpClient::get(const std::string& url, ByteRange range, const Sink& sink) {
  curl_easy_setopt(impl_->curl, CURLOPT_NOBODY, 0L);
  curl_easy_setopt(impl_->curl, CURLOPT_HTTPGET, 1L);
  curl_easy_setopt(impl_->curl, CURLOPT_FOLLOWLOCATION, 1L);
  const std::string text = range.end > 0 ? fmt::format("{}-{}", range.begin, range.end - 1) : "";
  curl_easy_setopt(impl_->curl, CURLOPT_RANGE, range.end > 0 ? text.c_str() : nullptr);
  impl_->sink = &sink;
  return impl_->perform(url);
}

Result<HttpReply> HttpClient::head(const std::string& url) {
  curl_easy_setopt(impl_->curl, CURLOPT_NOBODY, 1L);
  curl_easy_setopt(impl_->curl, CURLOPT_RANGE, nullptr);
  curl_easy_setopt(impl_->curl, CURLOPT_FOLLOWLOCATION, 0L);
  std::string at = url;
  for (long hop = 0; hop <= kRedirectsMax; ++hop) {
    Result<HttpReply> reply = impl_->perform(at);
    if (!reply.ok() || reply->status < 300 || reply->status > 399) return reply;
    char* next = nullptr;
    curl_easy_getinfo(impl_->curl, CURLINFO_REDIRECT_URL, &next);
    if (next == nullptr || origin(next) != origin(url)) return reply;
    at = next;
  }
  return make_error(Code::kUnavailable, "{} redirects in a circle.", url);
}

}  // namespace deepinfer::checkpoint
