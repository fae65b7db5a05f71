#include "recipe/sealed.h"

#include <cstring>
#include <memory>

#include <openssl/evp.h>
#include <openssl/rand.h>

namespace deepinfer::recipe {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kNonceBytes = 12;
constexpr size_t kTagBytes = 16;
constexpr size_t kHeaderBytes = 1 + 4 + kNonceBytes;
constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

std::string encode_base64url(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t bits = 0;
  int count = 0;
  for (unsigned char c : bytes) {
    bits = (bits << 8) | c;
    for (count += 8; count >= 6; count -= 6) out += kAlphabet[(bits >> (count - 6)) & 63];
  }
  if (count > 0) out += kAlphabet[(bits << (6 - count)) & 63];
  return out;
}

bool decode_base64url(std::string_view text, std::string& out) {
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const char* at = static_cast<const char*>(std::memchr(kAlphabet, c, 64));
    if (at == nullptr) return false;
    bits = (bits << 6) | static_cast<uint32_t>(at - kAlphabet);
    if ((count += 6) >= 8) {
      count -= 8;
      out += static_cast<char>((bits >> count) & 0xff);
    }
  }
  // Left-over bits must be zero, so that each blob has one spelling.
  return count < 6 && (bits & ((1u << count) - 1)) == 0;
}

struct ContextDeleter {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter>;

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Status bad_blob() {
  return Status(Code::kInvalidArgument,
                "the encrypted content was not made by this service for this model, or was changed");
}

}  // namespace

Result<Sealer> Sealer::create(std::vector<Key> keys, std::string model_family) {
  if (keys.empty()) return Status(Code::kInvalidArgument, "sealing reasoning needs at least one key");
  Sealer sealer;
  sealer.model_family_ = std::move(model_family);
  for (const Key& key : keys) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (EVP_Digest(key.data(), key.size(), digest, nullptr, EVP_sha256(), nullptr) != 1) {
      return Status(Code::kInternal, "SHA-256 is not available");
    }
    Named& named = sealer.keys_.emplace_back();
    named.key = key;
    std::memcpy(named.id.data(), digest, named.id.size());
  }
  return sealer;
}

std::string Sealer::seal(std::string_view text) const {
  const Named& key = keys_.front();
  std::string raw(kHeaderBytes + text.size() + kTagBytes, '\0');
  auto* out = reinterpret_cast<unsigned char*>(raw.data());
  out[0] = kVersion;
  std::memcpy(out + 1, key.id.data(), key.id.size());
  const Context context(EVP_CIPHER_CTX_new());
  int n = 0;
  const bool sealed =
      RAND_bytes(out + 5, kNonceBytes) == 1 && context != nullptr &&
      EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.key.data(), out + 5) == 1 &&
      EVP_EncryptUpdate(context.get(), nullptr, &n, out, 5) == 1 &&
      EVP_EncryptUpdate(context.get(), nullptr, &n, bytes_of(model_family_), static_cast<int>(model_family_.size())) ==
          1 &&
      EVP_EncryptUpdate(context.get(), out + kHeaderBytes, &n, bytes_of(text), static_cast<int>(text.size())) == 1 &&
      EVP_EncryptFinal_ex(context.get(), out + kHeaderBytes + text.size(), &n) == 1 &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, out + kHeaderBytes + text.size()) == 1;
  if (!sealed) return {};  // an item without encrypted content is valid; plain text in its place would not be
  return encode_base64url(raw);
}

Result<std::string> Sealer::open(std::string_view blob) const {
  std::string raw;
  if (blob.size() > kBlobBytesMax || !decode_base64url(blob, raw) || raw.size() < kHeaderBytes + kTagBytes)
    return bad_blob();
  const unsigned char* in = bytes_of(raw);
  if (in[0] != kVersion) return bad_blob();
  const size_t size = raw.size() - kHeaderBytes - kTagBytes;
  for (const Named& key : keys_) {
    if (std::memcmp(in + 1, key.id.data(), key.id.size()) != 0) continue;
    std::string text(size, '\0');
    const Context context(EVP_CIPHER_CTX_new());
    int n = 0;
    const bool opened = context != nullptr &&
                        EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.key.data(), in + 5) == 1 &&
                        EVP_DecryptUpdate(context.get(), nullptr, &n, in, 5) == 1 &&
                        EVP_DecryptUpdate(context.get(), nullptr, &n, bytes_of(model_family_),
                                          static_cast<int>(model_family_.size())) == 1 &&
                        EVP_DecryptUpdate(context.get(), reinterpret_cast<unsigned char*>(text.data()), &n,
                                          in + kHeaderBytes, static_cast<int>(size)) == 1 &&
                        EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes,
                                            const_cast<unsigned char*>(in + kHeaderBytes + size)) == 1 &&
                        EVP_DecryptFinal_ex(context.get(), nullptr, &n) == 1;
    if (opened) return text;
  }
  return bad_blob();
}

}  // namespace deepinfer::recipe
