#include "recipe/echo.h"

#include "recipe/logprobs.h"

namespace deepinfer::recipe {

std::string echoed_prompt(const Request& request, const OutputVocabulary& vocabulary) {
  if (!request.completion || !request.completion->echo) return {};
  std::string text = request.completion->prompt;
  for (const int32_t id : request.completion->prompt_ids) {
    const OutputToken token = vocabulary.at(id);
    if (token.kind != TokenKind::kSilent) text += token.bytes;
  }
  return printable(text);
}

}  // namespace deepinfer::recipe
