// Texts for bench_tokenizer, made from files that lie on every machine that builds this, and from seeded synthesis.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/file.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace bench {

// Files below `roots` (files or folders) with one of the extensions, in order of path; a missing root gives none.
inline std::vector<std::string> read_files(const std::vector<std::string>& roots,
                                           const std::vector<std::string>& extensions) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths, texts;
  for (const std::string& root : roots) {
    std::error_code error;
    if (fs::is_regular_file(root, error)) paths.push_back(root);
    for (fs::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
      const bool wanted = extensions.empty() ||
                          std::find(extensions.begin(), extensions.end(), it->path().extension()) != extensions.end();
      if (it->is_regular_file() && !it->is_symlink() && wanted) paths.push_back(it->path());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    auto text = deepinfer::read_file(path, 4 << 20);
    if (text.ok() && deepinfer::text::is_valid_utf8(text.value())) texts.push_back(std::move(text).value());
  }
  return texts;
}

// Prose of the length wanted: a chain over pairs of words of the licence texts and documents found here, so that word
// frequencies and phrases are those of real English, and no page repeats.
inline std::string english_text(size_t bytes) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> next;
  std::pair<std::string, std::string> state, first;
  for (const std::string& text :
       read_files({"docs", "README.md", "CONTRIBUTING.md", "LICENSE", "models/tiny/MODEL_CARD.md", "models/tiny/NOTICE",
                   "/usr/share/common-licenses"},
                  {})) {
    for (size_t i = 0; i < text.size();) {
      while (i < text.size() && (text[i] == ' ' || text[i] == '\n')) ++i;
      size_t end = std::min(text.find_first_of(" \n", i), text.size());
      if (end < text.size() && text[end] == '\n') ++end;  // a line's last word keeps its newline
      const std::string word = text.substr(i, end - i);
      next[state].push_back(word);
      state = {state.second, word};
      i = end;
    }
  }
  std::mt19937_64 random(1);
  std::string out;
  state = first;
  while (out.size() < bytes) {
    const auto at = next.find(state);
    if (at == next.end()) {
      state = first;
      continue;
    }
    const std::string& word = at->second[random() % at->second.size()];
    if (!out.empty() && out.back() != '\n') out += ' ';
    out += word;
    state = {state.second, word};
  }
  return out;
}

inline std::string code_text(size_t bytes) {
  std::string out;
  const auto own = read_files({"src", "tests", "tools", "bench"}, {".cc", ".h", ".py", ".sh", ".txt", ".cmake", ".cu"});
  const auto system = read_files({"/usr/include/c++/12/bits", "/usr/include/c++/13/bits"}, {".h", ".tcc"});
  for (size_t i = 0; i < std::max(own.size(), system.size()) && out.size() < bytes; ++i) {
    if (i < own.size()) out += own[i];
    if (i < system.size()) out += system[i];
  }
  for (size_t at = 0; out.size() < bytes; ++at) out += out[at];
  return out;
}

// Words of the vocabulary (frequent ones first there, as in the language) by Zipf's law, in sentences.
inline std::string chinese_text(const deepinfer::text::Tokenizer& vocabulary, size_t bytes) {
  std::vector<std::string> words;
  for (deepinfer::text::TokenId id = 0; id < vocabulary.vocab_size(); ++id) {
    std::string_view rest = vocabulary.token_bytes(id);
    bool chinese = !rest.empty() && !vocabulary.is_added(id);
    while (chinese && !rest.empty()) {
      const auto step = deepinfer::text::read_utf8(rest);
      chinese =
          step.head == deepinfer::text::Utf8Head::kCharacter && step.code_point >= 0x4e00 && step.code_point <= 0x9fa5;
      rest.remove_prefix(step.length);
    }
    if (chinese) words.emplace_back(vocabulary.token_bytes(id));
  }
  for (uint32_t c = 0x4e00; words.size() < 3000; c += 7) deepinfer::text::append_utf8(c, &words.emplace_back());
  std::mt19937_64 random(2);
  const auto unit = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const char* const ends[] = {"，", "，", "，", "。", "。\n", "；", "、", "：", "？", "！\n\n"};
  std::string out;
  while (out.size() < bytes) {
    for (uint64_t n = 2 + random() % 9; n > 0; --n) {
      // Zipf: log of the rank is uniform.
      const double rank = std::exp(unit() * std::log(static_cast<double>(words.size())));
      out += words[std::min(static_cast<size_t>(rank) - 1, words.size() - 1)];
    }
    out += ends[random() % std::size(ends)];
  }
  return out;
}

// Lines of the three, emoji, accents, other scripts and numbers between them.
inline std::string mixed_text(const std::vector<std::string>& parts, size_t bytes) {
  const char* const extras[] = {"👩‍👩‍👧 done ✅ 🎉🎉 3,141.59 €\n",
                                "naïve café, Ærøskøbing; fjärilsvinge 25 °C\n",
                                "Съешь же ещё этих мягких французских булок\n",
                                "안녕하세요 세계, 오늘은 2026년 1월 3일입니다.\n",
                                "ひらがなとカタカナを交ぜて書く・テスト。\n",
                                "مرحبا بالعالم 123\n",
                                "| 12 | 0.5 | 1e-7 | 0x1F4A9 | 2026-01-03T12:34:56Z |\n",
                                "\t\t\n\n",
                                "https://example.com/a/b?c=d&e=%20f#g\n"};
  std::mt19937_64 random(3);
  std::vector<size_t> at(parts.size(), 0);
  std::string out;
  while (out.size() < bytes) {
    const size_t part = random() % (parts.size() + 1);
    if (part == parts.size()) {
      out += extras[random() % std::size(extras)];
      continue;
    }
    for (uint64_t lines = 1 + random() % 12; lines > 0; --lines) {
      if (at[part] >= parts[part].size()) at[part] = 0;
      const size_t end = std::min(parts[part].find('\n', at[part]), parts[part].size() - 1);
      out.append(parts[part], at[part], end + 1 - at[part]);
      at[part] = end + 1;
    }
  }
  return out;
}

// Words of three to five syllables, none twice.
inline std::string unique_words(size_t bytes) {
  std::mt19937_64 random(4);
  std::unordered_set<std::string> seen;
  std::string out;
  while (out.size() < bytes) {
    std::string word;
    for (uint64_t n = 3 + random() % 3; n > 0; --n) {
      word += "bcdfghjklmnprstvwz"[random() % 18];
      word += "aeiou"[random() % 5];
      if (random() % 3 == 0) word += "lnrst"[random() % 5];
    }
    if (!seen.insert(word).second) continue;
    out += word;
    out += ' ';
  }
  return out;
}

// Cuts before a character.
inline std::string first_bytes(std::string text, size_t bytes) {
  while (bytes > 0 && bytes < text.size() && (static_cast<uint8_t>(text[bytes]) & 0xc0) == 0x80) --bytes;
  text.resize(std::min(bytes, text.size()));
  return text;
}

}  // namespace bench
