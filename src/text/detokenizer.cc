#include "text/detokenizer.h"

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace deepinfer::text {

bool is_silent(const Tokenizer& tokenizer, TokenId id) {
  constexpr std::array<std::string_view, 7> kNames = {
      "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<|EOT|>", "<｜image｜>",
      "<｜deepseek_image｜>",    "<｜image2｜>",
  };
  if (!tokenizer.is_added(id)) return false;
  const std::string_view name = tokenizer.token_bytes(id);
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.starts_with("<｜place▁holder▁no▁");
}

std::string_view Detokenizer::push(TokenId id) {
  if (silent_ == Silent::kHide && is_silent(tokenizer_, id)) return push_bytes({});
  return push_bytes(tokenizer_.token_bytes(id));
}

std::string_view Detokenizer::push_bytes(std::string_view bytes) {
  out_.clear();
  pending_ += bytes;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = read_utf8(rest);
    if (step.head == Utf8Head::kIncomplete) break;
    if (step.head == Utf8Head::kCharacter) {
      out_ += rest.substr(0, step.length);
    } else {
      out_ += "\xef\xbf\xbd";
    }
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out_;
}

size_t Detokenizer::finish() {
  const size_t dropped = pending_.size();
  pending_.clear();
  return dropped;
}

}  // namespace deepinfer::text
