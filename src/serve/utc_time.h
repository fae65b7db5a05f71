// Times as RFC 3339 writes them: utc_time(1700000000) is "2023-11-14T22:13:20Z".
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::serve {

std::string utc_time(int64_t seconds_since_1970);

}  // namespace deepinfer::serve
