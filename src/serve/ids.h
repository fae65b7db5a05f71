// Ids of requests, responses and items: random, or numbered for tests.
//
//   IdSource ids(/*numbered=*/false);
//   ids.next("req_")        // "req_5ZpG0rTqW1xYb7cD8eFgHi"
//
// Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::serve {

class IdSource {
 public:
  explicit IdSource(bool numbered);
  std::string next(std::string_view prefix);

 private:
  const bool numbered_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace deepinfer::serve
