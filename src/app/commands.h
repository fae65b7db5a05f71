// The subcommands of `deepinfer`. Each cmd_<name>.cc defines one and announces it with a static Command:
//
//   static const Command kInspect("inspect", "Show what a checkpoint holds", &setup_inspect);
//
// setup adds options to `app` and sets *run to what is done after parsing; run returns the process exit code.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace deepinfer::app {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;   // the work itself failed
inline constexpr int kExitBadInput = 2;  // the user's input cannot be used; a sentence says why

using Run = std::function<int()>;
using Setup = void (*)(CLI::App& app, Run* run);

struct Command {
  Command(std::string name, std::string description, Setup setup);
};

// Prints "deepinfer: MESSAGE" to standard error and returns kExitBadInput.
int fail(const std::string& message);

}  // namespace deepinfer::app
