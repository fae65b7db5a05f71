#include "serve/response_store.h"

#include <algorithm>

namespace deepinfer::serve {
namespace {

size_t bytes_of(const std::vector<recipe::Json>& items) {
  size_t bytes = 0;
  for (const recipe::Json& item : items) bytes += 2 * recipe::to_compact_json(item).size() + sizeof(recipe::Json);
  return bytes;
}

}  // namespace

ResponseStore::Entries::const_iterator ResponseStore::at(std::string_view id, std::string_view owner) const {
  const auto it = entries_.find(std::string(id));
  return it == entries_.end() || it->second.response.owner != owner ? entries_.end() : it;
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

// Running ones stay: their end is still to be written.
void ResponseStore::shrink(int64_t now) {
  for (auto place = order_.begin(); place != order_.end();) {
    const auto it = entries_.find(*place++);
    const bool old = now - it->second.response.created > options_.age_max_s;
    if (!old && bytes_ <= options_.bytes_max) return;
    if (!it->second.response.running) erase(it);
  }
}

void ResponseStore::add(StoredResponse response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = response.created;
  const std::string id = response.id;
  Entry e;
  if (const auto parent = at(response.previous, response.owner); parent != entries_.end()) e.parent = parent->second.turn;
  e.response = std::move(response);
  e.place = order_.insert(order_.end(), id);
  recount(entries_.insert_or_assign(id, std::move(e)).first->second);
  shrink(now);
}

void ResponseStore::finish(std::string_view id, std::string body, std::vector<recipe::Json> output_items) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(std::string(id));
  if (it == entries_.end()) return;
  Entry& e = it->second;
  auto turn = std::make_shared<Turn>();
  turn->previous = e.parent;
  turn->items = e.response.input_items;
  turn->items.insert(turn->items.end(), std::make_move_iterator(output_items.begin()), std::make_move_iterator(output_items.end()));
  turn->bytes = bytes_of(turn->items) + (e.parent ? e.parent->bytes : 0);
  e.turn = std::move(turn);
  e.response.body = std::move(body);
  e.response.running = false;
  e.response.cancel = nullptr;
  recount(e);
  shrink(e.response.created);
}

void ResponseStore::drop(std::string_view id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = entries_.find(std::string(id)); it != entries_.end()) erase(it);
}

std::optional<StoredResponse> ResponseStore::find(std::string_view id, std::string_view owner) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = at(id, owner);
  return it == entries_.end() ? std::nullopt : std::optional(it->second.response);
}

bool ResponseStore::remove(std::string_view id, std::string_view owner) {
  std::function<void()> cancel;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (at(id, owner) == entries_.end()) return false;
    const auto it = entries_.find(std::string(id));
    cancel = std::move(it->second.response.cancel);
    erase(it);
  }
  if (cancel) cancel();
  return true;
}

Result<std::vector<recipe::Json>> ResponseStore::chain(std::string_view id, std::string_view owner) const {
  std::vector<std::shared_ptr<const Turn>> turns;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = at(id, owner);
    if (it == entries_.end()) return Status(Code::kNotFound, "There is no such response.");
    if (it->second.response.running) {
      return make_error(Code::kFailedPrecondition, "Response '{}' is still in progress and cannot be continued yet.", id);
    }
    for (auto turn = it->second.turn; turn; turn = turn->previous) turns.push_back(turn);
  }
  std::vector<recipe::Json> items;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) items.insert(items.end(), (*turn)->items.begin(), (*turn)->items.end());
  return items;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

size_t ResponseStore::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace deepinfer::serve
