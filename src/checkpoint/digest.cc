#include "checkpoint/digest.h"

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/mman.h>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace deepinfer::checkpoint {
namespace {

// Part of what a digest covers: raise it when the meaning of a digest changes.
constexpr std::string_view kVersion = "deepinfer checkpoint digest 1";
constexpr uint64_t kSamples = 64;
constexpr uint64_t kSampleBytes = 4096;

// No readahead while it lives: samples lie far apart, and readahead windows of large disks would make each cost
// megabytes.
class RandomAccess {
 public:
  explicit RandomAccess(std::span<const std::byte> file) : file_(file) { advise(MADV_RANDOM); }
  ~RandomAccess() { advise(MADV_NORMAL); }
  RandomAccess(const RandomAccess&) = delete;
  RandomAccess& operator=(const RandomAccess&) = delete;

 private:
  void advise(int advice) const {
    if (!file_.empty()) (void)::madvise(const_cast<std::byte*>(file_.data()), file_.size(), advice);
  }
  std::span<const std::byte> file_;
};

// 64 pieces spread over the data of a file, first and last included; all of it when it is small.
void add_samples(std::span<const std::byte> data, Sha256* hash) {
  if (data.size() <= kSamples * kSampleBytes) return hash->add(data);
  for (uint64_t i = 0; i < kSamples; ++i) {
    const uint64_t last = data.size() - kSampleBytes;
    const uint64_t at = static_cast<uint64_t>(static_cast<unsigned __int128>(last) * i / (kSamples - 1));
    hash->add(data.subspan(at, kSampleBytes));
  }
}

void add_model(const Checkpoint& checkpoint, Sha256* hash) {
  hash->add_text(kVersion);
  hash->add_text(checkpoint.config().to_json());
  const std::span<const int32_t> classes = checkpoint.engram_token_classes();
  hash->add_number(classes.size());
  hash->add(std::as_bytes(classes));
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size());
}
void Sha256::add(std::string_view text) { add(std::as_bytes(std::span(text))); }

void Sha256::add_number(uint64_t v) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(v >> (8 * i));
  add(bytes);
}

void Sha256::add_text(std::string_view text) {
  add_number(text.size());
  add(text);
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out;
  unsigned int n = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), out.data(), &n);
  std::string hex;
  for (unsigned int i = 0; i < n; ++i) hex += fmt::format("{:02x}", out[i]);
  return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

std::string Checkpoint::digest() const {
  Sha256 hash;
  add_model(*this, &hash);
  for (const SafetensorsFile& file : files()) {
    const RandomAccess no_readahead(file.bytes());
    hash.add_number(file.bytes().size());
    hash.add(file.bytes().first(file.header_bytes()));
    add_samples(file.bytes().subspan(file.header_bytes()), &hash);
  }
  return hash.finish();
}

Checkpoint::FullDigest Checkpoint::full_digest(int threads) const {
  FullDigest result;
  result.files.resize(files().size());
  ThreadPool pool(threads);
  pool.parallel_for(static_cast<int64_t>(files().size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const SafetensorsFile& file = files()[static_cast<size_t>(i)];
      result.files[static_cast<size_t>(i)] = {base_name(file.path()), sha256_hex(file.bytes())};
    }
  });
  Sha256 hash;
  add_model(*this, &hash);
  for (const auto& [name, sum] : result.files) hash.add_text(sum);
  result.digest = hash.finish();
  return result;
}

}  // namespace deepinfer::checkpoint
