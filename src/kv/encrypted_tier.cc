#include "kv/encrypted_tier.h"

#include <sodium.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr size_t kNonce = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES,
                 kTag = crypto_aead_xchacha20poly1305_ietf_ABYTES;
constexpr size_t kBuffersMax = 128;

size_t sealed_bytes(size_t record) { return record_bytes(0, kNonce + record + kTag); }

const unsigned char* bytes_of(std::span<const std::byte> s) { return reinterpret_cast<const unsigned char*>(s.data()); }
unsigned char* bytes_of(std::span<std::byte> s) { return reinterpret_cast<unsigned char*>(s.data()); }

}  // namespace

Result<EncryptionKey> read_encryption_key(const std::string& path) {
  const auto bad = [&path](std::string_view what) {
    return make_error(Code::kInvalidArgument,
                      "{} {}; make a key with: head -c 32 /dev/urandom > {} && chmod 600 {}", path, what, path, path);
  };
  DI_ASSIGN_OR_RETURN(std::string text, read_file(path, 4096));
  struct stat st = {};
  if (::stat(path.c_str(), &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0) return bad("can be read by others");
  EncryptionKey key;
  if (text.size() == key.size()) {
    std::memcpy(key.data(), text.data(), key.size());
    return key;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  size_t n = 0;
  if (text.size() != 2 * key.size() ||
      sodium_hex2bin(key.data(), key.size(), text.data(), text.size(), nullptr, &n, nullptr) != 0 || n != key.size())
    return bad("holds neither 32 bytes nor 64 hexadecimal digits");
  return key;
}

EncryptedTier::EncryptedTier(std::shared_ptr<Tier> below, const EncryptionKey& key)
    : below_(std::move(below)), key_(key) {
  if (sodium_init() < 0) std::abort();  // no source of randomness: nothing may be encrypted
}

EncryptedTier::~EncryptedTier() {
  for (const auto& [ticket, get] : gets_) below_->cancel(ticket);
  sodium_memzero(key_.data(), key_.size());
}

Tier::Ticket EncryptedTier::get(const BlockKey& key, std::span<std::byte> into) {
  std::vector<std::byte> buffer;
  if (!buffers_.empty()) {
    buffer = std::move(buffers_.back());
    buffers_.pop_back();
  }
  buffer.resize(sealed_bytes(into.size()));
  const Ticket ticket = below_->get(key, buffer);
  gets_[ticket] = {.key = key, .into = into, .sealed = std::move(buffer)};
  return ticket;
}

Tier::Ticket EncryptedTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  payload_.resize(kNonce + record.size() + kTag);
  const std::span<std::byte> nonce = std::span(payload_).first(kNonce);
  randombytes_buf(nonce.data(), nonce.size());
  unsigned long long written = 0;
  crypto_aead_xchacha20poly1305_ietf_encrypt(bytes_of(std::span(payload_).subspan(kNonce)), &written, bytes_of(record),
                                             record.size(), key.bytes.data(), key.bytes.size(), nullptr,
                                             bytes_of(nonce), key_.data());
  sealed_.resize(record_bytes(0, payload_.size()));
  seal_record(key, {}, payload_, sealed_);
  return below_->put(key, sealed_, info);
}

void EncryptedTier::open(const Get& get, Completion* done) const {
  const auto sealed = std::span<const std::byte>(get.sealed).first(std::min(done->bytes, get.sealed.size()));
  const Result<std::span<const std::byte>> payload = open_record(sealed, get.key, {});
  const bool large_enough = payload.ok() && payload.value().size() >= kNonce + kTag;
  const size_t bytes = large_enough ? payload.value().size() - kNonce - kTag : 0;
  unsigned long long written = 0;
  if (large_enough && bytes <= get.into.size() &&
      crypto_aead_xchacha20poly1305_ietf_decrypt(bytes_of(get.into), &written, nullptr,
                                                 bytes_of(payload.value().subspan(kNonce)), bytes + kTag,
                                                 get.key.bytes.data(), get.key.bytes.size(), bytes_of(payload.value()),
                                                 key_.data()) == 0) {
    done->bytes = bytes;
    return;
  }
  done->bytes = 0;
  done->status = Status(Code::kNotFound, "the record was not written with this key");
}

size_t EncryptedTier::poll(std::span<Completion> done) {
  const size_t n = below_->poll(done);
  for (size_t i = 0; i < n; ++i) {
    const auto at = gets_.find(done[i].ticket);
    if (at == gets_.end()) continue;
    done[i].checked = false;
    if (done[i].status.ok()) open(at->second, &done[i]);
    if (buffers_.size() < kBuffersMax) buffers_.push_back(std::move(at->second.sealed));
    gets_.erase(at);
  }
  return n;
}

void EncryptedTier::cancel(Ticket ticket) {
  below_->cancel(ticket);
  gets_.erase(ticket);
}

}  // namespace deepinfer::kv
