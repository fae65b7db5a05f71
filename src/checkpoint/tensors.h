// Which tensors a checkpoint of a given configuration holds: names, logical shapes, storage formats (spec/model.md 13).
//
//   for (const TensorSpec& t : expected_tensors(config)) {          // definition order of 19.4, vision last
//     stored_shape(t)   // {2304, 2560} for an FP4 matrix of 2304 x 5120
//     scale_shape(t)    // {2304, 160}; empty where there is no scale
//   }
//
// Every FP8 and FP4 `X.weight` has a sibling `X.scale` of ue8m0 bytes; scale_name() gives its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "numeric/dtype.h"

namespace deepinfer::checkpoint {

enum class Format : uint8_t {
  kF32,
  kBF16,
  kFp8,      // e4m3, one scale per 32 x 32 block
  kFp8Rows,  // e4m3, one scale per row and 32 columns (Engram tables)
  kFp4,      // e2m1, two codes a byte in I8, one scale per row and 32 columns (routed experts)
};

// What a tensor belongs to, for sizes and placement.
enum class Group : uint8_t {
  kEmbedding,     // token embedding and image vectors
  kAttention,     // projections, compressors, indexers, norms, mHC of the backbone
  kSharedExperts, // and router
  kRoutedExperts,
  kEngramTables,
  kEngramDense,
  kHead,          // final norm and lm head
  kDrafter,       // all of mtp.* but its routed experts
  kDrafterExperts,
  kVision,        // tower and aligner
};
inline constexpr int kGroups = 10;
std::string_view group_name(Group group);  // "routed experts"
std::string_view group_key(Group group);   // "routed_experts", for flags and JSON

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // logical [out, in]
  Format format = Format::kBF16;
  Group group = Group::kAttention;
  int layer = -1;  // backbone layer, or drafter stage for the drafter groups
};

std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

bool has_scale(Format format);
numeric::DType stored_dtype(Format format);
std::vector<int64_t> stored_shape(const TensorSpec& spec);
std::vector<int64_t> scale_shape(const TensorSpec& spec);  // {} without a scale
std::string scale_name(std::string_view weight_name);      // "a.weight" -> "a.scale"
uint64_t parameters(const TensorSpec& spec);
uint64_t stored_bytes(const TensorSpec& spec);  // with its scale

}  // namespace deepinfer::checkpoint
