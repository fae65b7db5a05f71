// DeepSeek's full-size tokenizer for tests: V3's file with V4.1's added tokens (spec/protocol.md 1.3).
//
//   std::optional<text::Tokenizer> full = load_full_tokenizer(".");   // repository root
//   if (!full) GTEST_SKIP() << kFullTokenizerHint;
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/file.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

inline constexpr const char* kFullTokenizerHint =
    "needs DeepSeek-V3's tokenizer.json in build/test-data (tools/fetch_test_tokenizer.sh)";

// The file's text, with the changes; a benchmark's peer loads it too.
inline std::optional<std::string> full_tokenizer_json(const std::string& root) {
  Result<std::string> file =
      read_file(root + "/build/test-data/deepseek_v3/tokenizer.json", text::Tokenizer::kMaxFileBytes);
  if (!file.ok()) return std::nullopt;
  std::string json = std::move(file).value();
  const std::string renamed = "<｜place▁holder▁no▁799｜>", list_end = "\n    ],\n    \"normalizer\"";
  const size_t at = json.find(renamed), end = json.find(list_end);
  if (at == std::string::npos || end == std::string::npos) return std::nullopt;
  const std::map<int, std::string> added = {{128821, "<think>"},
                                            {128822, "</think>"},
                                            {128825, "｜DSML｜"},
                                            {128828, "<｜latest_reminder｜>"},
                                            {129264, "<｜deepseek_image｜>"}};
  // Other readers number added tokens by their place in the list, so the gaps are filled.
  std::string entries;
  for (int id = 128815; id <= 129264; ++id) {
    const auto known = added.find(id);
    const std::string content = known != added.end() ? known->second : "<｜unused▁" + std::to_string(id) + "｜>";
    entries +=
        ",\n{\"id\": " + std::to_string(id) + ", \"content\": \"" + content +
        "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": false}";
  }
  json.insert(end, entries);
  json.replace(at, renamed.size(), "<｜System｜>");
  return json;
}

inline std::optional<text::Tokenizer> load_full_tokenizer(const std::string& root) {
  const std::optional<std::string> json = full_tokenizer_json(root);
  if (!json) return std::nullopt;
  Result<text::Tokenizer> tokenizer = text::Tokenizer::parse(*json);
  if (!tokenizer.ok()) return std::nullopt;
  return std::move(tokenizer).value();
}

}  // namespace deepinfer::testing
