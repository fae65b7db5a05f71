// Inside LLM (internal to engine/):  llm.cc  opening and the small calls    llm_generate.cc  the loop of a call
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "engine/llm.h"
#include "grammar/compiler.h"
#include "recipe/output_vocabulary.h"
#include "recipe/tokenize.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct LLM::Impl {
  LlmOptions options;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::optional<text::Tokenizer> tokenizer;
  recipe::OutputVocabulary vocabulary;
  std::unique_ptr<engine::Engine> engine;

  std::mutex mutex;  // of what is made when first needed
  std::unique_ptr<recipe::PromptEncoder> encoder;
  std::unique_ptr<grammar::Compiler> compiler;

  Status make_encoder();
  Status make_compiler();
  Status check_parameters(std::span<const engine::Request> parameters, size_t prompts) const;
};

}  // namespace deepinfer
