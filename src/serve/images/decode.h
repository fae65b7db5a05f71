// The bytes of an image file -> its pixels. Pure: no files, no network, no state.
//
//   ImageInfo info;
//   // format and size, checked against limits
//   if (auto error = read_image_info(bytes, limits, &info)) return *error;
//   Pixels pixels;
//   if (auto error = decode_image(bytes, info, deadline, &pixels)) return *error;
//
// JPEG (libjpeg-turbo, also CMYK and progressive), PNG (libpng), WebP (libwebp; of an animation the first frame) and
// GIF (giflib; the first frame). The kind is told by the bytes, not by a declared type. Pixels are RGB as stored: alpha
// is dropped and EXIF orientation left alone, as spec/model.md 12.1 has it. Files that are cut off are refused.
// Decoding allocates at most info.decode_bytes beside a few hundred KiB, which a caller can set aside before.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "serve/images/error.h"

namespace deepinfer::serve {

enum class ImageFormat : uint8_t { kJpeg, kPng, kWebp, kGif };
std::string_view image_format_name(ImageFormat format);

struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  int width = 0, height = 0;
  size_t decode_bytes = 0;
};

struct Pixels {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // rows from the top, 3 bytes a pixel
};

using Deadline = std::chrono::steady_clock::time_point;

// Reads the head only. `side_max`: pixels of width and of height (the named limit image_side_max).
std::optional<ImageError> read_image_info(std::string_view bytes, int side_max, ImageInfo* out);

// `info` must be what read_image_info gave for the same bytes. After `deadline` it gives up, at the latest after one
// more row, scan or (WebP) image.
std::optional<ImageError> decode_image(std::string_view bytes, const ImageInfo& info, Deadline deadline, Pixels* out);

}  // namespace deepinfer::serve
