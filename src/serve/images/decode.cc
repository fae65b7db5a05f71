#include "serve/images/decode.h"

#include <new>

#include <fmt/format.h>

#include "serve/images/codecs.h"

namespace deepinfer::serve {
namespace {

struct Codec {
  std::string_view name;
  const char* (*info)(std::string_view, ImageInfo*);
  const char* (*decode)(std::string_view, const ImageInfo&, Deadline, uint8_t*);
};

// In the order of ImageFormat.
constexpr Codec kCodecs[] = {
    {"JPEG", &read_jpeg_info, &decode_jpeg},
    {"PNG", &read_png_info, &decode_png},
    {"WebP", &read_webp_info, &decode_webp},
    {"GIF", &read_gif_info, &decode_gif},
};

constexpr std::string_view kUnsupported =
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
    "formats: webp, png, jpeg, "
    "and gif.";

std::optional<ImageFormat> sniff(std::string_view bytes) {
  if (bytes.starts_with("\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return ImageFormat::kWebp;
  if (bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")) return ImageFormat::kGif;
  return std::nullopt;
}

ImageError damaged(ImageFormat format, std::string_view why) {
  return {.code = image_code::kDamaged,
          .message = fmt::format("{} ({}: {}.)", kUnsupported, image_format_name(format), why)};
}

}  // namespace

std::string_view image_format_name(ImageFormat format) { return kCodecs[static_cast<size_t>(format)].name; }

std::optional<ImageError> read_image_info(std::string_view bytes, int side_max, ImageInfo* out) {
  if (bytes.empty()) return ImageError{.code = image_code::kEmpty, .message = "The image is empty."};
  const std::optional<ImageFormat> format = sniff(bytes);
  if (!format) return ImageError{.code = image_code::kUnsupportedType, .message = std::string(kUnsupported)};
  out->format = *format;
  if (const char* why = kCodecs[static_cast<size_t>(*format)].info(bytes, out)) return damaged(*format, why);
  if (out->width < 1 || out->height < 1) return damaged(*format, "it has no pixels");
  if (out->width > side_max || out->height > side_max) {
    return ImageError{.code = image_code::kTooManyPixels,
                      .message = fmt::format("The image has {} x {} pixels; image_side_max is {}.", out->width,
                                             out->height, side_max),
                      .limit = "image_side_max"};
  }
  const size_t area = static_cast<size_t>(out->width) * static_cast<size_t>(out->height);
  out->decode_bytes += 3 * area;
  return std::nullopt;
}

std::optional<ImageError> decode_image(std::string_view bytes, const ImageInfo& info, Deadline deadline, Pixels* out) {
  try {
    out->width = info.width;
    out->height = info.height;
    out->rgb.assign(3 * static_cast<size_t>(info.width) * static_cast<size_t>(info.height), 0);
  } catch (const std::bad_alloc&) {
    return ImageError{
        .code = image_code::kOverloaded, .message = "There is not enough memory for the image now.", .retry = true};
  }
  const char* why = kCodecs[static_cast<size_t>(info.format)].decode(bytes, info, deadline, out->rgb.data());
  if (why == kOutOfTime) {
    return ImageError{.code = image_code::kTooManyPixels,
                      .message = "The image was not decoded within image_timeout_s.",
                      .limit = "image_timeout_s"};
  }
  if (why != nullptr) return damaged(info.format, why);
  return std::nullopt;
}

}  // namespace deepinfer::serve
