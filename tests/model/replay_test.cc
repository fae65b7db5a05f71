// Rows that run again for their windows alone leave the encoder layer by layer: the answer is a cold prompt's bit for
// bit, however the prompt is cut and whatever runs beside it, and fewer rows run.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "model/sequence.h"
#include "tests/model/support.h"

namespace deepinfer::model {
namespace {

using testing::Kind;
using testing::make_ops;
using testing::open_checkpoint;

constexpr int kTokens = 370, kHit = 256, kRowsMax = 260;

std::vector<int32_t> random_tokens(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

class Replay : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const auto c = open_checkpoint("tiny-random");
    Options o;
    o.limits = {.rows_max = kRowsMax, .sequences_max = 3, .outputs_max = 16, .context_max = 512};
    o.pages = 32;
    o.slots = 3;
    std::unique_ptr<ops::Ops> ops = make_ops(GetParam(), 2);
    if (ops == nullptr) GTEST_SKIP() << "this processor lacks the instructions";
    Result<std::unique_ptr<Model>> m = Model::create(c, std::move(ops), o);
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    model_ = std::move(m).value();
    kv_ = std::make_unique<KvAllocator>(o.pages, o.slots);
    const auto window = static_cast<int>(model_->config().sliding_window);
    begin_ = kTokens - window - 12;
    start_ = kHit - window - (static_cast<int>(model_->config().decoder_start) - 1) * (window - 1);
    ASSERT_GT(start_, 0);
  }

  std::span<const int32_t> part(int first, int count) const {
    return std::span<const int32_t>(tokens_).subspan(first, count);
  }

  // The prompt's rows from the first replayed one on, `step` at a time, with rows of `beside` in front of or behind
  // them; the last row's logits.
  std::vector<double> run_hit(const Sequence& source, int step, int exact_begin, Sequence* beside = nullptr,
                              bool behind = false) {
    Sequence hit = Sequence::with_cached_prefix(source, kHit, start_, begin_).value();
    const std::vector<int32_t> other = random_tokens(kTokens, 5);
    std::vector<double> logits(static_cast<size_t>(model_->config().vocab_size));
    int row = 0;
    while (hit.size() < kTokens) {
      const int n = std::min(step, kTokens - hit.size());
      StepPlan plan;
      const auto add_other = [&] {
        if (beside == nullptr) return;
        EXPECT_TRUE(beside->add_rows(plan, std::span(other).subspan(beside->size(), 3), 3).ok());
      };
      if (!behind) add_other();
      EXPECT_TRUE(hit.add_rows(plan, part(hit.size(), n), hit.size() + n == kTokens ? 1 : 0).ok());
      plan.sequences.back().exact_begin = exact_begin;
      if (behind) add_other();
      const Status s = model_->forward(plan);
      EXPECT_TRUE(s.ok()) << s.to_string();
      EXPECT_TRUE(model_->ops().synchronize().ok());
      hit.commit_rows(part(hit.size(), n));
      row = beside != nullptr && !behind ? 3 : 0;
      if (beside != nullptr) beside->commit_rows(std::span(other).subspan(beside->size(), 3));
    }
    EXPECT_TRUE(model_->ops().read(ops::Role::kLogits, row, 1, logits).ok());
    return logits;
  }

  // Rows of all encoder layers.
  int64_t count_rows(const std::function<void()>& body) {
    int64_t rows = 0;
    model_->observe([&](int layer, Stage stage, ops::Rows set) {
      if (stage == Stage::kMoeOut && layer < model_->config().decoder_start) rows += model_->ops().row_count(set);
    });
    body();
    model_->observe({});
    return rows;
  }

  std::vector<int32_t> tokens_ = random_tokens(kTokens, 1);
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvAllocator> kv_;
  int begin_ = 0, start_ = 0;
};

TEST_P(Replay, RowsThatNobodyNeedsLeaveAndNoBitChanges) {
  Sequence cold = Sequence::create(*model_, *kv_, begin_).value();
  std::vector<float> wanted;
  ASSERT_TRUE(cold.append(tokens_, 1, &wanted).ok());
  const std::vector<double> cold_logits(wanted.begin(), wanted.end());
  const int64_t layers = model_->config().decoder_start, window = model_->config().sliding_window;
  for (const int step : {kRowsMax, 100, 37}) {
    const int64_t all = count_rows([&] { EXPECT_EQ(run_hit(cold, step, 0), cold_logits) << step; });
    EXPECT_EQ(all, (kTokens - start_) * layers);
    const int64_t fewer = count_rows([&] { EXPECT_EQ(run_hit(cold, step, kHit), cold_logits) << step; });
    if (!model_->ops().drops_rows()) {
      EXPECT_EQ(fewer, all);
    } else if (step == kRowsMax) {
      EXPECT_EQ(fewer, all - (window - 1) * layers * (layers - 1) / 2);
    } else {
      EXPECT_LT(fewer, all);  // a step keeps a row at least
    }
    EXPECT_EQ(run_hit(cold, step, kHit), cold_logits) << step;  // stages fused
    const int start = std::exchange(start_, 0);  // a prompt that runs whole beside its cached blocks
    EXPECT_EQ(run_hit(cold, step, kHit), cold_logits) << step;
    start_ = start;
  }
}

TEST_P(Replay, NothingBesideChangesAnythingNorIsChanged) {
  Sequence cold = Sequence::create(*model_, *kv_, begin_).value();
  std::vector<float> wanted;
  ASSERT_TRUE(cold.append(tokens_, 1, &wanted).ok());
  const std::vector<double> cold_logits(wanted.begin(), wanted.end());
  const std::vector<int32_t> other = random_tokens(kTokens, 5);
  std::vector<float> alone, together;
  for (const bool behind : {false, true}) {
    for (const int step : {kRowsMax - 3, 60}) {
      const int steps = (kTokens - start_ + step - 1) / step;
      {
        Sequence s = Sequence::create(*model_, *kv_).value();
        ASSERT_TRUE(s.append(std::span(other).first(3 * steps + 1), 1, &alone).ok());
      }
      Sequence s = Sequence::create(*model_, *kv_).value();
      EXPECT_EQ(run_hit(cold, step, kHit, &s, behind), cold_logits) << step << " " << behind;
      ASSERT_TRUE(s.append(std::span(other).subspan(3 * steps, 1), 1, &together).ok());
      EXPECT_EQ(alone, together) << step << " " << behind;
    }
  }
}

TEST_P(Replay, DecoderRowsAreNeverForWindowsAlone) {
  Sequence s = Sequence::create(*model_, *kv_).value();
  StepPlan plan;
  ASSERT_TRUE(s.add_rows(plan, part(0, 4), 1).ok());
  plan.sequences.back().exact_begin = 1;
  EXPECT_EQ(model_->forward(plan).code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, Replay,
                         ::testing::Values(Kind::kPlain, Kind::kFast, Kind::kFastAvx512, Kind::kFastAvx2));

}  // namespace
}  // namespace deepinfer::model
