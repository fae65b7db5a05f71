#include "recipe/output_fold.h"

#include <map>

namespace deepinfer::recipe {

void FoldedCall::append_part(CallPart part) {
  if (part == CallPart::kKey) {
    parameters_.push_back({arguments.size(), 0});
  } else if (!parameters_.empty()) {
    parameters_.back().value = arguments.size();
  }
}

std::string FoldedCall::without_repeated_keys() const {
  if (!complete) return arguments;  // a value that was cut off can stand only at the end
  // Parameters are separated by ", ", a key and its value by ": ".
  const auto key_of = [&](const Parameter& p) {
    return std::string_view(arguments).substr(p.key, p.value - 2 - p.key);
  };
  std::map<std::string_view, size_t> last;
  for (size_t i = 0; i < parameters_.size(); ++i) last[key_of(parameters_[i])] = i;
  if (last.size() == parameters_.size()) return arguments;

  std::string kept = "{";
  std::map<std::string_view, bool> written;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string_view key = key_of(parameters_[i]);
    if (written[key]) continue;
    written[key] = true;
    const size_t chosen = last[key];
    const size_t end = chosen + 1 < parameters_.size() ? parameters_[chosen + 1].key - 2 : arguments.size() - 1;
    if (kept.size() > 1) kept += ", ";
    kept += key;
    kept += ": ";
    kept.append(arguments, parameters_[chosen].value, end - parameters_[chosen].value);
  }
  kept += '}';
  return kept;
}

}  // namespace deepinfer::recipe
