// Fetches a file that a client named by URL, without becoming the client's way into networks that it cannot reach
// itself (design: untrusted input stops at the door).
//
//   FetchRules rules{.allow_hosts = {"images.internal:8080"}};
//   std::string bytes;
//   if (auto error = fetch_image(url, rules, {.bytes_max = 32 << 20, .deadline = deadline}, stop, &bytes)) return
//   *error;
//
// - http and https, ports 80 and 443, no user name or password. Certificates are checked.
// - Each connection is a new one, and the address that it goes to is judged when it is opened (is_public_address): a
//   name
//   cannot mean one address when it is checked and another when it is used.
// - Redirects, a few, are requests of their own under the same rules.
// - No proxy, no cookies, no compression; heads and bodies have limits while they are read.
//
// Blocks; from any thread. `stop` is asked a few times a second.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "serve/images/decode.h"
#include "serve/images/error.h"
#include "serve/images/options.h"

namespace deepinfer::serve {

struct FetchLimits {
  size_t bytes_max = size_t{32} << 20;
  Deadline deadline;
  // Asked before bytes are kept; false: there is no memory for them now. Empty: there always is.
  std::function<bool(size_t bytes)> reserve = {};
};

std::optional<ImageError> fetch_image(const std::string& url, const FetchRules& rules, const FetchLimits& limits,
                                      const std::function<bool()>& stop, std::string* out);

}  // namespace deepinfer::serve
