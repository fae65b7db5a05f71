#include <cstring>
#include <memory>

#include <webp/decode.h>
#include <webp/demux.h>

#include "serve/images/codecs.h"

namespace deepinfer::serve {
namespace {

const uint8_t* data_of(std::string_view bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

const char* decode_still(const uint8_t* data, size_t size, uint8_t* out, size_t out_bytes, int stride) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return kOutOfMemory;
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {.rgba = out, .stride = stride, .size = out_bytes};
  switch (WebPDecode(data, size, &config)) {
    case VP8_STATUS_OK: return nullptr;
    case VP8_STATUS_OUT_OF_MEMORY: return kOutOfMemory;
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file is cut off";
    default: return "the data is damaged";
  }
}

// The first frame at its place on a black canvas.
const char* decode_animation(std::string_view bytes, const ImageInfo& info, uint8_t* out) {
  const WebPData data = {data_of(bytes), bytes.size()};
  const std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)> demuxer(WebPDemux(&data), &WebPDemuxDelete);
  if (!demuxer) return "the file is cut off or damaged";
  WebPIterator frame;
  if (!WebPDemuxGetFrame(demuxer.get(), 1, &frame)) return "it has no frame";
  const std::unique_ptr<WebPIterator, decltype(&WebPDemuxReleaseIterator)> release(&frame, &WebPDemuxReleaseIterator);
  const bool inside = frame.x_offset >= 0 && frame.y_offset >= 0 && frame.width > 0 && frame.height > 0 &&
                      frame.x_offset <= info.width - frame.width && frame.y_offset <= info.height - frame.height;
  if (!inside) return "its first frame lies outside of it";
  const int stride = 3 * info.width;
  const size_t offset =
      static_cast<size_t>(frame.y_offset) * static_cast<size_t>(stride) + 3 * static_cast<size_t>(frame.x_offset);
  const size_t room = static_cast<size_t>(stride) * static_cast<size_t>(info.height) - offset;
  return decode_still(frame.fragment.bytes, frame.fragment.size, out + offset, room, stride);
}

const char* read_features(std::string_view bytes, WebPBitstreamFeatures* out) {
  switch (WebPGetFeatures(data_of(bytes), bytes.size(), out)) {
    case VP8_STATUS_OK: return nullptr;
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file is cut off";
    default: return "the data is damaged";
  }
}

}  // namespace

const char* read_webp_info(std::string_view bytes, ImageInfo* out) {
  WebPBitstreamFeatures features;
  if (const char* why = read_features(bytes, &features)) return why;
  out->width = features.width;
  out->height = features.height;
  // Lossless files are decoded to 4 bytes a pixel first; alpha planes take one more.
  out->decode_bytes = 5 * static_cast<size_t>(features.width) * static_cast<size_t>(features.height);
  return nullptr;
}

const char* decode_webp(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out) {
  if (std::chrono::steady_clock::now() > deadline) return kOutOfTime;
  WebPBitstreamFeatures features;
  if (const char* why = read_features(bytes, &features)) return why;
  if (features.width != info.width || features.height != info.height) return "its size changes";
  if (features.has_animation) return decode_animation(bytes, info, out);
  const int stride = 3 * info.width;
  return decode_still(data_of(bytes), bytes.size(), out, static_cast<size_t>(stride) * static_cast<size_t>(info.height),
                      stride);
}

}  // namespace deepinfer::serve
