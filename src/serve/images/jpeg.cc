#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it

#include <jerror.h>
#include <jpeglib.h>

#include "serve/images/codecs.h"

namespace deepinfer::serve {
namespace {

// Each scan of a progressive file goes over all of its blocks, also if it brings nothing. Encoders write about ten.
constexpr int kScansMax = 64;

struct Decoder {
  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf out_of_here;
  Deadline deadline;
  const char* why = nullptr;
};

[[noreturn]] void give_up(j_common_ptr common, const char* why) {
  auto* decoder = static_cast<Decoder*>(common->client_data);
  decoder->why = why;
  std::longjmp(decoder->out_of_here, 1);
}

void on_error(j_common_ptr common) {
  const int code = common->err->msg_code;
  give_up(common, code == JERR_OUT_OF_MEMORY ? kOutOfMemory
                  : code == JERR_INPUT_EOF   ? "the file is cut off"
                                             : "the data is damaged");
}

// Levels below zero are warnings. Only a missing end makes a file unusable: decoders fill what else is damaged.
void on_message(j_common_ptr common, int level) {
  if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) give_up(common, "the file is cut off");
}

void on_progress(j_common_ptr common) {
  auto* decoder = static_cast<Decoder*>(common->client_data);
  if (decoder->jpeg.input_scan_number > kScansMax) give_up(common, "it has too many scans");
  if (std::chrono::steady_clock::now() > decoder->deadline) give_up(common, kOutOfTime);
}

// To be called once the jump is set.
void open(Decoder* d, std::string_view bytes) {
  d->jpeg.err = jpeg_std_error(&d->errors);
  d->errors.error_exit = &on_error;
  d->errors.emit_message = &on_message;
  d->errors.output_message = [](j_common_ptr) {};
  d->jpeg.client_data = d;
  jpeg_create_decompress(&d->jpeg);
  d->progress.progress_monitor = &on_progress;
  d->jpeg.progress = &d->progress;
  jpeg_mem_src(&d->jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&d->jpeg, TRUE);
  const int components = d->jpeg.num_components;
  if (components != 1 && components != 3 && components != 4)
    give_up(reinterpret_cast<j_common_ptr>(&d->jpeg), "it has an unknown kind of colour");
}

// Adobe's CMYK files hold inverted values.
void cmyk_to_rgb(const uint8_t* cmyk, bool inverted, size_t width, uint8_t* rgb) {
  for (size_t x = 0; x < width; ++x) {
    const int black = inverted ? cmyk[4 * x + 3] : 255 - cmyk[4 * x + 3];
    for (size_t c = 0; c < 3; ++c) {
      const int value = inverted ? cmyk[4 * x + c] : 255 - cmyk[4 * x + c];
      rgb[3 * x + c] = static_cast<uint8_t>((value * black + 127) / 255);
    }
  }
}

void read_rows(Decoder* d, const ImageInfo& info, uint8_t* out) {
  jpeg_decompress_struct& jpeg = d->jpeg;
  const auto common = reinterpret_cast<j_common_ptr>(&jpeg);
  const auto width = static_cast<size_t>(info.width);
  const bool cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  if (jpeg.output_width != width || jpeg.output_height != static_cast<unsigned>(info.height))
    give_up(common, "its size changes");
  JSAMPARRAY four =
      cmyk ? (*jpeg.mem->alloc_sarray)(common, JPOOL_IMAGE, static_cast<JDIMENSION>(4 * width), 1) : nullptr;
  while (jpeg.output_scanline < jpeg.output_height) {
    uint8_t* row = out + 3 * width * jpeg.output_scanline;
    JSAMPROW target = cmyk ? four[0] : row;
    jpeg_read_scanlines(&jpeg, &target, 1);
    if (cmyk) cmyk_to_rgb(four[0], jpeg.saw_Adobe_marker != 0, width, row);
  }
  jpeg_finish_decompress(&jpeg);
}

// setjmp wants a frame without destructors.
bool run(Decoder* d, std::string_view bytes, ImageInfo* info, uint8_t* out) {
  if (setjmp(d->out_of_here) != 0) return false;
  open(d, bytes);
  if (out != nullptr) {
    read_rows(d, *info, out);
    return true;
  }
  info->width = static_cast<int>(d->jpeg.image_width);
  info->height = static_cast<int>(d->jpeg.image_height);
  const size_t area = static_cast<size_t>(info->width) * static_cast<size_t>(info->height);
  // A progressive file's coefficients, 2 bytes each, are all kept.
  if (jpeg_has_multiple_scans(&d->jpeg)) info->decode_bytes = 2 * area * static_cast<size_t>(d->jpeg.num_components);
  return true;
}

}  // namespace

const char* read_jpeg_info(std::string_view bytes, ImageInfo* out) {
  Decoder d;
  d.deadline = Deadline::max();
  const bool good = run(&d, bytes, out, nullptr);
  jpeg_destroy_decompress(&d.jpeg);
  return good ? nullptr : d.why;
}

const char* decode_jpeg(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out) {
  Decoder d;
  d.deadline = deadline;
  ImageInfo size = info;
  const bool good = run(&d, bytes, &size, out);
  jpeg_destroy_decompress(&d.jpeg);
  return good ? nullptr : d.why;
}

}  // namespace deepinfer::serve
