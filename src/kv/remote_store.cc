#include "kv/remote_store.h"

#include <charconv>

#include "kv/directory_store.h"
#include "kv/redis_store.h"

namespace deepinfer::kv {

Result<std::unique_ptr<RemoteStore>> open_remote_store(const std::string& url) {
  const auto bad = [&url](std::string_view what) {
    return make_error(Code::kInvalidArgument,
                      "The remote KV store \"{}\" {}; give kvstore://HOST:PORT,HOST:PORT, "
                      "redis://HOST:PORT[/PREFIX], redis+cluster://HOST:PORT[/PREFIX] or dir:/FOLDER.",
                      url, what);
  };
  if (url.starts_with("dir:")) {
    if (url.size() < 6 || url[4] != '/') return bad("names no absolute folder");
    return std::unique_ptr<RemoteStore>(std::make_unique<DirectoryStore>(url.substr(4)));
  }
  RedisOptions o;
  std::string_view rest = url;
  if (rest.starts_with("redis+cluster://")) {
    o.cluster = true;
    rest.remove_prefix(16);
  } else if (rest.starts_with("redis://")) {
    rest.remove_prefix(8);
  } else {
    return bad("is of no kind that there is");
  }
  const size_t slash = rest.find('/');
  const std::string_view address = rest.substr(0, slash);
  if (slash != std::string_view::npos && slash + 1 < rest.size()) o.prefix = rest.substr(slash + 1);
  const size_t colon = address.rfind(':');
  o.host = address.substr(0, colon);
  if (o.host.empty()) return bad("names no host");
  if (colon != std::string_view::npos) {
    const std::string_view port = address.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), o.port);
    if (error != std::errc() || end != port.data() + port.size() || o.port < 1 || o.port > 65535)
      return bad("has no port between 1 and 65535");
  }
  return std::unique_ptr<RemoteStore>(std::make_unique<RedisStore>(std::move(o)));
}

}  // namespace deepinfer::kv
