// images_fuzz [--seed S] [--rounds N]: damaged image files through the decoder: bytes changed, cut, repeated, moved,
// and joined from two files. Every result must be an error or the pixels that the head promised. Prints the seed of a
// failing round; crashes and overruns are the sanitizers' to find.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "serve/images/decode.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::serve;

constexpr const char* kFiles[] = {"baseline.jpg",  "progressive.jpg", "gray.jpg",       "cmyk.jpg",
                                  "rgb.png",       "palette.png",     "deep.png",       "interlaced.png",
                                  "alpha.png",     "lossy.webp",      "lossless.webp",  "alpha.webp",
                                  "animated.webp", "still.gif",       "interlaced.gif", "animated.gif"};
constexpr int kSideMax = 512;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutate(const std::vector<std::string>& files) {
    std::string bytes = files[below(files.size())];
    for (size_t n = 1 + below(4); n > 0 && !bytes.empty(); --n) change(files, &bytes);
    return bytes;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

  void change(const std::vector<std::string>& files, std::string* bytes) {
    const size_t at = below(bytes->size());
    switch (below(8)) {
      case 0:
        (*bytes)[at] = static_cast<char>(random_());
        break;
      case 1:
        (*bytes)[at] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        bytes->resize(at);
        break;
      case 3:
        bytes->erase(at, 1 + below(16));
        break;
      case 4:
        bytes->insert(at, bytes->substr(below(bytes->size()), 1 + below(64)));
        break;
      case 5: {  // a number at the edge of what it may be
        constexpr unsigned char kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
        for (size_t i = at; i < std::min(at + 1 + below(4), bytes->size()); ++i)
          (*bytes)[i] = static_cast<char>(kEdges[below(5)]);
        break;
      }
      case 6: {
        const std::string& other = files[below(files.size())];
        bytes->resize(at);
        bytes->append(other, below(other.size()));
        break;
      }
      default:
        for (size_t i = 0; i < 4; ++i) (*bytes)[below(bytes->size())] = static_cast<char>(random_());
    }
  }

  std::mt19937_64 random_;
};

bool holds(const std::string& bytes, size_t* good) {
  ImageInfo info;
  if (read_image_info(bytes, kSideMax, &info)) return true;
  if (info.width < 1 || info.height < 1 || info.width > kSideMax || info.height > kSideMax) return false;
  Pixels pixels;
  if (decode_image(bytes, info, std::chrono::steady_clock::now() + std::chrono::seconds(10), &pixels)) return true;
  ++*good;
  return pixels.rgb.size() == 3 * static_cast<size_t>(info.width) * static_cast<size_t>(info.height);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1, rounds = 40'000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::strtoull(argv[i + 1], nullptr, 10);
  }
  std::vector<std::string> files;
  for (const char* name : kFiles)
    files.push_back(read_file(std::string("tests/data/serve/images/") + name, 1 << 20).value());
  size_t good = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Mutator mutator(seed + round);
    if (holds(mutator.mutate(files), &good)) continue;
    fmt::print("failed: images_fuzz --seed {} --rounds 1\n", seed + round);
    return 1;
  }
  fmt::print("{} damaged files: {} decoded all the same, {} refused\n", rounds, good, rounds - good);
  return good == 0 ? 1 : 0;
}
