// Log-probability entries of Chat Completions and Responses (spec/protocol.md 9.5): for each token its text, its
// natural log-probability and its true bytes; where a token alone is not valid UTF-8 the text has U+FFFD, the bytes do
// not.
//
//   append_logprob_entry(out, vocabulary, {50042, -0.75, top});
//   // {"token":"Fort","logprob":-0.75,"bytes":[70,111,114,116],"top_logprobs":[...]}
#pragma once

#include <string>
#include <string_view>

#include "recipe/output_events.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::recipe {

void append_logprob_entry(std::string& out, const OutputVocabulary& vocabulary, const TokenLogprob& token);

// `bytes` with U+FFFD for what is not valid UTF-8.
std::string printable(std::string_view bytes);

// Shortest digits that give the same number back; a value that is a float prints as one. Not finite: -9999.0, the value
// of what cannot be sampled.
void append_logprob(std::string& out, double logprob);

}  // namespace deepinfer::recipe
