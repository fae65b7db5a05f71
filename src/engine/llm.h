// Offline inference as a library: prompts in, answers out in the same order, many at once.
//
//   Result<std::unique_ptr<LLM>> llm = LLM::open({.model = "models/tiny"});
//   auto answers = llm.value()->generate({"Once upon a time", "One, two,"}, {.seed = 7, .max_tokens = 32});
//   for (const Completion& c : answers.value()) std::cout << c.answers[0].text;
//   auto chats = llm.value()->chat({conversation}, {.max_tokens = 200});      // reasoning, content, tool calls
//   auto rows = llm.value()->logits("Once upon a time");                      // [tokens, vocabulary]
//
// Link the CMake target deepinfer::deepinfer (docs/offline.md). engine/request.h says what can be asked for; `prompt`
// of those parameters is not used. A text prompt is tokenized as Hugging Face does: spelled special tokens count, and
// the beginning-of-sentence token comes first unless it is there. Text of strangers belongs into chat(), where it can
// never become a special token.
//
// Errors. A parameter out of range, or a grammar that cannot be compiled, refuses the call (kInvalidArgument, naming
// it) before anything runs. What is wrong with one prompt (too long, an id that does not exist) is the error of that
// prompt's answer; the others go on, so that results always line up with prompts. kCancelled once `stop` is set.
// An LLM may be used from several threads. What it returned, but for the bytes of log-probabilities, outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/stream.h"
#include "recipe/conversation.h"

namespace deepinfer::checkpoint {
struct ModelConfig;
}
namespace deepinfer::grammar {
struct Constraint;
}

namespace deepinfer {

struct LlmOptions {
  std::string model;             // a checkpoint's folder
  std::string tokenizer;         // tokenizer.json or its folder; empty: the model's folder
  std::string device = "auto";   // cpu, cuda, cuda:N; auto: a GPU if one can be used, else the CPU
  std::string backend;  // the CPU's kernels: fast, fast-avx2, plain, reference; empty: fast. "cuda": as a device
  std::string library_dir;       // where the CUDA backend's shared object lies; empty: beside the program
  bool pin_threads = false;
  std::string host_experts = "off";  // of each layer, computed beside a GPU: off, auto or a number
  uint64_t ram_bytes = 0;  // memory that the process may take, with weights on the SSD beyond; 0: what is free
  int threads = 0;               // of the CPU; 0: all cores
  int64_t context = 0;           // tokens of prompt and answer together; 0: the model's maximum, at most 8192
  int sequences = 16;            // answers in work at once
  int rows = 256;                // tokens of a step
  int64_t keep = 0;              // prompt tokens that the decoder half reads; 0: the model's window and 12
  bool count_work = false;       // EngineStats::work, and the device's peak for shares of it
  bool dummy_weights = false;    // random weights in the shape of config.json, for trying out sizes
  uint64_t dummy_seed = 0;
  double grammar_timeout_s = 20;  // CPU time of one compile
  int grammar_threads = 2;
  uint64_t grammar_cache_bytes = 1 << 30;
  engine::EngineOptions engine = {};  // end_tokens: added to by the model's own
};

// A prompt as text or as token ids.
struct PromptInput {
  PromptInput(std::string t) : text(std::move(t)) {}
  PromptInput(const char* t) : text(t) {}
  PromptInput(std::vector<int32_t> ids) : tokens(std::move(ids)), is_tokens(true) {}

  std::string text;
  std::vector<int32_t> tokens;
  bool is_tokens = false;
};

struct Generation {
  std::string text;
  std::vector<int32_t> token_ids;              // all that were drawn, the one that ended the answer included
  std::vector<engine::TokenLogprob> logprobs;  // a token each, with Request::logprobs
  std::vector<std::vector<engine::TokenLogprob>> top_logprobs;  // likeliest first
  std::vector<float> logits;                                    // [token_ids, vocabulary], with GenerateControl::logits
  engine::FinishReason reason = engine::FinishReason::kFailed;
  std::string stop_text;
  Status error;
  engine::Usage usage;
};

struct Completion {
  std::vector<int32_t> prompt_ids;
  std::vector<Generation> answers;                     // Request::n, at least one
  std::vector<engine::PromptLogprob> prompt_logprobs;  // a prompt token each, the first without; if asked for
};

struct ChatAnswer : Generation {  // `text` is the answer proper
  std::string reasoning;
  std::vector<recipe::ToolCall> tool_calls;  // without ids
};

struct ChatCompletion {
  std::vector<int32_t> prompt_ids;
  std::vector<ChatAnswer> answers;
};

struct GenerateProgress {
  int64_t prompts_done = 0, prompts = 0, prompt_tokens = 0, output_tokens = 0;
};

struct GenerateControl {
  const std::atomic<bool>* stop = nullptr;
  // Called on the caller's thread at least ten times a second.
  std::function<void(const GenerateProgress&)> on_progress = {};
  bool logits = false;
};

class LLM {
 public:
  static constexpr int64_t kContextDefault = 8192;

  static Result<std::unique_ptr<LLM>> open(const LlmOptions& options);
  ~LLM();

  // One set of parameters for all prompts, or one a prompt. With a seed in shared parameters every prompt has that
  // seed, so that equal prompts give equal answers; without one each has its own.
  Result<std::vector<Completion>> generate(std::span<const PromptInput> prompts,
                                           std::span<const engine::Request> parameters,
                                           const GenerateControl& control = {});
  Result<std::vector<Completion>> generate(std::initializer_list<PromptInput> prompts,
                                           const engine::Request& parameters, const GenerateControl& control = {});

  // Conversations in DeepSeek's V4.1 format. `stop` ends the answer proper, not the reasoning.
  Result<std::vector<ChatCompletion>> chat(std::span<const recipe::Conversation> conversations,
                                           std::span<const engine::Request> parameters,
                                           const GenerateControl& control = {});
  Result<std::vector<ChatCompletion>> chat(std::initializer_list<recipe::Conversation> conversations,
                                           const engine::Request& parameters, const GenerateControl& control = {});

  // Row i is what the model gives for the token behind prompt token i. All of the prompt runs through all layers.
  Result<std::vector<float>> logits(const PromptInput& prompt, const GenerateControl& control = {});

  Result<std::vector<int32_t>> tokenize(std::string_view text) const;  // as a text prompt
  std::string detokenize(std::span<const int32_t> ids) const;

  // Sets r->grammar; with `so_args` (spec/deepinfer.md G1) also what it waits for.
  Status constrain(const grammar::Constraint& constraint, engine::Request* r);
  Status constrain_so_args(std::string_view so_args, engine::Request* r);

  const checkpoint::ModelConfig& config() const;
  bool has_tokenizer() const;
  engine::Engine& engine();

  struct Impl;

 private:
  explicit LLM(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
