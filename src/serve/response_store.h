// Stored responses (spec/protocol.md 10.6): body, input items, and the chain of conversations that previous_response_id
// continues. In memory, bounded by bytes and age, the oldest go first; with an archive also on disk, where they outlive
// the program and are found once they left the memory.
//
//   store.add({.id = id, .owner = key, .body = running, .input_items = items, .previous = parent});
//   store.finish(id, body, output_items, now);
//   Result<std::vector<Json>> items = store.chain(parent, owner, now);       // input and output of all ancestors
//
// A response of another owner does not exist. Thread-safe. add, finish and drop never wait; the others may wait for the
// disk where there is an archive, so they are then not for I/O threads. What ends is written by a thread of the store;
// what cannot be written (a full disk) stays in memory only and is counted. An entry counts with its whole chain, so
// that memory stays below the bound whatever is deleted.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <condition_variable>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "recipe/json.h"
#include "serve/response_archive.h"

namespace deepinfer::serve {

struct StoredResponse {
  std::string id, owner;
  std::string body;  // the response object
  std::vector<recipe::Json> input_items;
  std::string previous;          // id of the parent, or empty
  bool running = true;
  std::function<void()> cancel;  // of a running one; from any thread
  int64_t created = 0;
};

class ResponseStore {
 public:
  struct Options {
    size_t bytes_max = size_t{256} << 20;
    int64_t age_max_s = 30 * 86400;
  };
  struct Figures {
    size_t count = 0, bytes = 0;  // in memory
    uint64_t unsaved = 0;         // that could not be written, so far
    ResponseArchive::Figures archive;
  };

  explicit ResponseStore(Options options, std::unique_ptr<ResponseArchive> archive = nullptr);
  // stop().
  ~ResponseStore();
  // Writes what is still to be written. What ends afterwards stays in memory only.
  void stop();

  bool persistent() const { return archive_ != nullptr; }

  void add(StoredResponse response);
  void finish(std::string_view id, std::string body, std::vector<recipe::Json> output_items, int64_t now);
  void drop(std::string_view id);  // a running one that came to nothing

  Result<std::optional<StoredResponse>> find(std::string_view id, std::string_view owner, int64_t now) const;
  Result<bool> remove(std::string_view id, std::string_view owner, int64_t now);
  // kNotFound for an unknown id, kFailedPrecondition for one that is still running.
  Result<std::vector<recipe::Json>> chain(std::string_view id, std::string_view owner, int64_t now) const;

  Figures figures() const;

 private:
  // Items of one response in a chain; shared by all that continue it.
  struct Turn {
    std::shared_ptr<const Turn> previous;
    std::string before;  // id of the response that comes before, where that is not in memory
    std::vector<recipe::Json> items;
    size_t bytes = 0;  // with those before
  };
  // What is to be written.
  struct Pending {
    ArchivedResponse response;
    std::shared_ptr<const Turn> parent;
    size_t bytes = 0;
    int64_t now = 0;
    bool removed = false;
  };
  struct Entry {
    StoredResponse response;
    std::shared_ptr<const Turn> parent, turn;
    std::shared_ptr<Pending> pending;  // until it is written
    size_t bytes = 0;
    std::list<std::string>::iterator place;
  };
  using Entries = std::unordered_map<std::string, Entry>;

  Entries::const_iterator at(std::string_view id, std::string_view owner, int64_t now) const;
  void save_later(Entry& entry, std::vector<recipe::Json> output_items, int64_t now);
  void write();
  Status write_one(Pending& p);
  Result<std::vector<recipe::Json>> items_of(const std::vector<std::shared_ptr<const Turn>>& turns,
                                             std::string_view owner, int64_t now) const;
  void erase(Entries::iterator it);
  void recount(Entry& entry);
  void shrink(int64_t now);

  const Options options_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::list<std::string> order_;  // oldest first
  size_t bytes_ = 0;
  std::deque<std::shared_ptr<Pending>> pending_;
  size_t pending_bytes_ = 0;
  uint64_t unsaved_ = 0;
  bool ending_ = false;

  const std::unique_ptr<ResponseArchive> archive_;
  std::mutex archive_mutex_;  // taken before mutex_: a removal and a late write do not cross
  std::condition_variable changed_;
  std::thread writer_;
};

}  // namespace deepinfer::serve
