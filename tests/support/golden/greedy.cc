#include "tests/support/golden/greedy.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "model/kv_memory.h"
#include "model/sequence.h"

namespace deepinfer::testing {
namespace {

using model::KvAllocator;
using model::Sequence;
using ops::Role;

// One prompt under way.
struct Live {
  Sequence sequence;
  std::vector<int32_t> tokens;  // chosen so far; the last one is not in the sequence yet
  bool done() const { return static_cast<int>(tokens.size()) >= kGreedyTokens || tokens.back() == kGreedyStop; }
};

struct Batch {
  model::Model& model;
  KvAllocator kv;
  std::vector<Live> live;

  explicit Batch(model::Model& m) : model(m), kv(m.kv_memory().page_count, m.kv_memory().slot_count) {}

  static int32_t best(std::span<const double> row) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }

  // The largest logit of each of n rows of the last step.
  Result<std::vector<int32_t>> best_rows(int n) {
    const int64_t vocabulary = model.config().vocab_size;
    std::vector<double> logits(n * vocabulary);
    DI_RETURN_IF_ERROR(model.ops().read(Role::kLogits, 0, n, logits));
    std::vector<int32_t> out;
    for (int i = 0; i < n; ++i) out.push_back(best(std::span(logits).subspan(i * vocabulary, vocabulary)));
    return out;
  }

  Status prefill(const std::vector<GreedyPrompt>& prompts) {
    for (const GreedyPrompt& p : prompts) {
      DI_ASSIGN_OR_RETURN(Sequence s, Sequence::create(model, kv));
      std::vector<float> row;
      DI_RETURN_IF_ERROR(s.append(p.prompt, 1, &row));
      const auto first = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      live.push_back({std::move(s), {first}});
    }
    return {};
  }

  std::vector<size_t> running() const {
    std::vector<size_t> list;
    for (size_t i = 0; i < live.size(); ++i) {
      if (!live[i].done()) list.push_back(i);
    }
    return list;
  }
};

}  // namespace

Result<std::vector<GreedyPrompt>> read_greedy(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(path, 16 << 20));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::array list;
  if (parser.parse(text).get(root) != simdjson::SUCCESS || root.at_key("prompts").get(list) != simdjson::SUCCESS) {
    return make_error(Code::kInvalidArgument, "{} holds no list of prompts", path);
  }
  std::vector<GreedyPrompt> prompts;
  for (simdjson::dom::element e : list) {
    GreedyPrompt p;
    simdjson::dom::array ids, continuation, accepted, rounds;
    if (e.at_key("prompt_ids").get(ids) != simdjson::SUCCESS ||
        e.at_key("continuation_ids").get(continuation) != simdjson::SUCCESS) {
      return make_error(Code::kInvalidArgument, "a prompt of {} has no prompt_ids or continuation_ids", path);
    }
    for (int64_t id : ids) p.prompt.push_back(static_cast<int32_t>(id));
    for (int64_t id : continuation) p.continuation.push_back(static_cast<int32_t>(id));
    if (e.at_key("accepted_per_round").get(accepted) == simdjson::SUCCESS) {
      for (int64_t n : accepted) p.accepted.push_back(static_cast<int>(n));
    }
    if (e.at_key("confidence_per_round").get(rounds) == simdjson::SUCCESS) {
      for (simdjson::dom::array round : rounds) {
        p.confidence.emplace_back();
        for (double c : round) p.confidence.back().push_back(c);
      }
    }
    prompts.push_back(std::move(p));
  }
  return prompts;
}

Result<std::unique_ptr<model::Model>> greedy_model(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                   std::unique_ptr<ops::Ops> ops, int prompts) {
  model::Options o;
  o.limits.rows_max = 512;
  o.limits.sequences_max = prompts;
  o.limits.outputs_max = prompts * (1 + static_cast<int>(checkpoint->config().dspark_block_size));
  o.limits.context_max = 512;
  o.slots = prompts;
  o.pages = prompts * ops::KvLayout::pages_for(o.limits.context_max);
  return model::Model::create(std::move(checkpoint), std::move(ops), o);
}

Result<std::vector<std::vector<int32_t>>> greedy_plain(model::Model& model, const std::vector<GreedyPrompt>& prompts) {
  Batch b(model);
  DI_RETURN_IF_ERROR(b.prefill(prompts));
  model::StepPlan plan;
  for (std::vector<size_t> running = b.running(); !running.empty(); running = b.running()) {
    plan.clear();
    for (size_t i : running)
      DI_RETURN_IF_ERROR(b.live[i].sequence.add_rows(plan, std::span(&b.live[i].tokens.back(), 1), 1));
    DI_RETURN_IF_ERROR(model.forward(plan));
    DI_ASSIGN_OR_RETURN(const std::vector<int32_t> next, b.best_rows(static_cast<int>(running.size())));
    for (size_t k = 0; k < running.size(); ++k) {
      Live& l = b.live[running[k]];
      l.sequence.commit_rows(std::span(&l.tokens.back(), 1));
      l.tokens.push_back(next[k]);
    }
  }
  std::vector<std::vector<int32_t>> out;
  for (Live& l : b.live) out.push_back(std::move(l.tokens));
  return out;
}

Result<std::vector<SpeculativeRun>> greedy_speculative(model::Model& model, const std::vector<GreedyPrompt>& prompts) {
  Batch b(model);
  DI_RETURN_IF_ERROR(b.prefill(prompts));
  std::vector<SpeculativeRun> out(prompts.size());
  const auto drafts = static_cast<int32_t>(model.config().dspark_block_size);
  const int64_t columns = model.ops().buffer(Role::kDraftTokens).cols,
                confidences = model.ops().buffer(Role::kConfidence).cols;
  model::StepPlan plan;
  for (std::vector<size_t> running = b.running(); !running.empty(); running = b.running()) {
    const auto n = static_cast<int64_t>(running.size());
    model::DraftPlan draft;
    draft.drafts = drafts;
    for (size_t i : running)
      draft.sequences.push_back({.slot = b.live[i].sequence.slot(),
                                 .position = b.live[i].sequence.size() - 1,
                                 .token = b.live[i].tokens.back()});
    DI_RETURN_IF_ERROR(model.draft(draft, model.greedy_chooser()));
    std::vector<double> proposed(n * columns), confidence(n * confidences);
    DI_RETURN_IF_ERROR(model.ops().read(Role::kDraftTokens, 0, n, proposed));
    DI_RETURN_IF_ERROR(model.ops().read(Role::kConfidence, 0, n, confidence));

    // The first column is the token the round starts from: rows of verification are the columns as they are.
    plan.clear();
    std::vector<std::vector<int32_t>> rows;
    for (int64_t k = 0; k < n; ++k) {
      rows.emplace_back(proposed.begin() + k * columns, proposed.begin() + k * columns + drafts + 1);
      DI_RETURN_IF_ERROR(b.live[running[k]].sequence.add_rows(plan, rows.back(), drafts + 1));
    }
    DI_RETURN_IF_ERROR(model.forward(plan));
    DI_ASSIGN_OR_RETURN(const std::vector<int32_t> best, b.best_rows(static_cast<int>(n) * (drafts + 1)));
    for (int64_t k = 0; k < n; ++k) {
      Live& l = b.live[running[k]];
      SpeculativeRun& run = out[running[k]];
      const int32_t* target = best.data() + k * (drafts + 1);
      int accepted = 0;
      while (accepted < drafts && rows[k][accepted + 1] == target[accepted]) ++accepted;
      l.sequence.commit_rows(rows[k]);
      l.sequence.truncate(l.sequence.size() - (drafts - accepted));
      run.accepted.push_back(accepted);
      run.confidence.emplace_back();
      for (int i = 0; i < drafts; ++i)
        run.confidence.back().push_back(1 / (1 + std::exp(-confidence[k * confidences + i])));
      for (int i = 0; i <= accepted && !l.done(); ++i) l.tokens.push_back(target[i]);
    }
  }
  for (size_t i = 0; i < out.size(); ++i) out[i].tokens = std::move(b.live[i].tokens);
  return out;
}

}  // namespace deepinfer::testing
