// How kv/remote_store.cc reaches the store on Ceph RADOS, which is a shared object of its own (internal to kv/). Both
// are built together, by one compiler; the symbol's number changes with this and with kv/remote_store.h, so that one
// that was left behind by an older program is refused.
#pragma once

#include <memory>
#include <string>

#include "kv/remote_store.h"

namespace deepinfer::kv {

inline constexpr const char* kRadosLibrary = "libdeepinfer_rados.so";
inline constexpr const char* kRadosSymbol = "deepinfer_rados_entry_2";

struct RadosEntry {
  Result<std::unique_ptr<RemoteStore>> (*open)(const std::string& url);
  Status (*make_pool)(const std::string& url, const RadosPoolOptions& pool);
};

}  // namespace deepinfer::kv
