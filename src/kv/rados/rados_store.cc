#include "kv/rados/rados_store.h"

#include <rados/librados.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "kv/rados_entry.h"
#include "kv/stored_record.h"

namespace deepinfer::kv {
namespace {

constexpr const char* kAttribute = "deepinfer";

Status failed(std::string_view what, int error) {
  error = std::abs(error);
  const Code code = error == ENOENT                                             ? Code::kNotFound
                    : error == ETIMEDOUT                                        ? Code::kDeadlineExceeded
                    : error == ENOSPC || error == EDQUOT || error == EFBIG      ? Code::kResourceExhausted
                                                                                : Code::kUnavailable;
  return make_error(code, "RADOS, {}: {}", what, std::strerror(error));
}

std::optional<Trailer> read_attribute(rados_ioctx_t io, const std::string& name) {
  std::array<std::byte, kTrailerBytes> bytes;
  const int n = rados_getxattr(io, name.c_str(), kAttribute, reinterpret_cast<char*>(bytes.data()), bytes.size());
  return n == static_cast<int>(bytes.size()) ? read_trailer(bytes) : std::nullopt;
}

std::array<std::byte, kTrailerBytes> attribute(uint64_t space, uint32_t ttl_s) {
  std::array<std::byte, kTrailerBytes> bytes;
  write_trailer({.space = space, .expires_at = std::time(nullptr) + static_cast<int64_t>(ttl_s), .ttl_s = ttl_s},
                bytes);
  return bytes;
}

// Without authentication librados may send a command before it knows the cluster's id, and is refused.
constexpr std::string_view kTooEarly = "wrong fsid";
constexpr int kCommandTries = 20;
constexpr double kAdminTimeoutS = 60;

Status command(rados_t cluster, const std::string& json) {
  const char* words[] = {json.c_str()};
  for (int left = kCommandTries;; --left) {
    char* said = nullptr;
    size_t said_size = 0;
    const int error = rados_mon_command(cluster, words, 1, nullptr, 0, nullptr, nullptr, &said, &said_size);
    const std::string text(said == nullptr ? "" : said, said_size);
    rados_buffer_free(said);
    if (error == 0) return Status();
    if (left == 1 || error != -EPERM || text != kTooEarly) return failed(text.empty() ? json : text, error);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// What goes into commands as text.
bool is_plain(const std::string& text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
                              std::string::npos;
}

}  // namespace

// What librados reads and writes while a call is on its way.
struct RadosStore::Asked {
  RemoteCall* call = nullptr;
  std::string name;
  rados_completion_t done = nullptr;
  rados_read_op_t read = nullptr;
  rados_write_op_t write = nullptr;
  rados_xattrs_iter_t attributes = nullptr;
  size_t bytes = 0;
  uint64_t object_bytes = 0;
  time_t changed = 0;
  int stat_error = 0, attribute_error = 0, read_error = 0;

  ~Asked() {
    if (attributes != nullptr) rados_getxattrs_end(attributes);
    if (read != nullptr) rados_release_read_op(read);
    if (write != nullptr) rados_release_write_op(write);
    if (done != nullptr) rados_aio_release(done);
  }
};

struct RadosStore::Cluster {
  rados_t handle = nullptr;
  ~Cluster() {
    if (handle != nullptr) rados_shutdown(handle);
  }
};

Result<RadosOptions> RadosStore::parse(const std::string& url) {
  RadosOptions o;
  constexpr std::string_view kScheme = "rados://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : std::string();
  const size_t question = rest.find('?');
  o.pool = rest.substr(0, question);
  rest = question == std::string::npos ? "" : rest.substr(question + 1);
  const auto bad = [&url] {
    return make_error(Code::kInvalidArgument, "\"{}\" is no pool of Ceph; give rados://POOL[?config=PATH][&user=NAME].",
                      url);
  };
  if (!is_plain(o.pool)) return bad();
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string part = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    if (part.starts_with("config=")) o.config = part.substr(7);
    else if (part.starts_with("user=") && is_plain(part.substr(5))) o.user = part.substr(5);
    else return bad();
  }
  return o;
}

Result<std::shared_ptr<RadosStore::Cluster>> RadosStore::connect(const RadosOptions& options) {
  auto cluster = std::make_shared<Cluster>();
  int error = rados_create(&cluster->handle, options.user.c_str());
  if (error != 0) return failed("a client", error);
  error = rados_conf_read_file(cluster->handle, options.config.empty() ? nullptr : options.config.c_str());
  if (error != 0) return failed(options.config.empty() ? "no ceph.conf" : options.config, error);
  const std::string limit = fmt::format("{}", std::max(1, static_cast<int>(options.timeout_s + 0.5)));
  for (const char* name : {"rados_osd_op_timeout", "rados_mon_op_timeout", "client_mount_timeout"}) {
    error = rados_conf_set(cluster->handle, name, limit.c_str());
    if (error != 0) return failed(name, error);
  }
  error = rados_connect(cluster->handle);
  if (error != 0) return failed("the cluster cannot be reached", error == -ENOENT ? -EHOSTUNREACH : error);
  return cluster;
}

Result<std::unique_ptr<RadosStore>> RadosStore::open(const RadosOptions& options) {
  DI_ASSIGN_OR_RETURN(std::shared_ptr<Cluster> cluster, connect(options));
  rados_ioctx_t io = nullptr;
  const int error = rados_ioctx_create(cluster->handle, options.pool.c_str(), &io);
  if (error == -ENOENT) {
    return make_error(Code::kNotFound,
                      "The Ceph cluster has no pool {}; make it with deepinfer cache init-rados rados://{}.",
                      options.pool, options.pool);
  }
  if (error != 0) return failed(options.pool, error);
  return std::unique_ptr<RadosStore>(new RadosStore(options, std::move(cluster), io));
}

Status RadosStore::make_pool(const RadosOptions& options, const RadosPoolOptions& pool) {
  if (pool.k < 2 || pool.k > 64 || pool.m < 1 || pool.m > 16 || pool.groups < 1 || pool.groups > 65536 ||
      !is_plain(pool.failure_domain))
    return Status(Code::kInvalidArgument, "A pool has 2 to 64 data parts, 1 to 16 coding parts and 1 to 65536 groups.");
  RadosOptions patient = options;  // a monitor answers these once all of its peers have agreed
  patient.timeout_s = std::max(options.timeout_s, kAdminTimeoutS);
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<Cluster> cluster, connect(patient));
  const std::string profile = fmt::format("deepinfer-{}-{}-{}", pool.k, pool.m, pool.failure_domain);
  DI_RETURN_IF_ERROR(command(
      cluster->handle,
      fmt::format(
          R"({{"prefix":"osd erasure-code-profile set","name":"{}","profile":["k={}","m={}","crush-failure-domain={}"]}})",
          profile, pool.k, pool.m, pool.failure_domain)));
  DI_RETURN_IF_ERROR(
      command(cluster->handle,
              fmt::format(R"({{"prefix":"osd pool create","pool":"{}","pg_num":{},"pgp_num":{},"pool_type":"erasure",)"
                          R"("erasure_code_profile":"{}"}})",
                          options.pool, pool.groups, pool.groups, profile)));
  // A cache may serve from the last k parts; what is lost then is computed again.
  DI_RETURN_IF_ERROR(command(
      cluster->handle,
      fmt::format(R"({{"prefix":"osd pool set","pool":"{}","var":"min_size","val":"{}"}})", options.pool, pool.k)));
  return command(
      cluster->handle,
      fmt::format(R"({{"prefix":"osd pool application enable","pool":"{}","app":"deepinfer"}})", options.pool));
}

RadosStore::RadosStore(RadosOptions options, std::shared_ptr<Cluster> cluster, void* io)
    : options_(std::move(options)), cluster_(std::move(cluster)), io_(io) {}

RadosStore::~RadosStore() {
  for (const auto& [call, asked] : asked_) {
    if (asked->done != nullptr) (void)rados_aio_cancel(io_, asked->done);
  }
  for (const auto& [call, asked] : asked_) {
    if (asked->done != nullptr) (void)rados_aio_wait_for_complete_and_cb(asked->done);
  }
  asked_.clear();
  if (io_ != nullptr) rados_ioctx_destroy(io_);
}

std::unique_ptr<RemoteStore> RadosStore::clone() const {
  rados_ioctx_t io = nullptr;
  // Without a context every call fails, as it does when the pool is gone.
  if (rados_ioctx_create(cluster_->handle, options_.pool.c_str(), &io) != 0) io = nullptr;
  return std::unique_ptr<RemoteStore>(new RadosStore(options_, cluster_, io));
}

// ---- calls ----------------------------------------------------------------------------------------------------------

void RadosStore::begin(RemoteCall& call) {
  auto asked = std::make_unique<Asked>();
  asked->call = &call;
  asked->name = call.key.hex();
  const int error = io_ == nullptr ? -ENODEV : ask(*asked);
  if (error == 0) {
    asked_[&call] = std::move(asked);
    return;
  }
  call.status = failed(asked->name, error);
  if (call.ready) call.ready();
}

// Gives the call to librados.
int RadosStore::ask(Asked& a) {
  RemoteCall& call = *a.call;
  const auto ready = [](rados_completion_t, void* of) {
    if (const RemoteCall& c = *static_cast<RemoteCall*>(of); c.ready) c.ready();
  };
  if (const int error = rados_aio_create_completion2(&call, ready, &a.done); error != 0) return error;
  switch (call.kind) {
    case RemoteCall::Kind::kGet:
      a.read = rados_create_read_op();
      rados_read_op_stat(a.read, &a.object_bytes, &a.changed, &a.stat_error);
      rados_read_op_getxattrs(a.read, &a.attributes, &a.attribute_error);
      rados_read_op_read(a.read, 0, call.into.size(), reinterpret_cast<char*>(call.into.data()), &a.bytes,
                         &a.read_error);
      return rados_aio_read_op_operate(a.read, io_, a.done, a.name.c_str(), 0);
    case RemoteCall::Kind::kPut: {
      const auto fresh = attribute(call.info.space, static_cast<uint32_t>(std::clamp(call.info.ttl_s, 1.0, 4e9)));
      a.write = rados_create_write_op();
      rados_write_op_write_full(a.write, reinterpret_cast<const char*>(call.record.data()), call.record.size());
      rados_write_op_setxattr(a.write, kAttribute, reinterpret_cast<const char*>(fresh.data()), fresh.size());
      return rados_aio_write_op_operate(a.write, io_, a.done, a.name.c_str(), nullptr, 0);
    }
    case RemoteCall::Kind::kErase: return rados_aio_remove(io_, a.name.c_str(), a.done);
  }
  return -EINVAL;
}

void RadosStore::end(RemoteCall& call) {
  const auto at = asked_.find(&call);
  if (at == asked_.end()) return;  // it ended when it began
  const std::unique_ptr<Asked> a = std::move(at->second);
  asked_.erase(at);
  (void)rados_aio_wait_for_complete_and_cb(a->done);
  const int error = rados_aio_get_return_value(a->done);
  call.bytes = 0;
  if (call.kind == RemoteCall::Kind::kGet) {
    const Result<size_t> bytes = found(*a, error, &call.info);
    call.status = bytes.status();
    if (bytes.ok()) call.bytes = bytes.value();
  } else {
    const bool gone = call.kind == RemoteCall::Kind::kErase && error == -ENOENT;
    call.status = error >= 0 || gone ? Status() : failed(a->name, error);
  }
}

Result<size_t> RadosStore::found(const Asked& a, int error, PutInfo* info) {
  if (error < 0) return failed(a.name, error);
  if (a.attribute_error != 0 || a.read_error != 0)
    return failed(a.name, a.attribute_error != 0 ? a.attribute_error : a.read_error);
  std::optional<Trailer> t;
  const char *attribute_name = nullptr, *value = nullptr;
  size_t size = 0;
  while (rados_getxattrs_next(a.attributes, &attribute_name, &value, &size) == 0 && attribute_name != nullptr) {
    if (std::string_view(attribute_name) == kAttribute && size == kTrailerBytes)
      t = read_trailer(std::as_bytes(std::span(value, size)));
  }
  const int64_t now = std::time(nullptr);
  if (!t || t->expires_at <= now) {
    (void)rados_remove(io_, a.name.c_str());
    return Status(Code::kNotFound, "the record has passed its time");
  }
  if (a.object_bytes > a.call->into.size())
    return Status(Code::kResourceExhausted, "the record is larger than the buffer");
  *info = {.space = t->space, .ttl_s = static_cast<double>(t->ttl_s)};
  if (t->expires_at - now < t->ttl_s / 2) {
    const auto fresh = attribute(t->space, t->ttl_s);
    (void)rados_setxattr(io_, a.name.c_str(), kAttribute, reinterpret_cast<const char*>(fresh.data()), fresh.size());
  }
  return a.bytes;
}

Result<size_t> RadosStore::get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) {
  RemoteCall call{.kind = RemoteCall::Kind::kGet, .key = key, .into = into};
  begin(call);
  end(call);
  DI_RETURN_IF_ERROR(call.status);
  *info = call.info;
  return call.bytes;
}

Status RadosStore::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  RemoteCall call{.kind = RemoteCall::Kind::kPut, .key = key, .record = record, .info = info};
  begin(call);
  end(call);
  return call.status;
}

Status RadosStore::erase(const BlockKey& key) {
  RemoteCall call{.kind = RemoteCall::Kind::kErase, .key = key};
  begin(call);
  end(call);
  return call.status;
}

Status RadosStore::ping() {
  if (io_ == nullptr) return failed(options_.pool, ENODEV);
  // Of the monitors: a pool that has lost too many parts is there, only that its blocks are misses.
  return command(cluster_->handle,
                 fmt::format(R"({{"prefix":"osd pool get","pool":"{}","var":"size"}})", options_.pool));
}

Result<int64_t> RadosStore::remove_if(bool expired, uint64_t space) {
  if (io_ == nullptr) return failed(options_.pool, ENODEV);
  rados_list_ctx_t list = nullptr;
  if (const int error = rados_nobjects_list_open(io_, &list); error != 0) return failed(options_.pool, error);
  const int64_t now = std::time(nullptr);
  int64_t removed = 0;
  int error = 0;
  const char* entry = nullptr;
  while ((error = rados_nobjects_list_next(list, &entry, nullptr, nullptr)) == 0) {
    const std::string name = entry;
    const std::optional<Trailer> t = read_attribute(io_, name);
    if (!t) continue;  // not ours
    if (expired ? t->expires_at > now : space != 0 && t->space != space) continue;
    removed += rados_remove(io_, name.c_str()) == 0;
  }
  rados_nobjects_list_close(list);
  if (error != -ENOENT) return failed(options_.pool, error);
  return removed;
}

Status RadosStore::purge(uint64_t space) { return remove_if(false, space).status(); }
Result<int64_t> RadosStore::sweep() { return remove_if(true, 0); }

}  // namespace deepinfer::kv

extern "C" {
extern const deepinfer::kv::RadosEntry deepinfer_rados_entry_2;
const deepinfer::kv::RadosEntry deepinfer_rados_entry_2 = {
    .open = [](const std::string& url) -> deepinfer::Result<std::unique_ptr<deepinfer::kv::RemoteStore>> {
      DI_ASSIGN_OR_RETURN(const deepinfer::kv::RadosOptions options, deepinfer::kv::RadosStore::parse(url));
      DI_ASSIGN_OR_RETURN(std::unique_ptr<deepinfer::kv::RadosStore> store, deepinfer::kv::RadosStore::open(options));
      return std::unique_ptr<deepinfer::kv::RemoteStore>(std::move(store));
    },
    .make_pool = [](const std::string& url, const deepinfer::kv::RadosPoolOptions& pool) -> deepinfer::Status {
      DI_ASSIGN_OR_RETURN(const deepinfer::kv::RadosOptions options, deepinfer::kv::RadosStore::parse(url));
      return deepinfer::kv::RadosStore::make_pool(options, pool);
    }};
}
