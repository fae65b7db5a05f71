// DeepSeek's full-size tokenizer for tests: V3's file with V4.1's added tokens (spec/protocol.md 1.3).
//
//   std::optional<text::Tokenizer> full = load_full_tokenizer(".");   // repository root
//   if (!full) GTEST_SKIP() << kFullTokenizerHint;
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/file.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

inline constexpr const char* kFullTokenizerHint =
    "needs DeepSeek-V3's tokenizer.json in build/test-data (tools/fetch_test_tokenizer.sh)";

inline std::optional<text::Tokenizer> load_full_tokenizer(const std::string& root) {
  Result<std::string> file = read_file(root + "/build/test-data/deepseek_v3/tokenizer.json", text::Tokenizer::kMaxFileBytes);
  if (!file.ok()) return std::nullopt;
  std::string json = std::move(file).value();
  const std::string renamed = "<｜place▁holder▁no▁799｜>", list = "\"added_tokens\": [";
  const size_t at = json.find(renamed), list_at = json.find(list);
  if (at == std::string::npos || list_at == std::string::npos) return std::nullopt;
  json.replace(at, renamed.size(), "<｜System｜>");
  const std::pair<int, const char*> added[] = {{128821, "<think>"},
                                               {128822, "</think>"},
                                               {128825, "｜DSML｜"},
                                               {128828, "<｜latest_reminder｜>"},
                                               {129264, "<｜deepseek_image｜>"}};
  std::string entries;
  for (const auto& [id, content] : added) {
    entries += "{\"id\": " + std::to_string(id) + ", \"content\": \"" + content + "\", \"normalized\": false, \"special\": false},\n";
  }
  json.insert(list_at + list.size(), entries);
  Result<text::Tokenizer> tokenizer = text::Tokenizer::parse(json);
  if (!tokenizer.ok()) return std::nullopt;
  return std::move(tokenizer).value();
}

}  // namespace deepinfer::testing
