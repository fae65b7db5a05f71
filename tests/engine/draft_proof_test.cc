// What drafts may do to the distribution of answers: nothing. And how often they come true: as often as drawing with
// the same noise promises.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/sequence.h"
#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using engine::DraftMode;
using engine::Request;
using testing::Collected;

testing::EngineSetup setup_of(const engine::DraftOptions& drafts) {
  testing::EngineSetup s;
  s.model = testing::kSanitized ? "tiny-random" : "tiny-trained";
  s.options.drafts = drafts;
  return s;
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp((x - max) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

constexpr double kTemperature = 0.5;

// Logits of the token at `position`, from an engine without drafts.
std::vector<float> logits_at(engine::Engine& plain, Request r, int32_t position) {
  std::vector<float> out;
  r.n = 1;
  r.on_logits = [&](int32_t, int32_t at, std::span<const float> logits) {
    if (at == position) out.assign(logits.begin(), logits.end());
  };
  testing::run(plain, r);
  EXPECT_FALSE(out.empty());
  return out;
}

// Pearson's statistic as a standard normal one (Wilson and Hilferty). Tokens that are rare together make one class.
double deviation(const std::vector<int64_t>& counts, const std::vector<double>& p) {
  const double n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double x = 0, rare = 0, rare_count = 0;
  int classes = 0;
  const auto add = [&](double count, double expected) {
    x += (count - expected) * (count - expected) / expected;
    ++classes;
  };
  for (size_t t = 0; t < p.size(); ++t) {
    if (n * p[t] >= 8) {
      add(static_cast<double>(counts[t]), n * p[t]);
    } else {
      rare += p[t];
      rare_count += static_cast<double>(counts[t]);
    }
  }
  if (n * rare >= 8) add(rare_count, n * rare);
  const double k = classes - 1;
  if (k < 1) return 0;
  return (std::cbrt(x / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

// Counts of the token at place `at` of answers to `r`, 16 an engine request.
std::vector<int64_t> draw_many(engine::Engine& e, Request r, size_t at, int requests, size_t vocab) {
  std::vector<int64_t> counts(vocab, 0);
  r.n = 16;
  for (int i = 0; i < requests; ++i) {
    r.seed = static_cast<uint64_t>(i);
    for (const Collected& c : testing::run(e, r)) {
      if (c.tokens.size() > at) ++counts[static_cast<size_t>(c.tokens[at])];
    }
  }
  return counts;
}

// The free token is drawn in a row behind drafts of the text that came true: the prompt says twice what is forced.
TEST(DraftProof, DrawsFollowSoftmax) {
  for (const bool model : {false, true}) {
    SCOPED_TRACE(model ? "the model's drafts" : "the text's drafts");
    const auto plain = testing::make_engine(setup_of({}));
    const auto e = testing::make_engine(setup_of({.mode = DraftMode::kFixed, .model = model, .text = !model}));
    Request r;
    const std::vector<int32_t> phrase = {500, 611, 722, 833, 944, 1055};
    r.prompt = {0};
    for (int i = 0; i < 2; ++i) r.prompt.insert(r.prompt.end(), phrase.begin(), phrase.end());
    r.prompt.insert(r.prompt.end(), phrase.begin(), phrase.begin() + 2);
    r.forced_tokens = {722, 833, 944};
    r.max_tokens = 7;
    r.ignore_end = true;
    r.text = false;
    r.sampling.temperature = kTemperature;
    const auto at = static_cast<int32_t>(r.prompt.size() + r.forced_tokens.size());
    const std::vector<float> logits = logits_at(*plain, r, at);
    const std::vector<double> p = softmax(logits, kTemperature);
    EXPECT_LT(*std::max_element(p.begin(), p.end()), 0.9) << "there is something to draw";
    const std::vector<int64_t> counts =
        draw_many(*e, r, r.forced_tokens.size(), testing::kSanitized ? 8 : 40, p.size());
    EXPECT_LT(deviation(counts, p), 4);
    // The check would see a temperature that is off.
    if (!testing::kSanitized) { EXPECT_GT(deviation(counts, softmax(logits, 0.75 * kTemperature)), 4); }
    EXPECT_GT(e->stats().drafts.verify_rows, 0);
    if (!model) { EXPECT_GT(e->stats().drafts.accepted[0], 0); }
  }
}

// A request's own limit, and one for the step.
TEST(DraftProof, LimitsHold) {
  for (const bool ahead : {false, true}) {
    for (const int limit : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << (ahead ? "ahead, " : "") << limit);
      const auto e = testing::make_engine(setup_of({.mode = DraftMode::kFixed, .ahead = ahead}));
      Request r;
      r.prompt = std::vector<int32_t>(30, 777);
      r.max_tokens = 30;
      r.ignore_end = true;
      r.text = false;
      r.drafts_max = limit;
      testing::run(*e, r);
      const engine::DraftStats s = e->stats().drafts;
      EXPECT_EQ(s.verified[0] > 0, limit > 0);
      EXPECT_EQ(s.verified[static_cast<size_t>(limit)], 0);
    }
  }
  for (const bool ahead : {false, true}) {
    engine::DraftOptions drafts{.mode = DraftMode::kFixed, .step_drafts_max = 3, .ahead = ahead};
    const auto e = testing::make_engine(setup_of(drafts));
    Request r;
    r.prompt = std::vector<int32_t>(30, 777);
    r.max_tokens = 30;
    r.ignore_end = true;
    r.text = false;
    r.n = 4;
    r.seed = 1;
    testing::run(*e, r);
    const engine::EngineStats s = e->stats();
    EXPECT_GT(s.drafts.verify_rows, 0);
    EXPECT_LE(s.drafts.verify_rows, 3 * s.steps);
  }
}

// A draft is drawn with the noise of the token that it guesses: it equals it at least as often as
// (1 - TV) / (1 + TV) of the two distributions, and no more often than 1 - TV.
TEST(DraftProof, AcceptanceKeepsItsBound) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
  const auto checkpoint = testing::open_checkpoint("tiny-trained");
  model::Options o;
  o.limits.context_max = 512;
  o.pages = ops::KvLayout::pages_for(512);
  const auto m = model::Model::create(checkpoint, ops::make_cpu_ops(2), o).value();
  const auto e = testing::make_engine(setup_of({.mode = DraftMode::kFixed, .drafts_max = 1, .text = false}));
  constexpr int kDraws = 128;
  double least = 1, most = 0;
  for (int context = 0; context < 8; ++context) {
    SCOPED_TRACE(context);
    Request r;
    r.prompt = testing::random_prompt(20 + context, static_cast<uint32_t>(context));
    if (context % 2 == 1) r.prompt.assign(30, 300 + context);  // what repeats is easy to guess
    r.forced_tokens = {r.prompt[3]};
    r.max_tokens = 3;  // the second token is verified, the third one has no draft
    r.ignore_end = true;
    r.text = false;
    model::KvAllocator kv(o.pages, 1);
    model::Sequence s = model::Sequence::create(*m, kv).value();
    std::vector<float> logits;
    ASSERT_TRUE(s.append(r.prompt, 1, &logits).ok());
    const std::vector<double> q = softmax(s.draft(r.forced_tokens[0], 1, true).value().logits, 1);
    ASSERT_TRUE(s.append(r.forced_tokens, 1, &logits).ok());
    const std::vector<double> p = softmax(logits, 1);
    double tv = 0;
    for (size_t t = 0; t < p.size(); ++t) tv += std::abs(p[t] - q[t]) / 2;
    const engine::DraftStats before = e->stats().drafts;
    std::vector<std::unique_ptr<engine::Stream>> streams;
    for (int i = 0; i < kDraws; ++i) {
      r.seed = static_cast<uint64_t>(1000 * context + i);
      streams.push_back(e->submit(r).value());
    }
    for (auto& stream : streams) testing::collect(*stream, 1);
    const engine::DraftStats after = e->stats().drafts;
    const auto n = static_cast<double>(after.verified[0] - before.verified[0]);
    ASSERT_EQ(n, kDraws);
    const double rate = static_cast<double>(after.accepted[0] - before.accepted[0]) / n;
    const double bound = (1 - tv) / (1 + tv), sigma = std::sqrt(0.25 / n);
    EXPECT_GE(rate, bound - 3 * sigma) << "TV " << tv;
    EXPECT_LE(rate, 1 - tv + 3 * sigma) << "TV " << tv;
    least = std::min(least, tv);
    most = std::max(most, tv);
    std::printf("TV %.3f: %.3f accepted, bound %.3f, at most %.3f\n", tv, rate, bound, 1 - tv);
  }
  EXPECT_LT(least, 0.6);
  EXPECT_GT(most, 0.1);
}

}  // namespace
}  // namespace deepinfer
