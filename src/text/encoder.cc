#include "text/encoder.h"

#include <algorithm>
#include <cstring>

namespace deepinfer::text {
namespace {

// The key of a piece longer than a PieceKey holds: only its hash and size count.
PieceKey long_key(const char* piece, uint32_t size) { return {0, 0, hash_bytes({piece, size}), size}; }

// Copies kSlack ids at once where there are not more: a copy of unknown length costs a misprediction.
TokenId* copy_ids(std::span<const TokenId> ids, TokenId* out) {
  if (ids.size() <= WordCache::kSlack) {
    std::memcpy(out, ids.data(), WordCache::kSlack * sizeof(TokenId));
  } else {
    std::memcpy(out, ids.data(), ids.size_bytes());
  }
  return out + ids.size();
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
  const size_t ids_before = ids->size();
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
    if (scratch->ids.size() < bytes + WordCache::kSlack) {
      scratch->ids.resize(bytes + WordCache::kSlack);
      scratch->merged.resize(bytes + WordCache::kSlack);
    }
    TokenId* out = scratch->ids.data();
    for (size_t i = 0; i < pieces; i += kGroup)
      out = encode_group(base, starts.data() + i, std::min(kGroup, pieces - i), scratch, out);
    const size_t made = static_cast<size_t>(out - scratch->ids.data());
    if (ids->capacity() - ids->size() < made) {  // room for the rest, should it be like what came before
      const size_t done = static_cast<size_t>(scratch->splitter.base() - text.data()) + bytes;
      const double ids_per_byte = static_cast<double>(ids->size() - ids_before + made) / static_cast<double>(done);
      const size_t rest = static_cast<size_t>(1.1 * ids_per_byte * static_cast<double>(text.size() - done));
      ids->reserve(std::max(ids->size() + made + rest, 3 * ids->capacity() / 2));
    }
    ids->insert(ids->end(), scratch->ids.data(), out);
  }
}

TokenId* Encoder::encode_group(const char* base, const uint32_t* starts, size_t count, Scratch* scratch,
                               TokenId* out) const {
  std::array<PieceKey, kGroup> keys;
  std::array<size_t, kGroup> whole_places;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t size = starts[i + 1] - starts[i];
    if (size <= PieceKey::kMaxBytes) {
      keys[i] = make_key(base + starts[i], size);
      whole_places[i] = whole_.locate(keys[i]);
      // Known to be no token: the cache is next. Selected by a mask, since a branch would be a coin toss.
      const auto near = reinterpret_cast<uintptr_t>(base),
                 cached = reinterpret_cast<uintptr_t>(scratch->cache.address(keys[i].hash));
      const uintptr_t unknown = uintptr_t{0} - static_cast<uintptr_t>(whole_places[i] == 0);
      __builtin_prefetch(reinterpret_cast<const void*>(near ^ ((near ^ cached) & unknown)));
    } else {
      keys[i] = long_key(base + starts[i], size);
      scratch->cache.prefetch(keys[i].hash);
    }
  }
  struct Ids {
    const TokenId* ids;
    uint32_t count;
  };
  std::array<TokenId, kGroup + WordCache::kSlack> found;
  std::array<Ids, kGroup> of_piece;
  std::array<uint8_t, kGroup + 1> missing;
  size_t missing_count = 0;
  for (size_t i = 0; i < count; ++i) {
    found[i] = keys[i].size <= PieceKey::kMaxBytes ? whole_.read(whole_places[i], keys[i]) : -1;
    of_piece[i] = {&found[i], 1};
    missing[missing_count] = static_cast<uint8_t>(i);
    missing_count += found[i] < 0;
  }
  if (missing_count == 0) return std::copy_n(found.data(), count, out);

  for (size_t m = 0; m < missing_count; ++m) scratch->cache.prefetch(keys[missing[m]].hash);
  std::array<WordCache::Place, kGroup> places;
  for (size_t m = 0; m < missing_count; ++m) places[m] = scratch->cache.locate(keys[missing[m]].hash);
  std::array<Bpe::Job, kGroup> jobs;
  std::array<uint8_t, kGroup> piece_of;
  size_t job_count = 0;
  for (size_t m = 0; m < missing_count; ++m) {
    const size_t i = missing[m];
    const char* const piece = base + starts[i];
    const std::span<const TokenId> known = scratch->cache.read(places[m], keys[i], piece);
    of_piece[i] = {known.data(), static_cast<uint32_t>(known.size())};
    if (!known.empty()) continue;
    piece_of[job_count] = static_cast<uint8_t>(i);
    jobs[job_count++] = {piece, keys[i].size, 0, scratch->merged.data() + (starts[i] - starts[0])};
  }
  if (job_count > 0) bpe_.encode({jobs.data(), job_count}, &scratch->bpe);
  for (size_t j = 0; j < job_count; ++j) of_piece[piece_of[j]] = {jobs[j].ids, jobs[j].count};
  for (size_t i = 0; i < count; ++i) out = copy_ids({of_piece[i].ids, of_piece[i].count}, out);
  // Only now, since what the cache has given out lasts until it takes something in.
  for (size_t j = 0; j < job_count; ++j)
    scratch->cache.insert(keys[piece_of[j]].hash, {jobs[j].piece, jobs[j].size}, {jobs[j].ids, jobs[j].count});
  return out;
}

}  // namespace deepinfer::text
