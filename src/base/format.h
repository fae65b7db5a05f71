// Numbers as people read them: format_bytes(1'500'000'000) is "1.5 GB".
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

// Decimal units, one digit after the point from a megabyte on: "12 kB", "23.7 MB", "1.5 GB".
std::string format_bytes(uint64_t bytes);

}  // namespace deepinfer
