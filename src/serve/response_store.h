// Stored responses (spec/protocol.md 10.6): body, input items, and the chain of conversations that
// previous_response_id continues. In memory, bounded by bytes and age; the oldest go first.
//
//   store.add({.id = id, .owner = key, .body = running, .input_items = items, .previous = parent});
//   store.finish(id, body, output_items);
//   Result<std::vector<Json>> items = store.chain(parent, owner);       // input and output of all ancestors
//
// A response of another owner does not exist. Thread-safe. An entry counts with its whole chain, so that memory stays
// below the bound whatever is deleted.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "recipe/json.h"

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
  explicit ResponseStore(Options options) : options_(options) {}

  void add(StoredResponse response);
  void finish(std::string_view id, std::string body, std::vector<recipe::Json> output_items);
  void drop(std::string_view id);  // a running one that came to nothing

  std::optional<StoredResponse> find(std::string_view id, std::string_view owner) const;
  bool remove(std::string_view id, std::string_view owner);
  // kNotFound for an unknown id, kFailedPrecondition for one that is still running.
  Result<std::vector<recipe::Json>> chain(std::string_view id, std::string_view owner) const;

  size_t bytes() const;
  size_t size() const;

 private:
  // Items of one response in a chain; shared by all that continue it.
  struct Turn {
    std::shared_ptr<const Turn> previous;
    std::vector<recipe::Json> items;
    size_t bytes = 0;  // with those before
  };
  struct Entry {
    StoredResponse response;
    std::shared_ptr<const Turn> parent, turn;
    size_t bytes = 0;
    std::list<std::string>::iterator place;
  };
  using Entries = std::unordered_map<std::string, Entry>;

  Entries::const_iterator at(std::string_view id, std::string_view owner) const;
  void erase(Entries::iterator it);
  void recount(Entry& entry);
  void shrink(int64_t now);

  const Options options_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::list<std::string> order_;  // oldest first
  size_t bytes_ = 0;
};

}  // namespace deepinfer::serve
