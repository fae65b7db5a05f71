#include "serve/router.h"

#include <algorithm>

namespace deepinfer::serve {

void Router::add(Route route) {
  routes_.push_back(std::make_unique<Route>(std::move(route)));
  Route* added = routes_.back().get();
  if (added->name.empty()) added->name = added->path;
  const size_t open = added->path.find('{');
  if (open == std::string::npos) {
    exact_[added->path].push_back(added);
    return;
  }
  const std::string prefix = added->path.substr(0, open), suffix = added->path.substr(added->path.find('}') + 1);
  auto at = std::ranges::find_if(patterns_, [&](const Pattern& p) { return p.prefix == prefix && p.suffix == suffix; });
  if (at == patterns_.end()) at = patterns_.insert(patterns_.end(), {prefix, suffix, {}});
  at->methods.push_back(added);
}

RouteMatch Router::pick(const std::vector<const Route*>& methods, std::string_view method) {
  if (method == "HEAD") method = "GET";
  RouteMatch match;
  for (const Route* r : methods) {
    if (r->method == method) return {r, {}, {}};
    match.allowed += match.allowed.empty() ? "" : ", ";
    match.allowed += r->method;
  }
  return match;
}

RouteMatch Router::find(std::string_view method, std::string_view path) const {
  if (const auto at = exact_.find(std::string(path)); at != exact_.end()) return pick(at->second, method);
  for (const Pattern& p : patterns_) {
    if (path.size() <= p.prefix.size() + p.suffix.size() || !path.starts_with(p.prefix) || !path.ends_with(p.suffix)) {
      continue;
    }
    const std::string_view argument =
        path.substr(p.prefix.size(), path.size() - p.prefix.size() - p.suffix.size());
    if (argument.find('/') != std::string_view::npos) continue;
    RouteMatch match = pick(p.methods, method);
    match.argument = argument;
    return match;
  }
  return {};
}

}  // namespace deepinfer::serve
