// One pair of functions a format (internal to serve/images): the size in the head, and the pixels. `out` of decode_*
// has room for the whole image. Null for success, else a literal that says what is wrong with the file; the two below
// are told apart by their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "serve/images/decode.h"

namespace deepinfer::serve {

inline constexpr char kOutOfTime[] = "it takes too long to decode";
inline constexpr char kOutOfMemory[] = "there is not enough memory to decode it";

const char* read_jpeg_info(std::string_view bytes, ImageInfo* out);
const char* read_png_info(std::string_view bytes, ImageInfo* out);
const char* read_webp_info(std::string_view bytes, ImageInfo* out);
const char* read_gif_info(std::string_view bytes, ImageInfo* out);

const char* decode_jpeg(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out);
const char* decode_png(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out);
const char* decode_webp(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out);
const char* decode_gif(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out);

}  // namespace deepinfer::serve
