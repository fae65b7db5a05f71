#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <gif_lib.h>

#include "serve/images/codecs.h"

namespace deepinfer::serve {
namespace {

constexpr size_t kHeadBytes = 13;
constexpr int kRecordsMax = 1024;  // before the first frame

int read_some(GifFileType* gif, GifByteType* out, int size) {
  auto* rest = static_cast<std::string_view*>(gif->UserData);
  const size_t n = std::min(rest->size(), static_cast<size_t>(std::max(size, 0)));
  std::memcpy(out, rest->data(), n);
  rest->remove_prefix(n);
  return static_cast<int>(n);
}

struct Close {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

bool skip_extension(GifFileType* gif) {
  int kind = 0;
  GifByteType* block = nullptr;
  if (DGifGetExtension(gif, &kind, &block) != GIF_OK) return false;
  while (block != nullptr) {
    if (DGifGetExtensionNext(gif, &block) != GIF_OK) return false;
  }
  return true;
}

const char* find_frame(GifFileType* gif) {
  for (int i = 0; i < kRecordsMax; ++i) {
    GifRecordType record = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(gif, &record) != GIF_OK) return "the file is cut off or damaged";
    if (record == IMAGE_DESC_RECORD_TYPE)
      return DGifGetImageDesc(gif) == GIF_OK ? nullptr : "the file is cut off or damaged";
    if (record == TERMINATE_RECORD_TYPE) return "it has no frame";
    if (!skip_extension(gif)) return "the file is cut off or damaged";
  }
  return "it has no frame";
}

// The row of the frame that the n-th stored one is: interlaced files bring every 8th first.
int row_of(int n, int height, bool interlaced) {
  if (!interlaced) return n;
  constexpr int kFirst[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
  for (int pass = 0; pass < 4; ++pass) {
    const int rows = height > kFirst[pass] ? (height - kFirst[pass] + kStep[pass] - 1) / kStep[pass] : 0;
    if (n < rows) return kFirst[pass] + n * kStep[pass];
    n -= rows;
  }
  return height - 1;
}

void fill(const ImageInfo& info, const ColorMapObject* colors, int color, uint8_t* out) {
  if (colors == nullptr || color < 0 || color >= colors->ColorCount) return;
  const GifColorType& c = colors->Colors[color];
  for (size_t i = 0, n = static_cast<size_t>(info.width) * static_cast<size_t>(info.height); i < n; ++i) {
    out[3 * i] = c.Red;
    out[3 * i + 1] = c.Green;
    out[3 * i + 2] = c.Blue;
  }
}

const char* read_frame(GifFileType* gif, const ImageInfo& info, Deadline deadline, uint8_t* out) {
  const GifImageDesc& frame = gif->Image;
  const bool inside = frame.Left >= 0 && frame.Top >= 0 && frame.Width > 0 && frame.Height > 0 &&
                      frame.Left <= info.width - frame.Width && frame.Top <= info.height - frame.Height;
  if (!inside) return "its first frame lies outside of it";
  const ColorMapObject* colors = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  if (colors == nullptr) return "it has no colours";
  fill(info, gif->SColorMap, gif->SBackGroundColor, out);
  std::vector<GifPixelType> row(static_cast<size_t>(frame.Width));
  for (int n = 0; n < frame.Height; ++n) {
    if (n % 64 == 0 && std::chrono::steady_clock::now() > deadline) return kOutOfTime;
    if (DGifGetLine(gif, row.data(), frame.Width) != GIF_OK) return "the file is cut off or damaged";
    const int y = frame.Top + row_of(n, frame.Height, frame.Interlace);
    uint8_t* to =
        out + 3 * (static_cast<size_t>(y) * static_cast<size_t>(info.width) + static_cast<size_t>(frame.Left));
    for (const GifPixelType color : row) {
      if (color >= colors->ColorCount) return "it uses a colour that it does not have";
      const GifColorType& c = colors->Colors[color];
      *to++ = c.Red;
      *to++ = c.Green;
      *to++ = c.Blue;
    }
  }
  return nullptr;
}

}  // namespace

const char* read_gif_info(std::string_view bytes, ImageInfo* out) {
  if (bytes.size() < kHeadBytes) return "the file is cut off";
  const auto number = [&](size_t at) {
    return static_cast<unsigned char>(bytes[at]) | static_cast<unsigned char>(bytes[at + 1]) << 8;
  };
  out->width = number(6);
  out->height = number(8);
  out->decode_bytes = 64 << 10;  // the tables of its decoder
  return nullptr;
}

const char* decode_gif(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out) {
  std::string_view rest = bytes;
  int error = 0;
  const std::unique_ptr<GifFileType, Close> gif(DGifOpen(&rest, &read_some, &error));
  if (!gif) return error == D_GIF_ERR_NOT_ENOUGH_MEM ? kOutOfMemory : "the file is cut off or damaged";
  if (const char* why = find_frame(gif.get())) return why;
  return read_frame(gif.get(), info, deadline, out);
}

}  // namespace deepinfer::serve
