// Encryption at rest: a Tier whose records are sealed with a secret key before they reach the tier below it.
//
//   DI_ASSIGN_OR_RETURN(EncryptionKey key, read_encryption_key("/etc/deepinfer/kv.key"));
//   auto ssd = std::make_shared<EncryptedTier>(std::move(plain_ssd), key);
//
// XChaCha20-Poly1305 of libsodium with a random nonce a record; the block's key is authenticated along, so that records
// cannot change places. What is stored is a record again (kv/record.h) under the same key, without tokens, whose
// payload is nonce, ciphertext and tag: every store checks and recovers it as it does any other. Tokens and KV are
// secret; sizes, keys (hashes), tenants' hashes and times are not. A record of another key, or a plain one, is a miss.
// Work is done in put() and poll(): about 2 GB/s of one core. Limits and errors as the tier below. One thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/tier.h"

namespace deepinfer::kv {

using EncryptionKey = std::array<uint8_t, 32>;

// A file of 32 bytes, or of 64 hexadecimal digits, that only its owner can read. Errors say what is wrong with it.
Result<EncryptionKey> read_encryption_key(const std::string& path);

class EncryptedTier : public Tier {
 public:
  EncryptedTier(std::shared_ptr<Tier> below, const EncryptionKey& key);
  ~EncryptedTier() override;

  std::string_view name() const override { return below_->name(); }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override;
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Known known_prefix(std::span<const BlockKey> keys) const override { return below_->known_prefix(keys); }
  void erase(const BlockKey& key) override { below_->erase(key); }
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

 private:
  struct Get {
    BlockKey key;
    std::span<std::byte> into;
    std::vector<std::byte> sealed;
  };
  void open(const Get& get, Completion* done) const;

  const std::shared_ptr<Tier> below_;
  EncryptionKey key_;
  std::unordered_map<Ticket, Get> gets_;
  std::vector<std::vector<std::byte>> buffers_;  // to be used again
  std::vector<std::byte> payload_, sealed_;
};

}  // namespace deepinfer::kv
