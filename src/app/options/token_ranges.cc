#include "app/options/token_ranges.h"

#include <charconv>

namespace deepinfer::app {
namespace {

bool take_number(std::string_view* text, int32_t* value) {
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, *value);
  if (error != std::errc() || *value < 0 || *value >= kTokenRangeMax) return false;
  text->remove_prefix(static_cast<size_t>(at - text->data()));
  return true;
}

}  // namespace

Result<std::vector<int32_t>> parse_token_ranges(std::string_view text) {
  const auto wrong = [] {
    return Status(Code::kInvalidArgument, "must be increasing token ids like 0..3,7,10..12");
  };
  std::vector<int32_t> ids;
  while (!text.empty()) {
    int32_t first = 0, last = 0;
    if (!take_number(&text, &first)) return wrong();
    last = first;
    if (text.starts_with("..")) {
      text.remove_prefix(2);
      if (!take_number(&text, &last) || last < first) return wrong();
    }
    if (!ids.empty() && first <= ids.back()) return wrong();
    for (int32_t id = first; id <= last; ++id) ids.push_back(id);
    if (text.empty()) break;
    if (text.front() != ',' || text.size() == 1) return wrong();
    text.remove_prefix(1);
  }
  return ids;
}

std::string check_token_ranges(const std::string& text) {
  const auto ids = parse_token_ranges(text);
  return ids.ok() ? "" : ids.status().message();
}

}  // namespace deepinfer::app
