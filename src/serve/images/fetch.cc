#include "serve/images/fetch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <mutex>
#include <string_view>

#include <curl/curl.h>
#include <fmt/format.h>

#include "serve/images/address.h"

namespace deepinfer::serve {
namespace {

constexpr long kConnectTimeoutMs = 5000;
constexpr size_t kHeadBytesMax = 64 << 10;

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool is_allowed(const FetchRules& rules, const std::string& host, const std::string& port) {
  return std::ranges::any_of(rules.allow_hosts, [&](const std::string& allowed) {
    return same_word(allowed, host) || same_word(allowed, host + ":" + port);
  });
}

ImageError bad_url(std::string message) { return {.code = image_code::kBadUrl, .message = std::move(message)}; }

// One request and its reply.
struct Transfer {
  bool any_address = false;  // of an allowed host
  const FetchLimits* limits = nullptr;
  const std::function<bool()>* stop = nullptr;
  CURL* curl = nullptr;
  std::string* body = nullptr;
  size_t head_bytes = 0;
  bool forbidden = false, too_large = false, stopped = false, no_memory = false;

  long status() const {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
};

curl_socket_t on_open(void* data, curlsocktype, curl_sockaddr* address) {
  auto* t = static_cast<Transfer*>(data);
  if (!t->any_address && !is_public_address(address->addr)) {
    t->forbidden = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

size_t on_head(char*, size_t size, size_t count, void* data) {
  auto* t = static_cast<Transfer*>(data);
  t->head_bytes += size * count;
  return t->head_bytes > kHeadBytesMax ? 0 : size * count;
}

size_t on_body(char* bytes, size_t size, size_t count, void* data) {
  auto* t = static_cast<Transfer*>(data);
  if (t->status() != 200) return 0;  // only its status matters
  if (t->body->size() + size * count > t->limits->bytes_max) {
    t->too_large = true;
    return 0;
  }
  t->no_memory = t->limits->reserve && !t->limits->reserve(size * count);
  if (t->no_memory) return 0;
  t->body->append(bytes, size * count);
  return size * count;
}

int on_progress(void* data, curl_off_t expected, curl_off_t, curl_off_t, curl_off_t) {
  auto* t = static_cast<Transfer*>(data);
  t->stopped = (*t->stop)();
  t->too_large =
      t->too_large || (expected > 0 && static_cast<uint64_t>(expected) > t->limits->bytes_max && t->status() == 200);
  return t->stopped || t->too_large;
}

void set_options(Transfer* t, CURLU* url, long timeout_ms) {
  CURL* c = t->curl;
  curl_easy_setopt(c, CURLOPT_CURLU, url);
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(c, CURLOPT_PROXY, "");
  curl_easy_setopt(c, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(c, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(c, CURLOPT_HTTP09_ALLOWED, 0L);
  curl_easy_setopt(c, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
  curl_easy_setopt(c, CURLOPT_USERAGENT, "deepinfer");
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L);  // a resolver that hangs is left behind
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, timeout_ms);
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, std::min(timeout_ms, kConnectTimeoutMs));
  curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, &on_open);
  curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, t);
  curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, &on_head);
  curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &on_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, &on_progress);
  curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
}

std::optional<ImageError> check_url(CURLU* url, const FetchRules& rules, bool* any_address) {
  const std::string scheme = part_of(url, CURLUPART_SCHEME), host = part_of(url, CURLUPART_HOST);
  const std::string port = part_of(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  if (scheme != "http" && scheme != "https") return bad_url("Images are fetched from http and https URLs only.");
  if (!part_of(url, CURLUPART_USER).empty() || !part_of(url, CURLUPART_PASSWORD).empty()) {
    return bad_url("The image's URL must not hold a user name or password.");
  }
  *any_address = is_allowed(rules, host, port);
  if (!*any_address && port != "80" && port != "443") {
    return bad_url(
        fmt::format("The image's URL has the port {}; images are fetched from ports 80 and 443 only.", port));
  }
  return std::nullopt;
}

ImageError fetch_failed(bool retry, std::string message) {
  return {.code = image_code::kFetchFailed, .message = std::move(message), .retry = retry};
}

std::optional<ImageError> transfer_error(const Transfer& t, CURLcode code) {
  const long status = t.status();
  if (t.forbidden && code != CURLE_OK) {
    return bad_url("The image's URL leads to an address that is not on the public internet; such are not fetched.");
  }
  if (t.too_large) {
    return ImageError{.code = image_code::kTooManyBytes,
                      .message = fmt::format("The image at the URL has more bytes than may be fetched for it, {} "
                                             "(image_bytes_max, images_fetched_bytes_max).",
                                             t.limits->bytes_max),
                      .limit = "image_bytes_max"};
  }
  if (t.no_memory) {
    return ImageError{.code = image_code::kOverloaded,
                      .message = "Other images take all of image_memory_max. Try again later.",
                      .retry = true,
                      .limit = "image_memory_max"};
  }
  if (t.stopped)
    return fetch_failed(true, "The service ended, or gave up on the request, while the image was fetched.");
  if (t.head_bytes > kHeadBytesMax)
    return fetch_failed(false, fmt::format("The image's server sent more than {} bytes of headers.", kHeadBytesMax));
  if (status == 404 || status == 410) {
    return ImageError{.code = image_code::kNotFound,
                      .message = fmt::format("There is no image at the URL: its server answered {}.", status)};
  }
  if (status != 0 && status != 200) {
    return fetch_failed(status == 429 || status >= 500,
                        fmt::format("The image's server answered with status {}.", status));
  }
  switch (code) {
    case CURLE_OK: return std::nullopt;
    case CURLE_OPERATION_TIMEDOUT: {
      ImageError error = fetch_failed(true, "The image's server did not send it in time (image_timeout_s).");
      error.limit = "image_timeout_s";
      return error;
    }
    case CURLE_COULDNT_RESOLVE_HOST: return fetch_failed(false, "The host of the image's URL has no address.");
    case CURLE_COULDNT_CONNECT: return fetch_failed(false, "The image's server cannot be reached.");
    case CURLE_PARTIAL_FILE: return fetch_failed(true, "The image's server ended before the image did.");
    default: return fetch_failed(false, fmt::format("The image cannot be fetched: {}.", curl_easy_strerror(code)));
  }
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// One request; *next is where it leads on, or empty.
std::optional<ImageError> fetch_once(const std::string& text, const FetchRules& rules, const FetchLimits& limits,
                                     const std::function<bool()>& stop, std::string* out, std::string* next) {
  const Url url(curl_url(), &curl_url_cleanup);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), &curl_easy_cleanup);
  if (!url || !curl)
    return ImageError{.code = image_code::kOverloaded,
                      .message = "There is not enough memory to fetch the image now.",
                      .retry = true};
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
    return bad_url("The image's URL is malformed.");
  Transfer t;
  t.limits = &limits;
  t.stop = &stop;
  t.curl = curl.get();
  t.body = out;
  if (auto error = check_url(url.get(), rules, &t.any_address)) return error;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(limits.deadline - std::chrono::steady_clock::now()).count();
  if (left <= 0) return transfer_error(t, CURLE_OPERATION_TIMEDOUT);
  set_options(&t, url.get(), static_cast<long>(left));
  out->clear();
  const CURLcode code = curl_easy_perform(curl.get());
  if (is_redirect(t.status()) && !t.stopped && t.head_bytes <= kHeadBytesMax) {
    char* place = nullptr;
    curl_easy_getinfo(curl.get(), CURLINFO_REDIRECT_URL, &place);
    if (place == nullptr) return fetch_failed(false, "The image's server sent a redirect without a place to go to.");
    *next = place;
    return std::nullopt;
  }
  return transfer_error(t, code);
}

}  // namespace

std::optional<ImageError> fetch_image(const std::string& url, const FetchRules& rules, const FetchLimits& limits,
                                      const std::function<bool()>& stop, std::string* out) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  std::string at = url;
  for (int redirects = 0; redirects <= rules.redirects_max; ++redirects) {
    std::string next;
    if (auto error = fetch_once(at, rules, limits, stop, out, &next)) return error;
    if (next.empty()) return std::nullopt;
    at = std::move(next);
  }
  return bad_url(fmt::format("The image's URL is redirected more than {} times.", rules.redirects_max));
}

}  // namespace deepinfer::serve
