#include <csetjmp>
#include <cstring>

#include <png.h>

#include "serve/images/codecs.h"

namespace deepinfer::serve {
namespace {

constexpr size_t kHeadBytes = 26;                // signature, and IHDR up to its colour type
constexpr png_alloc_size_t kChunkBytesMax = 1 << 20;  // of a text or colour profile, inflated
constexpr png_uint_32 kChunksMax = 128;

struct Reader {
  std::string_view rest;
  std::jmp_buf out_of_here;
  const char* why = nullptr;
};

[[noreturn]] void give_up(Reader* r, const char* why) {
  r->why = why;
  std::longjmp(r->out_of_here, 1);
}

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  const bool memory = std::strstr(text, "memory") != nullptr;
  give_up(static_cast<Reader*>(png_get_error_ptr(png)), memory ? kOutOfMemory : "the data is damaged");
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, size_t size) {
  auto* r = static_cast<Reader*>(png_get_io_ptr(png));
  if (size > r->rest.size()) give_up(r, "the file is cut off");
  std::memcpy(out, r->rest.data(), size);
  r->rest.remove_prefix(size);
}

void read_rows(Reader* r, png_structp png, png_infop info, const ImageInfo& size, Deadline deadline, uint8_t* out) {
  png_set_read_fn(png, r, &on_read);
  png_set_user_limits(png, static_cast<png_uint_32>(size.width), static_cast<png_uint_32>(size.height));
  png_set_chunk_malloc_max(png, kChunkBytesMax);
  png_set_chunk_cache_max(png, kChunksMax);
  png_read_info(png, info);
  if (png_get_image_width(png, info) != static_cast<png_uint_32>(size.width) ||
      png_get_image_height(png, info) != static_cast<png_uint_32>(size.height)) {
    give_up(r, "its size changes");
  }
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t row_bytes = 3 * static_cast<size_t>(size.width);
  if (png_get_rowbytes(png, info) != row_bytes) give_up(r, "it has an unknown kind of colour");
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < size.height; ++y) {
      if (y % 16 == 0 && std::chrono::steady_clock::now() > deadline) give_up(r, kOutOfTime);
      png_read_row(png, out + row_bytes * static_cast<size_t>(y), nullptr);
    }
  }
  png_read_end(png, nullptr);
}

// setjmp wants a frame without destructors.
bool run(Reader* r, png_structp png, png_infop info, const ImageInfo& size, Deadline deadline, uint8_t* out) {
  if (setjmp(r->out_of_here) != 0) return false;
  read_rows(r, png, info, size, deadline, out);
  return true;
}

int big_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value > 0x7fffffffu ? 0 : static_cast<int>(value);
}

}  // namespace

const char* read_png_info(std::string_view bytes, ImageInfo* out) {
  if (bytes.size() < kHeadBytes) return "the file is cut off";
  if (bytes.substr(12, 4) != "IHDR") return "the data is damaged";
  out->width = big_endian(bytes, 16);
  out->height = big_endian(bytes, 20);
  // Two rows of up to 8 bytes a pixel, at most.
  out->decode_bytes = 16 * static_cast<size_t>(out->width);
  return nullptr;
}

const char* decode_png(std::string_view bytes, const ImageInfo& info, Deadline deadline, uint8_t* out) {
  Reader r;
  r.rest = bytes;
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, &on_error, &on_warning);
  if (png == nullptr) return kOutOfMemory;
  png_infop chunks = png_create_info_struct(png);
  const bool good = chunks != nullptr && run(&r, png, chunks, info, deadline, out);
  png_destroy_read_struct(&png, &chunks, nullptr);
  if (good) return nullptr;
  return r.why != nullptr ? r.why : kOutOfMemory;
}

}  // namespace deepinfer::serve
