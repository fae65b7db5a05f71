// What a user asked `deepinfer run` for, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/draft_flags.h"
#include "engine/generator.h"
#include "recipe/conversation.h"

namespace deepinfer::app {

struct RunOptions {
  std::string model;                  // folder or name; empty: the default model
  std::optional<std::string> prompt;  // one answer instead of a chat
  std::string system;
  bool raw = false;  // no chat template
  bool thinking = true;
  recipe::Effort effort = recipe::Effort::kHigh;
  int effort_number = 0;  // with Effort::kNumber
  engine::Prefill prefill = engine::Prefill::kTail;
  std::optional<double> temperature, top_p;  // absent: generation_config.json
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;  // absent: random
  int64_t max_tokens = 0;        // 0: the recipe's default for chats, until the end for raw text
  std::vector<std::string> stop;
  bool json = false;
  bool quiet = false;  // no figures at the end
  bool stats = false;  // of the guesses, at the end
  DraftFlags drafts;
  int threads = 0;     // 0: all cores
  std::string device = "auto";
  std::string backend;  // empty: the device's usual one
  bool pin_threads = false;
  std::string host_experts = "off";
  std::string ram;      // memory that the program may take (base/format.h parse_bytes); empty: what is free
  int64_t context = 0;  // 0: kContextDefault or the model's maximum, whichever is less
};

inline constexpr int64_t kContextDefault = 32768;

}  // namespace deepinfer::app
