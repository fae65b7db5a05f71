// DeepSeek's pre-tokenizer: cuts text into the pieces inside which BPE merges (spec/protocol.md 1.1).
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace deepinfer::text {

// Appends the end of each piece of valid UTF-8; pieces are adjacent and cover the text.
void split_pieces(std::string_view text, std::vector<size_t>* ends);

}  // namespace deepinfer::text
