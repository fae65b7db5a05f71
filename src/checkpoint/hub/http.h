// HTTP requests to a hub, on libcurl: one connection that is kept open between requests, redirects followed, the token
// left behind when a redirect leads to another host.
//
//   HttpClient http(config, &stop);
//   DI_ASSIGN_OR_RETURN(HttpReply reply, http.get(url, {.begin = 0, .end = 100}, [&](std::string_view bytes) { ... }));
//
// A reply of any status is a reply; a Status is returned when none came (kUnavailable), when the sink refused (its
// Status), or after *stop (kCancelled). Not for several threads at once.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/hub.h"

namespace deepinfer::checkpoint {

struct HttpReply {
  long status = 0;
  std::map<std::string, std::string> headers;  // of the last reply; names in lower case

  std::string header(const std::string& lower_case_name) const;
};

struct ByteRange {
  uint64_t begin = 0, end = 0;  // [begin, end); end 0: the whole body
};

class HttpClient {
 public:
  // Sees the reply's head before the body's first bytes; called for replies 200 and 206 only.
  using Sink = std::function<Status(const HttpReply& head, std::string_view bytes)>;

  HttpClient(const HubConfig& config, const std::atomic<bool>* stop);
  ~HttpClient();

  Result<HttpReply> get(const std::string& url, ByteRange range, const Sink& sink);
  // The reply of the endpoint itself: redirects are followed only while they stay on its host.
  Result<HttpReply> head(const std::string& url);
  // Whether the last request found nobody to talk to (no such host, connection refused, no trust in the certificate):
  // asking again soon hardly helps.
  bool unreachable() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Percent-encodes what may not stand in a URL path; '/' is kept if keep_slash.
std::string url_encode(std::string_view text, bool keep_slash);

}  // namespace deepinfer::checkpoint
