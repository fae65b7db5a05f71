// How a command ends: what it has to say, on standard output, or why it failed.
//
//   if (!made.ok()) return fail(made.status());
//   return print_result(text);
//
// print_result returns `code` once all is written; if it cannot be (full disk, closed stream), says why and returns
// kExitBadInput.
#pragma once

#include <string_view>

#include "app/commands.h"
#include "base/status.h"

namespace deepinfer::app {

inline constexpr int kExitInterrupted = 130;  // as shells give it for Ctrl-C

int print_result(std::string_view text, int code = kExitOk);

// Says why on standard error and returns kExitBadInput, of kInternal kExitFailure; of kCancelled it says nothing and
// returns kExitInterrupted.
int fail(const Status& status);

}  // namespace deepinfer::app
