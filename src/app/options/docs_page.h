// docs/configuration.md, from the option table.
#pragma once

#include <string>

namespace deepinfer::app {

std::string configuration_markdown();

}  // namespace deepinfer::app
