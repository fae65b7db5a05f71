#include "kv/cache_key.h"

#include <openssl/evp.h>

#include <cstring>
#include <memory>

namespace deepinfer::kv {
namespace {

class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(const void* data, size_t bytes) { EVP_DigestUpdate(context_.get(), data, bytes); }
  void add_count(uint64_t n) {
    std::array<uint8_t, 8> b;
    for (int i = 0; i < 8; ++i) b[i] = static_cast<uint8_t>(n >> (8 * i));
    add(b.data(), b.size());
  }
  // Length first, so that fields cannot run into each other.
  void add_text(const std::string& s) {
    add_count(s.size());
    add(s.data(), s.size());
  }
  BlockKey finish() {
    std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
    unsigned n = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &n);
    BlockKey key;
    std::memcpy(key.bytes.data(), digest.data(), key.bytes.size());
    return key;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace

std::string BlockKey::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string s;
  for (uint8_t b : bytes) {
    s += kDigits[b >> 4];
    s += kDigits[b & 15];
  }
  return s;
}

size_t BlockKeyHash::operator()(const BlockKey& k) const {
  size_t h;  // the bytes are uniform already
  std::memcpy(&h, k.bytes.data(), sizeof h);
  return h;
}

BlockKey root_key(const CacheScope& scope) {
  Hasher h;
  h.add_text("deepinfer-kv-1");
  h.add_text(scope.checkpoint);
  h.add_text(scope.layout);
  h.add_text(scope.kv_dtype);
  h.add_text(scope.numeric_class);
  h.add_count(static_cast<uint64_t>(scope.replay));
  h.add_text(scope.tenant);
  return h.finish();
}

BlockKey windows_key(const BlockKey& block) {
  Hasher h;
  h.add_text("deepinfer-windows-1");
  h.add(block.bytes.data(), block.bytes.size());
  return h.finish();
}

BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens, std::span<const ImageDigest> images) {
  Hasher h;
  h.add(parent.bytes.data(), parent.bytes.size());
  h.add_count(tokens.size());
  h.add(tokens.data(), tokens.size_bytes());
  h.add_count(images.size());
  for (const ImageDigest& d : images) h.add(d.data(), d.size());
  return h.finish();
}

}  // namespace deepinfer::kv
