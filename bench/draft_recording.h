// What the bundled model's drafter proposes at every position of its own answers, and how much of it comes true: the
// data that draft policies are compared on. Made by tools of this folder, never committed.
//
//   Recording r = record_drafts({.prompts = 2000, .tokens = 64, .threads = 2});
//   for (const RecordedAnswer& a : r.answers) a.rounds[i].accepted ...
//
// Prompts are seeded: chats, chats with tools, openings of texts, in equal parts; each at temperature 0 and 0.8. Round
// i of an answer is the draft made when i tokens of it are committed and token i is drawn: drafts for tokens i + 1 .. i
// +
// 5. `accepted` counts how many of them equal the answer, from the first on, not beyond its end.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bench {

inline constexpr int kDrafts = 5;

enum class PromptKind : uint8_t { kChat, kTools, kText };

struct DraftRound {
  std::array<float, kDrafts> confidence = {};  // logits of the confidence head
  uint8_t accepted = 0;
};

struct RecordedAnswer {
  PromptKind kind = PromptKind::kChat;
  bool sampled = false;  // temperature 0.8, else greedy
  std::vector<DraftRound> rounds;
};

struct Recording {
  std::vector<RecordedAnswer> answers;
};

struct RecordOptions {
  std::string model = "models/tiny";
  int prompts = 2000;  // each at both temperatures
  int tokens = 48;     // of an answer, at most
  int threads = 2;
};

std::string prompt_text(PromptKind kind, uint32_t seed);  // the user's part

// Whole prompts of the bundled model's form.
class Prompts {
 public:
  explicit Prompts(const std::string& model);
  ~Prompts();
  std::vector<int32_t> ids(PromptKind kind, uint32_t seed) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Exits with a message on failure.
Recording record_drafts(const RecordOptions& options);

void save(const Recording& recording, const std::string& path);
// Empty if there is no such file or it is of another layout.
Recording load_recording(const std::string& path);

}  // namespace bench
