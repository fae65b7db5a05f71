#include "app/terminal/result.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "app/terminal/terminal.h"

namespace deepinfer::app {

int print_result(std::string_view text, int code) {
  if (write_out(STDOUT_FILENO, text)) return code;
  return fail(fmt::format("Cannot write the output: {}.", std::strerror(errno)));
}

int fail(const Status& status) {
  if (status.code() == Code::kCancelled) return kExitInterrupted;
  const int code = fail(status.message());
  return status.code() == Code::kInternal ? kExitFailure : code;
}

}  // namespace deepinfer::app
