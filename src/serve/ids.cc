#include "serve/ids.h"

#include <sys/random.h>

#include <array>
#include <cstdlib>

namespace deepinfer::serve {
namespace {

// From the system's generator, so that nobody can guess the id of another's response; fetched in stocks.
uint64_t random_word() {
  thread_local std::array<uint64_t, 32> words;
  thread_local size_t left = 0;
  if (left == 0) {
    if (::getrandom(words.data(), sizeof words, 0) != static_cast<ssize_t>(sizeof words)) std::abort();
    left = words.size();
  }
  return words[--left];
}

void append_base62(std::string& out, uint64_t word, int digits) {
  static constexpr char kDigits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (int i = 0; i < digits; ++i, word /= 62) out += kDigits[word % 62];
}

}  // namespace

IdSource::IdSource(bool numbered) : numbered_(numbered) {}

std::string IdSource::next(std::string_view prefix) {
  std::string out(prefix);
  if (numbered_) return out + std::to_string(++count_);
  append_base62(out, random_word(), 10);
  append_base62(out, random_word(), 10);
  return out;
}

}  // namespace deepinfer::serve
