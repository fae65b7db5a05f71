// A backend with fp32 sums (the plain variant; in the CUDA build the CUDA backend): stage by stage against stored and
// reference values, and end to end on the bundled model (spec/model.md 4.10: on random weights a whole run of any fp32
// engine drifts, so there only stages are judged).
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/model/support.h"
#include "tests/support/golden/greedy.h"
#include "tests/support/golden/teacher_forced.h"

namespace deepinfer {
namespace {

// What a stage may differ by. rate: of values that are not the stored ones; far: of values more than two bf16 steps
// (codes: one code) away, at least one value is allowed; worst: over the row's largest magnitude.
struct Bound {
  double rate, far, worst;
};

#ifdef DEEPINFER_TEST_CUDA
constexpr testing::Kind kJudged = testing::Kind::kCuda;
constexpr double kDivergence = 5e-3;
#else
constexpr testing::Kind kJudged = testing::Kind::kPlain;
constexpr double kDivergence = 2e-3;
#endif

constexpr double kFlip = 0x1p-6;  // fixtures/model/README.md: a flipped value, over the row's largest magnitude

Bound bound_of(const std::string& stage) {
#ifdef DEEPINFER_TEST_CUDA
  // Tensor cores cut what lies below the largest addend instead of rounding it: sums are right to about 1e-7 of their
  // magnitudes.
  if (stage == "attention_heads") return {4e-4, 1e-4, kFlip};
  if (stage == "latent") return {1e-3, 1e-5, kFlip};
#endif
  if (stage == "attention_heads" || stage == "attention_out" || stage == "engram_out")
    return {4e-4, 3e-5, kFlip};  // a rounding inside
  if (stage == "entries" || stage == "index_keys" || stage == "index_queries")
    return {1e-4, 1e-5, 1.0 / 3};                             // e2m1: one code
  if (stage == "window_entry") return {1e-4, 1e-5, 1.0 / 8};  // e4m3: one code
  if (stage == "latent") return {3e-4, 1e-5, kFlip};
  if (stage == "engram_gate") return {1, 1e-5, 1e-3};  // never rounded; its key is
  if (stage == "expert_weights" || stage == "mix" || stage == "logits") return {1, 1e-5, 2e-6};  // never rounded
  if (stage == "selected" || stage == "experts") return {1e-3, 1e-3, 1};
  return {1e-4, 1e-5, kFlip};
}

Result<std::unique_ptr<model::Model>> stage_model(const std::string& name, std::unique_ptr<ops::Ops> ops) {
  model::Options o;
  o.limits.rows_max = 64;
  o.limits.outputs_max = 64;
  o.limits.keep_scores = true;
  o.limits.context_max = ops::kPageTokens;
  o.pages = 1;
  return model::Model::create(testing::open_checkpoint(name), std::move(ops), o);
}

void judge(const std::string& name, std::unique_ptr<ops::Ops> ops, bool exact) {
  const Result<testing::GoldenFile> golden =
      testing::GoldenFile::open(std::string(DEEPINFER_TEST_DATA) + "/model/" + name);
  ASSERT_TRUE(golden.ok()) << golden.status().to_string();
  auto model = stage_model(name, std::move(ops)),
       oracle = stage_model(name, ops::make_reference_ops(ops::ReferenceMode::kExact, available_cores()));
  ASSERT_TRUE(model.ok() && oracle.ok());
  testing::TeacherForced forced(golden.value(), *model.value(), *oracle.value());
  const Status status = forced.run();
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_GE(forced.stages().size(), 22u);
  for (const auto& [stage, s] : forced.stages()) {
    if (!exact) {
      std::printf("%-16s %-16s %8lld values, %6lld differ (%.5f%%), %3lld far, worst %.2e\n", name.c_str(),
                  stage.c_str(), static_cast<long long>(s.values), static_cast<long long>(s.different),
                  100.0 * s.different / s.values, static_cast<long long>(s.far), s.worst);
    }
    // Exact: stored fp32 coefficients were rounded from double, so that one value in 1e5 may be a step away.
    const Bound b = exact ? Bound{1e-5, 0, kFlip} : bound_of(stage);
    EXPECT_LE(s.different, std::max(exact ? 1.0 : 2.0, b.rate * s.values)) << stage;
    EXPECT_LE(s.far, std::max(exact ? 0.0 : 1.0, b.far * s.values)) << stage;
    EXPECT_LE(s.worst, b.worst) << stage;
  }
}

class Stages : public ::testing::TestWithParam<const char*> {};

TEST_P(Stages, ReferenceIsEqual) { judge(GetParam(), ops::make_reference_ops(ops::ReferenceMode::kExact, 1), true); }
TEST_P(Stages, FlipsAreRare) { judge(GetParam(), testing::make_ops(kJudged, available_cores()), false); }
#ifndef DEEPINFER_TEST_CUDA
TEST_P(Stages, FlipsOfTheFastBackendAreRare) {
  judge(GetParam(), testing::make_ops(testing::Kind::kFast, available_cores()), false);
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, Stages, ::testing::Values("tiny-random", "tiny-trained", "tiny-wide-random"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Logits of every row of every text, on one backend.
std::vector<std::vector<float>> all_logits(std::unique_ptr<ops::Ops> ops,
                                           const std::vector<std::vector<int32_t>>& texts) {
  model::Options o;
  o.limits.rows_max = 256;
  o.limits.outputs_max = 256;
  o.limits.context_max = 1024;
  o.pages = 8;
  auto model = model::Model::create(testing::open_checkpoint("tiny-trained"), std::move(ops), o);
  EXPECT_TRUE(model.ok());
  model::KvAllocator kv(o.pages, 1);
  std::vector<std::vector<float>> out;
  for (const std::vector<int32_t>& text : texts) {
    Result<model::Sequence> s = model::Sequence::create(*model.value(), kv);
    out.emplace_back();
    EXPECT_TRUE(s->append(text, static_cast<int32_t>(text.size()), &out.back()).ok());
  }
  return out;
}

double divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (float v : x) sum += std::exp(v - top);
    return top + std::log(sum);
  };
  const double zp = log_sum(p), zq = log_sum(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
  return kl;
}

struct Agreement {
  double rows = 0, same = 0, kl = 0, cosine = 0;

  void add(std::span<const float> p, std::span<const float> q) {
    ++rows;
    same += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
    kl += divergence(p, q);
    double pp = 0, qq = 0, pq = 0;
    for (size_t v = 0; v < p.size(); ++v) {
      pp += double{p[v]} * p[v];
      qq += double{q[v]} * q[v];
      pq += double{p[v]} * q[v];
    }
    cosine += pq / std::sqrt(pp * qq);
  }
  void add(const Agreement& o) {
    rows += o.rows;
    same += o.same;
    kl += o.kl;
    cosine += o.cosine;
  }
  void print(const char* what) const {
    std::printf("%s: %.0f rows, argmax agrees %.3f%%, mean KL %.2e, mean cosine %.6f\n", what, rows, 100 * same / rows,
                kl / rows, cosine / rows);
  }
};

class AgreementOf : public ::testing::TestWithParam<testing::Kind> {};

TEST_P(AgreementOf, TheReferenceOnTheBundledModel) {
  const Result<testing::GoldenFile> golden =
      testing::GoldenFile::open(std::string(DEEPINFER_TEST_DATA) + "/model/tiny-trained");
  const Result<std::vector<testing::GreedyPrompt>> prompts =
      testing::read_greedy(std::string(DEEPINFER_TEST_DATA) + "/model/greedy.json");
  ASSERT_TRUE(golden.ok() && prompts.ok());
  const std::vector<double>& ids = golden->find("ids")->values;
  std::vector<std::vector<int32_t>> texts = {{ids.begin(), ids.end()}};
  for (const testing::GreedyPrompt& p : prompts.value()) {
    texts.push_back(p.prompt);
    texts.back().insert(texts.back().end(), p.continuation.begin(), p.continuation.end());
  }
  const auto want = all_logits(ops::make_reference_ops(ops::ReferenceMode::kExact, available_cores()), texts);
  const auto got = all_logits(testing::make_ops(GetParam(), available_cores()), texts);
  const size_t vocabulary = want[0].size() / texts[0].size();
  Agreement all;
  for (const bool greedy : {false, true}) {
    Agreement part;
    for (size_t t = greedy ? 1 : 0; t < (greedy ? texts.size() : 1); ++t) {
      for (size_t i = 0; i < texts[t].size(); ++i)
        part.add(std::span(want[t]).subspan(i * vocabulary, vocabulary),
                 std::span(got[t]).subspan(i * vocabulary, vocabulary));
    }
    part.print(greedy ? "prompts and continuations of greedy.json" : "ids[:1000]");
    all.add(part);
  }
  all.print("both");
  EXPECT_GE(all.same, 0.99 * all.rows);
  EXPECT_LE(all.kl / all.rows, kDivergence);
  EXPECT_GE(all.cosine / all.rows, 0.997);
}

#ifdef DEEPINFER_TEST_CUDA
INSTANTIATE_TEST_SUITE_P(Backends, AgreementOf, ::testing::Values(kJudged));
#else
INSTANTIATE_TEST_SUITE_P(Backends, AgreementOf, ::testing::Values(kJudged, testing::Kind::kFast));
#endif

}  // namespace
}  // namespace deepinfer
