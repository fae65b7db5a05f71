// Reads and checks a Hugging Face tokenizer.json; the rest of this room sees only a TokenizerFile.
//
//   DI_ASSIGN_OR_RETURN(TokenizerFile file, read_tokenizer_json(json));
//
// Accepted is a BPE model behind DeepSeek's pre-tokenizer (spec/protocol.md 1.1), merges as "a b" or ["a", "b"].
// Errors: kInvalidArgument for damaged files, kUnsupported for other kinds of tokenizer; both name the place.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

struct TokenizerFile {
  struct Added {
    TokenId id;
    std::string_view content;
    bool special;
    bool normalized;  // matched in a second pass over what the tokens without this flag left
  };
  struct Merge {
    std::string_view left, right;
  };
  // Vocabulary strings by id, in GPT-2's byte-to-character spelling; data() is null where an id is missing.
  std::vector<std::string_view> vocab;
  std::vector<Merge> merges;
  std::vector<Added> added;
  std::shared_ptr<void> storage;  // what the views point into
};

Result<TokenizerFile> read_tokenizer_json(std::string_view json);

}  // namespace deepinfer::text
