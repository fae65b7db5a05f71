// Stored responses on disk: what a ResponseStore keeps over restarts, in one SQLite file of the state folder.
//
//   DI_ASSIGN_OR_RETURN(auto archive, ResponseArchive::open("/var/lib/deepinfer", {.bytes_max = 1 << 30}));
//   DI_RETURN_IF_ERROR(archive->add(response, now));
//   DI_ASSIGN_OR_RETURN(auto found, archive->find(id, owner, now));          // nothing: there is none of this owner
//   DI_ASSIGN_OR_RETURN(std::vector<Json> items, archive->chain(id, owner, now));
//
// One that was removed, or is older than age_max_s, can no longer be found, but stays as long as others continue it.
// Above bytes_max the oldest go for good, and a chain that lacks one is kNotFound. Thread-safe; calls wait for the
// disk, so they are not for I/O threads. Errors as of StateStore.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "recipe/json.h"

namespace deepinfer::serve {

struct ArchivedResponse {
  std::string id, owner, previous;
  std::string body;  // the response object
  std::vector<recipe::Json> input_items, output_items;
  std::vector<recipe::Json> before;  // items of ancestors, where `previous` is not in the archive
  int64_t created = 0;
};

class ResponseArchive {
 public:
  struct Options {
    int64_t bytes_max = int64_t{8} << 30;
    int64_t age_max_s = 30 * 86400;
  };
  struct Figures {
    int64_t responses = 0, bytes = 0;
  };

  // `folder` exists.
  static Result<std::unique_ptr<ResponseArchive>> open(const std::string& folder, Options options);
  ~ResponseArchive();

  // Whether a response can be continued by one that names it as `previous`; one that was removed can.
  Result<bool> holds(std::string_view id, std::string_view owner);
  Status add(const ArchivedResponse& response, int64_t now);
  // Without output_items, which stand in the body, and `before`.
  Result<std::optional<ArchivedResponse>> find(std::string_view id, std::string_view owner, int64_t now);
  Result<bool> remove(std::string_view id, std::string_view owner, int64_t now);
  // Input and output of all ancestors and of this one, oldest first. `as_parent`: one that was removed will do.
  Result<std::vector<recipe::Json>> chain(std::string_view id, std::string_view owner, int64_t now,
                                          bool as_parent = false);
  Figures figures() const;

 private:
  struct Impl;
  explicit ResponseArchive(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::serve
