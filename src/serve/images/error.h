// What is wrong with one image of a request, in the terms of the APIs.
//
//   if (std::optional<ImageError> error = decode_image(bytes, limits, &pixels)) return *error;
//
// Codes are those that OpenAI's error objects have for images. `retry`: the fault is the image's server's and may pass,
// which is answered with status 500 instead of 400 (spec/deepinfer.md A12).
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::serve {

namespace image_code {
inline constexpr std::string_view kUnsupportedType = "unsupported_image_media_type";  // not JPEG, PNG, GIF or WebP
inline constexpr std::string_view kEmpty = "empty_image_file";
inline constexpr std::string_view kDamaged = "image_parse_error";
inline constexpr std::string_view kTooManyBytes = "image_file_too_large";
inline constexpr std::string_view kTooManyPixels = "image_too_large";
inline constexpr std::string_view kBadBase64 = "invalid_base64_image";
inline constexpr std::string_view kBadUrl = "invalid_image_url";  // also an address that may not be reached
inline constexpr std::string_view kNotFound = "image_file_not_found";
inline constexpr std::string_view kFetchFailed = "failed_to_download_image";
inline constexpr std::string_view kOverloaded = "overloaded";
}  // namespace image_code

struct ImageError {
  std::string_view code;  // one of the above
  std::string message;    // a sentence, without the image's place in the request
  bool retry = false;
  std::string_view limit = {};  // name of the limit that was hit, or empty
};

}  // namespace deepinfer::serve
