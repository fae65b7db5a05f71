// An added token of a tokenizer (a think tag, the DSML marker): one id for a spelling that ordinary text can only write
// with other tokens.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::grammar {

struct AddedToken {
  std::string text;
  uint32_t token;
};

}  // namespace deepinfer::grammar
