// Encrypted reasoning that travels through the client (spec/protocol.md 10.7): readable only by servers that hold the
// key, and only for the same model family.
//
//   DI_ASSIGN_OR_RETURN(Sealer sealer, Sealer::create({key}, "deepseek-v4.1"));
//   std::string blob = sealer.seal(reasoning);            // "encrypted_content" of a reasoning item
//   Result<std::string> text = sealer.open(blob);         // kInvalidArgument for anything not sealed by us
//
// A blob is base64url without padding of: version byte, 4 bytes key id, 12 bytes random nonce, AES-256-GCM ciphertext,
// 16 bytes tag. Version, key id and model family are authenticated. The first key seals, all keys open, so that keys
// can be rotated. Thread-safe. Random nonces: at most 2^32 blobs per key.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::recipe {

class Sealer {
 public:
  using Key = std::array<uint8_t, 32>;
  static constexpr size_t kBlobBytesMax = 16u << 20;  // longer blobs are refused before decoding

  static Result<Sealer> create(std::vector<Key> keys, std::string model_family);

  std::string seal(std::string_view text) const;
  Result<std::string> open(std::string_view blob) const;

 private:
  struct Named {
    std::array<uint8_t, 4> id;
    Key key;
  };
  std::vector<Named> keys_;
  std::string model_family_;
};

}  // namespace deepinfer::recipe
