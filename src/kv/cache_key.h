// What cached KV is known by (design.md 5, decision 2). A key covers everything that its bytes depend on, so that a
// different checkpoint, layout, KV type, backend, replay mode, tenant, image or earlier token can never name the same
// block.
//
//   CacheScope scope{.checkpoint = digest, .layout = "v41-p128-1", .kv_dtype = "packed",
//                    .numeric_class = caps.numeric_class, .replay = Replay::kExact, .tenant = "acme"};
//   BlockKey k = root_key(scope);
//   k = next_key(k, tokens.subspan(0, 128), images);    // block 0
//   k = next_key(k, tokens.subspan(128, 128), {});      // block 1: covers block 0 through the chain
//
// Keys are the first 16 bytes of SHA-256, so nobody can make two prompts share a key on purpose; hits compare tokens as
// well. `images` are the digests of the images that have a position in the block, in order.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace deepinfer::kv {

struct BlockKey {
  std::array<uint8_t, 16> bytes = {};
  auto operator<=>(const BlockKey&) const = default;
  std::string hex() const;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& k) const;
};

using ImageDigest = std::array<uint8_t, 32>;

// How encoder windows are made again when a hit has no snapshot (design.md 6). Blocks computed behind a bounded replay
// depend on where hits ended, so they live under keys of their own.
enum class Replay : uint8_t { kExact = 0, kBounded = 1 };

struct CacheScope {
  std::string checkpoint;     // digest, RoPE parameters included
  std::string layout;         // name and version of page and slot layout
  std::string kv_dtype;
  std::string numeric_class;  // the writer's backend and summation trees
  Replay replay = Replay::kExact;
  std::string tenant;         // namespace; tenants never see each other's blocks
};

BlockKey root_key(const CacheScope& scope);
BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens, std::span<const ImageDigest> images);
// Of the encoder windows before the border behind `block` (design.md 6), which lower tiers keep beside the blocks.
BlockKey windows_key(const BlockKey& block);

}  // namespace deepinfer::kv
