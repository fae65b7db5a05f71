// The door of the service: who may come in, what each response is told and charged, and what is written down of it.
//
//   Gate gate(service);
//   server hooks: gate.admit(exchange, route), gate.finished(finished)
//
// Without a keys file everybody who can reach the service may use it: it listens on this machine only, and pages of
// other sites are kept out (their requests carry a foreign Origin or Host). With keys, routes with Access::kKey need
// one in Authorization: Bearer or x-api-key. Seam for tenancy: replace KeyRing by accounts; the rest only sees KeyUse.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "observe/line_log.h"
#include "serve/exchange.h"
#include "serve/keys.h"
#include "serve/router.h"

namespace deepinfer::serve {

struct Finished;
struct ServeConfig;
class ServiceMetrics;

class Gate {
 public:
  static Result<std::unique_ptr<Gate>> create(const ServeConfig& config, ServiceMetrics& metrics);

  bool admit(const std::shared_ptr<Exchange>& x, const Route& route);
  void finished(const Finished& f);
  // Keys and their limits from the file again, and the log's file for log rotation.
  Status reload();
  bool has_keys() const { return keys_ != nullptr; }
  uint64_t lines_dropped() const { return log_ ? log_->dropped() : 0; }

 private:
  Gate(const ServeConfig& config, ServiceMetrics& metrics) : config_(config), metrics_(metrics) {}
  bool admit_key(Exchange& x, const Route& route);
  bool admit_open(Exchange& x);
  void write_line(const Finished& f);

  const ServeConfig& config_;
  ServiceMetrics& metrics_;
  std::unique_ptr<KeyRing> keys_;
  std::unique_ptr<observe::LineLog> log_;
};

// A W3C trace context that is well formed: 00-32 hexadecimal digits-16-2, ids not all zero.
bool is_traceparent(std::string_view text);

}  // namespace deepinfer::serve
