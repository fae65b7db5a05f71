#include "kv/remote_store.h"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>

#include "kv/directory_store.h"
#include "kv/rados_entry.h"
#include "kv/redis_store.h"

namespace deepinfer::kv {

namespace {

// The entry of the shared object with the Ceph store, or why there is none.
Result<const RadosEntry*> rados_entry() {
  static const Result<const RadosEntry*> entry = []() -> Result<const RadosEntry*> {
    std::error_code ignored;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    std::string why;
    for (const std::filesystem::path& dir : {program, program.parent_path() / "lib", std::filesystem::path()}) {
      void* library = ::dlopen((dir / kRadosLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        if (const char* text = ::dlerror(); text != nullptr) why = text;
        continue;
      }
      if (const auto* e = static_cast<const RadosEntry*>(::dlsym(library, kRadosSymbol)); e != nullptr) return e;
      why = "it is of another version";
    }
    return make_error(
        Code::kUnsupported,
        "The store on Ceph is not there ({}): install librados-dev and build again, or librados2 where {} "
        "is beside the program.",
        why, kRadosLibrary);
  }();
  return entry;
}

Result<std::unique_ptr<RemoteStore>> open_rados(const std::string& url) {
  DI_ASSIGN_OR_RETURN(const RadosEntry* entry, rados_entry());
  return entry->open(url);
}

}  // namespace

Status make_rados_pool(const std::string& url, const RadosPoolOptions& pool) {
  DI_ASSIGN_OR_RETURN(const RadosEntry* entry, rados_entry());
  return entry->make_pool(url, pool);
}

Result<std::unique_ptr<RemoteStore>> open_remote_store(const std::string& url) {
  const auto bad = [&url](std::string_view what) {
    return make_error(Code::kInvalidArgument,
                      "The remote KV store \"{}\" {}; give kvstore://HOST:PORT,HOST:PORT, "
                      "redis://HOST:PORT[/PREFIX], redis+cluster://HOST:PORT[/PREFIX], rados://POOL or dir:/FOLDER.",
                      url, what);
  };
  if (url.starts_with("dir:")) {
    if (url.size() < 6 || url[4] != '/') return bad("names no absolute folder");
    return std::unique_ptr<RemoteStore>(std::make_unique<DirectoryStore>(url.substr(4)));
  }
  if (url.starts_with("rados:")) return open_rados(url);
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
