// Numbers as people read and write them: format_bytes(1'500'000'000) is "1.5 GB", parse_bytes("2GiB") is 2'147'483'648.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// Decimal units, one digit after the point from a megabyte on: "12 kB", "23.7 MB", "1.5 GB".
std::string format_bytes(uint64_t bytes);

// A number, with a decimal point if wanted, and a unit: kB MB GB TB (decimal), KiB MiB GiB TiB or K M G T (binary), B
// or none (bytes). kInvalidArgument says what is expected.
Result<uint64_t> parse_bytes(std::string_view text);

}  // namespace deepinfer
