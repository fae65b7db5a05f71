#include "recipe/echo.h"

#include "recipe/logprobs.h"

namespace deepinfer::recipe {

Result<std::vector<std::string>> echoed_prompts(const Request& request, const OutputVocabulary& vocabulary) {
  std::vector<std::string> out;
  if (!request.completion || !request.completion->echo) return out;
  const size_t bytes_max = kEchoBytesMax / static_cast<size_t>(request.inference.n);
  size_t bytes = 0;
  for (const CompletionPrompt& prompt : request.completion->prompts) {
    std::string text = prompt.text;
    for (const int32_t id : prompt.ids) {
      const OutputToken token = vocabulary.at(id);
      if (token.kind != TokenKind::kSilent) text += token.bytes;
      if (text.size() > bytes_max) break;
    }
    bytes += out.emplace_back(printable(text)).size();
    if (bytes > bytes_max)
      return make_error(Code::kInvalidArgument,
                        "The choices would begin with more than {} bytes of prompts in all; ask without echo.",
                        kEchoBytesMax);
  }
  return out;
}

}  // namespace deepinfer::recipe
