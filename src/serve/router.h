// The table of routes.
//
//   Router router;
//   router.add({.method = "GET", .path = "/v1/models", .handler = list_models});
//   router.add({.method = "GET", .path = "/v1/responses/{id}", .handler = get_response});
//   RouteMatch match = router.find("GET", "/v1/models");       // match.route, or match.allowed for 405, else 404
//
// One {name} stands for one non-empty path segment and may be the last but one segment. HEAD is answered by GET's
// route. Built once at the start, then read from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/exchange.h"

namespace deepinfer::serve {

enum class Access : uint8_t {
  kOpen,  // health, the page
  kKey,   // an API key, where the service has any
};

struct Route {
  std::string_view method;
  std::string path;
  recipe::Protocol protocol = recipe::Protocol::kChat;
  Access access = Access::kKey;
  std::function<void(const std::shared_ptr<Exchange>&)> handler;
  std::string_view name;  // in metrics; the path if empty
};

struct RouteMatch {
  const Route* route = nullptr;
  std::string_view argument;
  std::string allowed;  // methods that the path has, if not this one
};

class Router {
 public:
  void add(Route route);
  RouteMatch find(std::string_view method, std::string_view path) const;
  const std::vector<std::unique_ptr<Route>>& routes() const { return routes_; }

 private:
  struct Pattern {
    std::string prefix, suffix;  // around {name}
    std::vector<const Route*> methods;
  };
  static RouteMatch pick(const std::vector<const Route*>& methods, std::string_view method);

  std::vector<std::unique_ptr<Route>> routes_;
  std::unordered_map<std::string, std::vector<const Route*>> exact_;
  std::vector<Pattern> patterns_;
};

}  // namespace deepinfer::serve
