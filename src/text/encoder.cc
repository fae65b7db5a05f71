#include "text/encoder.h"

#include <algorithm>
#include <cstring>

namespace deepinfer::text {
namespace {

// The cache's key of a piece longer than PieceKey holds.
PieceKey long_key(const char* piece, uint32_t size) {
  const uint64_t hash = hash_bytes({piece, size});
  return {hash, load_u64(piece + size - 8), hash, size};
}

}  // namespace

Encoder::Encoder(Bpe bpe, const Vocabulary& vocabulary) : bpe_(std::move(bpe)) {
  std::vector<std::pair<std::string_view, TokenId>> pieces;
  bpe_.for_each_whole([&](TokenId id) {
    const std::string_view bytes = vocabulary.bytes(id);
    if (bytes.size() <= PieceKey::kMaxBytes) pieces.emplace_back(bytes, id);
  });
  whole_.build(pieces);
}

void Encoder::encode(std::string_view text, Scratch* scratch, std::vector<TokenId>* ids) const {
  const char* const text_end = text.data() + text.size();
  scratch->splitter.start(text);
  while (scratch->splitter.next()) {
    const std::span<const uint32_t> starts = scratch->splitter.starts();
    const char* base = scratch->splitter.base();
    const size_t bytes = starts.back(), pieces = starts.size() - 1;
    if (static_cast<size_t>(text_end - base) < bytes + PieceKey::kMaxBytes) {  // make_key would read past the text
      scratch->padded.resize(bytes + PieceKey::kMaxBytes);
      std::memcpy(scratch->padded.data(), base, bytes);
      base = scratch->padded.data();
    }
    if (scratch->ids.size() < bytes) scratch->ids.resize(bytes);
    TokenId* out = scratch->ids.data();
    for (size_t i = 0; i < pieces; i += kGroup) out = encode_group(base, starts.data() + i, std::min(kGroup, pieces - i), scratch, out);
    ids->insert(ids->end(), scratch->ids.data(), out);
  }
}

TokenId* Encoder::encode_group(const char* base, const uint32_t* starts, size_t count, Scratch* scratch, TokenId* out) const {
  std::array<PieceKey, kGroup> keys;
  std::array<TokenId, kGroup> found;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t size = starts[i + 1] - starts[i];
    if (size <= PieceKey::kMaxBytes) {
      keys[i] = make_key(base + starts[i], size);
      whole_.prefetch(keys[i]);
    } else {
      keys[i] = long_key(base + starts[i], size);
      scratch->cache.prefetch(keys[i].hash);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    found[i] = keys[i].size <= PieceKey::kMaxBytes ? whole_.find(keys[i]) : -1;
    if (found[i] < 0) scratch->cache.prefetch(keys[i].hash);
  }
  for (size_t i = 0; i < count; ++i) {
    if (found[i] >= 0) {
      *out++ = found[i];
    } else {
      out = encode_piece(keys[i], base + starts[i], scratch, out);
    }
  }
  return out;
}

TokenId* Encoder::encode_piece(const PieceKey& key, const char* piece, Scratch* scratch, TokenId* out) const {
  const std::span<const TokenId> known = scratch->cache.find(key, piece);
  if (!known.empty()) return std::copy(known.begin(), known.end(), out);
  const size_t count = bpe_.encode({piece, key.size}, &scratch->bpe, out);
  scratch->cache.insert(key, piece, {out, count});
  return out + count;
}

}  // namespace deepinfer::text
