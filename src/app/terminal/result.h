// What a command has to say, on standard output:
//
//   return print_result(text);
//
// Returns `code` once all is written; if it cannot be (full disk, closed stream), says why and returns kExitBadInput.
#pragma once

#include <string_view>

#include "app/commands.h"

namespace deepinfer::app {

int print_result(std::string_view text, int code = kExitOk);

}  // namespace deepinfer::app
