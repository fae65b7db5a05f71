#include "recipe/echo.h"

#include "recipe/logprobs.h"

namespace deepinfer::recipe {

std::vector<std::string> echoed_prompts(const Request& request, const OutputVocabulary& vocabulary) {
  std::vector<std::string> out;
  if (!request.completion || !request.completion->echo) return out;
  for (const CompletionPrompt& prompt : request.completion->prompts) {
    std::string text = prompt.text;
    for (const int32_t id : prompt.ids) {
      const OutputToken token = vocabulary.at(id);
      if (token.kind != TokenKind::kSilent) text += token.bytes;
    }
    out.push_back(printable(text));
  }
  return out;
}

}  // namespace deepinfer::recipe
