// Engram's map from token id to class (spec/model.md 10.1).
//
//   Result<std::vector<int32_t>> classes = load_engram_classes(directory, config);
//
// engram_token_classes.json ({"classes": [..]}, one entry a token id) is part of the checkpoint and is taken as it is;
// without it the map is built from tokenizer.json and refused unless it has engram_compressed_vocab_size classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"

namespace deepinfer::checkpoint {

Result<std::vector<int32_t>> load_engram_classes(const std::string& directory, const ModelConfig& config);

// The rule itself on the content of a tokenizer.json: classes of ids 0 .. vocab_size - 1 in first-seen numbering.
Result<std::vector<int32_t>> build_engram_classes(std::string_view tokenizer_json, int64_t vocab_size);

}  // namespace deepinfer::checkpoint
