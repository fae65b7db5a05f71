// greedy.json of the model fixtures: prompts of one model with their greedy continuation, plain and through DSpark.
//
//   Result<std::vector<GreedyPrompt>> prompts = read_greedy("tests/data/model/greedy.json");
//   Result<std::vector<std::vector<int32_t>>> out = greedy_plain(*model, prompts.value());      // [prompt] tokens
//   Result<std::vector<SpeculativeRun>> fast = greedy_speculative(*model, prompts.value());
//
// Both run all prompts in one batch. Full prefill, at most kGreedyTokens tokens, stop at kGreedyStop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"

namespace deepinfer::testing {

inline constexpr int kGreedyTokens = 64;
inline constexpr int32_t kGreedyStop = 1;

struct GreedyPrompt {
  std::vector<int32_t> prompt, continuation;
  std::vector<int> accepted;                    // a round
  std::vector<std::vector<double>> confidence;  // a round, sigmoid, 4 decimals
};

struct SpeculativeRun {
  std::vector<int32_t> tokens;
  std::vector<int> accepted;
  std::vector<std::vector<double>> confidence;
};

Result<std::vector<GreedyPrompt>> read_greedy(const std::string& path);
// A model with room for all of them at once.
Result<std::unique_ptr<model::Model>> greedy_model(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                   std::unique_ptr<ops::Ops> ops, int prompts);
Result<std::vector<std::vector<int32_t>>> greedy_plain(model::Model& model, const std::vector<GreedyPrompt>& prompts);
Result<std::vector<SpeculativeRun>> greedy_speculative(model::Model& model, const std::vector<GreedyPrompt>& prompts);

}  // namespace deepinfer::testing
