// What a connection needs of the service around it (internal to serve/).
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "serve/config.h"
#include "serve/exchange.h"
#include "serve/router.h"

namespace deepinfer::serve {

// A response is over; for the access log and the metrics.
struct Finished {
  const Exchange& exchange;
  const Route* route;  // null: no such route
  int status;
  size_t body_bytes;
  double seconds;
  bool complete;  // sent to its end
  std::string_view peer;
};

struct Host {
  const ServeConfig* config = nullptr;
  const Router* router = nullptr;
  // Called with the headers only. True: go on; false: it has responded.
  std::function<bool(const std::shared_ptr<Exchange>&, const Route&)> admit;
  std::function<void(const Finished&)> finished;
  std::function<void(std::string_view limit)> on_limit;
  std::function<std::string()> next_request_id;

  void limit_hit(std::string_view limit) const {
    if (on_limit) on_limit(limit);
  }

  std::atomic<int> connections{0};
  std::atomic<size_t> body_bytes{0};  // of requests that are being read
  std::atomic<bool> draining{false};
};

}  // namespace deepinfer::serve
