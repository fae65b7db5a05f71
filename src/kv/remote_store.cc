#include "kv/remote_store.h"

#include <dlfcn.h>

#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <mutex>

#include "base/file.h"
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

constexpr size_t kPasswordBytesMax = 4096;

Result<std::string> read_password(const std::string& path) {
  DI_ASSIGN_OR_RETURN(std::string text, read_file(path, kPasswordBytesMax));
  struct stat st = {};
  if (::stat(path.c_str(), &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return make_error(Code::kInvalidArgument, "{} can be read by others; chmod 600 {}.", path, path);
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (text.empty()) return make_error(Code::kInvalidArgument, "{} has no password.", path);
  return text;
}

// What stands behind the '?' of a Redis store; false: it is not understood.
Result<bool> read_redis_query(std::string_view query, RedisOptions* o) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.starts_with("user=") && part.size() > 5) {
      o->user = part.substr(5);
    } else if (part.starts_with("password_file=")) {
      DI_ASSIGN_OR_RETURN(o->password, read_password(std::string(part.substr(14))));
    } else {
      return false;
    }
  }
  return o->user.empty() || !o->password.empty();
}

// ---- a store that comes later ---------------------------------------------------------------------------------------

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class LateStore : public RemoteStore {
 public:
  struct Shared {
    OpenStore open;
    std::string name;
    int threads = 0;
    double retry_s = 0;
    std::mutex mutex;
    double next_try = 0;
    Status why{Code::kUnavailable, "the store is away"};
    std::unique_ptr<RemoteStore> first;
    std::atomic<bool> opened = false;
  };
  explicit LateStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::string_view name() const override { return shared_->name; }
  int threads() const override { return shared_->threads; }
  int depth() const override { return own_ ? own_->depth() : 1; }
  bool in_any_order() const override { return own_ && own_->in_any_order(); }
  void begin(RemoteCall& call) override {
    if (own_) return own_->begin(call);
    run_here_ = &call;
    run(call);
  }
  void end(RemoteCall& call) override {
    if (run_here_ == &call) run_here_ = nullptr;
    else own_->end(call);
  }
  Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->get(key, into, info);
  }
  Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->put(key, record, info);
  }
  Status erase(const BlockKey& key) override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->erase(key);
  }
  Status purge(uint64_t space) override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->purge(space);
  }
  Result<int64_t> sweep() override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->sweep();
  }
  Status ping() override {
    DI_ASSIGN_OR_RETURN(RemoteStore * s, store());
    return s->ping();
  }
  std::unique_ptr<RemoteStore> clone() const override { return std::make_unique<LateStore>(shared_); }

 private:
  // This thread's own, once there is one; who finds another thread trying to open the store does not wait for it.
  Result<RemoteStore*> store() {
    if (own_) return own_.get();
    std::unique_lock<std::mutex> lock(shared_->mutex, std::defer_lock);
    if (shared_->opened) lock.lock();
    else if (!lock.try_lock()) return Status(Code::kUnavailable, "the store is away");
    if (!shared_->first) {
      if (now() < shared_->next_try) return shared_->why;
      Result<std::unique_ptr<RemoteStore>> opened = shared_->open();
      shared_->next_try = now() + shared_->retry_s;
      if (!opened.ok()) return shared_->why = Status(Code::kUnavailable, opened.status().message());
      shared_->first = std::move(opened.value());
      shared_->opened = true;
    }
    own_ = shared_->first->clone();
    return own_.get();
  }

  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<RemoteStore> own_;
  const RemoteCall* run_here_ = nullptr;  // began before the store was there
};

}  // namespace

void RemoteStore::run(RemoteCall& call) {
  call.bytes = 0;
  switch (call.kind) {
    case RemoteCall::Kind::kGet: {
      const Result<size_t> bytes = get(call.key, call.into, &call.info);
      call.status = bytes.status();
      if (bytes.ok()) call.bytes = bytes.value();
      break;
    }
    case RemoteCall::Kind::kPut: call.status = put(call.key, call.record, call.info); break;
    case RemoteCall::Kind::kErase: call.status = erase(call.key); break;
  }
}

std::unique_ptr<RemoteStore> make_late_store(OpenStore open, std::string name, int threads, double retry_s) {
  auto shared = std::make_shared<LateStore::Shared>();
  shared->open = std::move(open);
  shared->name = std::move(name);
  shared->threads = threads;
  shared->retry_s = retry_s;
  return std::make_unique<LateStore>(std::move(shared));
}

Status make_rados_pool(const std::string& url, const RadosPoolOptions& pool) {
  DI_ASSIGN_OR_RETURN(const RadosEntry* entry, rados_entry());
  return entry->make_pool(url, pool);
}

Result<std::unique_ptr<RemoteStore>> open_remote_store(const std::string& url) {
  const auto bad = [&url](std::string_view what) {
    return make_error(Code::kInvalidArgument,
                      "The remote KV store \"{}\" {}; give kvstore://HOST:PORT,HOST:PORT, "
                      "redis://HOST:PORT[/PREFIX][?user=NAME&password_file=PATH], redis+cluster://HOST:PORT and the "
                      "same behind it, rados://POOL or dir:/FOLDER.",
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
  const size_t question = rest.find('?');
  if (question != std::string_view::npos) {
    DI_ASSIGN_OR_RETURN(const bool known, read_redis_query(rest.substr(question + 1), &o));
    if (!known) return bad("says more than user= and password_file= behind its '?'");
    rest = rest.substr(0, question);
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
