// The listening side of the service: sockets, threads, drain.
//
//   DI_ASSIGN_OR_RETURN(auto server, Server::start(config, router, hooks));
//   server->addresses();                       // {"http://127.0.0.1:8000"}
//   server->drain(30);                         // no new requests; waits for those in work
//   server->stop();  service->stop();          // first the I/O threads, then what answers to them
//
// The router and everything its handlers use must outlive the server. Errors: kInvalidArgument for an address or a TLS
// file that cannot be used, kUnavailable if the address is taken.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/config.h"
#include "serve/exchange.h"
#include "serve/router.h"

namespace deepinfer::serve {

struct Finished;

struct ServerHooks {
  // Sees a request's headers. True: go on; false: it has responded.
  std::function<bool(const std::shared_ptr<Exchange>&, const Route&)> admit;
  std::function<void(const Finished&)> finished;
  std::function<void(std::string_view limit)> on_limit;  // a limit of ServeLimits was reached
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(const ServeConfig& config, const Router& router, ServerHooks hooks);
  ~Server();  // as stop()

  // URLs in the order of config.listen, with the ports that were given; unix:PATH for sockets.
  const std::vector<std::string>& addresses() const;
  int connections() const;
  // Stops listening; connections end when their response has. True if all did within the time.
  bool drain(double timeout_s);
  bool draining() const;
  // Ends all connections and joins the threads. Until the destructor others may still post to the loops, to no effect.
  void stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Splits HOST:PORT or [V6]:PORT; kInvalidArgument says what is wrong.
struct Address {
  std::string host;
  int port = 0;
  std::string unix_path;  // of unix:PATH, then host is empty
  bool loopback = false;  // reachable from this machine only
};
Result<Address> parse_address(const std::string& text);

}  // namespace deepinfer::serve
