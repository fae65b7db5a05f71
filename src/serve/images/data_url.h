// The bytes of a base64 data URL.
//
//   std::string bytes;
//   if (!decode_data_url("data:image/png;base64,iVBORw0...", &bytes)) ...      // false: no data URL, or bad base64
//
// The standard alphabet; padding may be missing, nothing else may stand beside it.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::serve {

bool decode_data_url(std::string_view url, std::string* out);

}  // namespace deepinfer::serve
