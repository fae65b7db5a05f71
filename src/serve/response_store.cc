#include "serve/response_store.h"

#include <algorithm>

namespace deepinfer::serve {
namespace {

constexpr size_t kPendingBytesMax = size_t{64} << 20;

size_t bytes_of(const std::vector<recipe::Json>& items) {
  size_t bytes = 0;
  for (const recipe::Json& item : items) bytes += 2 * recipe::to_compact_json(item).size() + sizeof(recipe::Json);
  return bytes;
}

}  // namespace

ResponseStore::ResponseStore(Options options, std::unique_ptr<ResponseArchive> archive)
    : options_(options), archive_(std::move(archive)) {
  if (archive_) writer_ = std::thread([this] { write(); });
}

ResponseStore::~ResponseStore() { stop(); }

void ResponseStore::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

ResponseStore::Entries::const_iterator ResponseStore::at(std::string_view id, std::string_view owner,
                                                         int64_t now) const {
  const auto it = entries_.find(std::string(id));
  if (it == entries_.end()) return it;
  const StoredResponse& r = it->second.response;
  return r.owner != owner || now - r.created > options_.age_max_s ? entries_.end() : it;
}

void ResponseStore::recount(Entry& e) {
  bytes_ -= e.bytes;
  const auto& turn = e.turn ? e.turn : e.parent;
  e.bytes = sizeof(Entry) + e.response.body.size() + bytes_of(e.response.input_items) + (turn ? turn->bytes : 0);
  bytes_ += e.bytes;
}

void ResponseStore::erase(Entries::iterator it) {
  bytes_ -= it->second.bytes;
  order_.erase(it->second.place);
  entries_.erase(it);
}

// Running ones stay, and those that are still to be written.
void ResponseStore::shrink(int64_t now) {
  for (auto place = order_.begin(); place != order_.end();) {
    const auto it = entries_.find(*place++);
    const bool old = now - it->second.response.created > options_.age_max_s;
    if (!old && bytes_ <= options_.bytes_max) return;
    if (!it->second.response.running && !it->second.pending) erase(it);
  }
}

void ResponseStore::add(StoredResponse response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = response.created;
  const std::string id = response.id;
  Entry e;
  if (const auto parent = at(response.previous, response.owner, now); parent != entries_.end())
    e.parent = parent->second.turn;
  e.response = std::move(response);
  e.place = order_.insert(order_.end(), id);
  recount(entries_.insert_or_assign(id, std::move(e)).first->second);
  shrink(now);
}

void ResponseStore::finish(std::string_view id, std::string body, std::vector<recipe::Json> output_items, int64_t now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(std::string(id));
  if (it == entries_.end()) return;
  Entry& e = it->second;
  auto turn = std::make_shared<Turn>();
  turn->previous = e.parent;
  if (!e.parent) turn->before = e.response.previous;
  turn->items = e.response.input_items;
  turn->items.insert(turn->items.end(), output_items.begin(), output_items.end());
  turn->bytes = bytes_of(turn->items) + (e.parent ? e.parent->bytes : 0);
  e.turn = std::move(turn);
  e.response.body = std::move(body);
  e.response.running = false;
  e.response.cancel = nullptr;
  recount(e);
  if (archive_) save_later(e, std::move(output_items), now);
  shrink(now);
}

void ResponseStore::save_later(Entry& e, std::vector<recipe::Json> output_items, int64_t now) {
  const StoredResponse& r = e.response;
  const size_t bytes = e.bytes;
  if (ending_ || pending_bytes_ + bytes > kPendingBytesMax) {
    ++unsaved_;
    return;
  }
  e.pending = std::make_shared<Pending>();
  e.pending->response = {.id = r.id,
                         .owner = r.owner,
                         .previous = r.previous,
                         .body = r.body,
                         .input_items = r.input_items,
                         .output_items = std::move(output_items),
                         .created = r.created};
  e.pending->parent = e.parent;
  e.pending->bytes = bytes;
  e.pending->now = now;
  pending_bytes_ += bytes;
  pending_.push_back(e.pending);
  changed_.notify_one();
}

void ResponseStore::write() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !pending_.empty(); });
    if (pending_.empty()) return;
    const std::shared_ptr<Pending> p = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    Status status;
    {
      const std::lock_guard<std::mutex> archive_lock(archive_mutex_);
      lock.lock();
      const bool removed = p->removed;
      lock.unlock();
      if (!removed) status = write_one(*p);
    }
    lock.lock();
    pending_bytes_ -= p->bytes;
    if (!status.ok()) ++unsaved_;
    if (const auto it = entries_.find(p->response.id); it != entries_.end() && it->second.pending == p)
      it->second.pending = nullptr;
    shrink(p->now);
  }
}

// A parent that is not in the archive, because it was removed before it came there or could not be written, leaves its
// conversation to its child.
Status ResponseStore::write_one(Pending& p) {
  if (p.parent) {
    DI_ASSIGN_OR_RETURN(const bool held, archive_->holds(p.response.previous, p.response.owner));
    std::vector<std::shared_ptr<const Turn>> turns;
    for (auto turn = p.parent; turn && !held; turn = turn->previous) turns.push_back(turn);
    if (!held) {
      DI_ASSIGN_OR_RETURN(p.response.before, items_of(turns, p.response.owner, p.now));
    }
  }
  return archive_->add(p.response, p.now);
}

void ResponseStore::drop(std::string_view id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = entries_.find(std::string(id)); it != entries_.end()) erase(it);
}

Result<std::optional<StoredResponse>> ResponseStore::find(std::string_view id, std::string_view owner,
                                                          int64_t now) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = at(id, owner, now); it != entries_.end()) return std::optional(it->second.response);
  }
  if (!archive_) return std::optional<StoredResponse>();
  DI_ASSIGN_OR_RETURN(std::optional<ArchivedResponse> found, archive_->find(id, owner, now));
  if (!found) return std::optional<StoredResponse>();
  return std::optional(StoredResponse{.id = std::move(found->id),
                                      .owner = std::move(found->owner),
                                      .body = std::move(found->body),
                                      .input_items = std::move(found->input_items),
                                      .previous = std::move(found->previous),
                                      .running = false,
                                      .cancel = nullptr,
                                      .created = found->created});
}

Result<bool> ResponseStore::remove(std::string_view id, std::string_view owner, int64_t now) {
  std::function<void()> cancel;
  bool found = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (at(id, owner, now) != entries_.end()) {
      found = true;
      const auto it = entries_.find(std::string(id));
      cancel = std::move(it->second.response.cancel);
      if (it->second.pending) it->second.pending->removed = true;
      erase(it);
    }
  }
  if (cancel) cancel();
  if (!archive_) return found;
  const std::lock_guard<std::mutex> lock(archive_mutex_);
  DI_ASSIGN_OR_RETURN(const bool removed, archive_->remove(id, owner, now));
  return found || removed;
}

Result<std::vector<recipe::Json>> ResponseStore::chain(std::string_view id, std::string_view owner, int64_t now) const {
  std::vector<std::shared_ptr<const Turn>> turns;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = at(id, owner, now); it != entries_.end()) {
      if (it->second.response.running) {
        return make_error(Code::kFailedPrecondition, "Response '{}' is still in progress and cannot be continued yet.",
                          id);
      }
      for (auto turn = it->second.turn; turn; turn = turn->previous) turns.push_back(turn);
    }
  }
  if (turns.empty())
    return archive_ ? archive_->chain(id, owner, now) : Status(Code::kNotFound, "There is no such response.");
  return items_of(turns, owner, now);
}

// `turns` stand newest first.
Result<std::vector<recipe::Json>> ResponseStore::items_of(const std::vector<std::shared_ptr<const Turn>>& turns,
                                                          std::string_view owner, int64_t now) const {
  std::vector<recipe::Json> items;
  if (const std::string& before = turns.back()->before; archive_ && !before.empty()) {
    DI_ASSIGN_OR_RETURN(items, archive_->chain(before, owner, now, true));
  }
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn)
    items.insert(items.end(), (*turn)->items.begin(), (*turn)->items.end());
  return items;
}

ResponseStore::Figures ResponseStore::figures() const {
  Figures out;
  if (archive_) out.archive = archive_->figures();
  const std::lock_guard<std::mutex> lock(mutex_);
  out.count = entries_.size();
  out.bytes = bytes_;
  out.unsaved = unsaved_;
  return out;
}

}  // namespace deepinfer::serve
