// A row's bits do not depend on how a prompt is cut, on what else is in the step, or on the number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "model/kv_memory.h"
#include "model/sequence.h"
#include "numeric/formats.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/model/support.h"
#include "tests/support/golden/golden_file.h"

namespace deepinfer {
namespace {

using model::KvAllocator;
using model::Model;
using model::Sequence;
using ops::Role;

constexpr int kPages = 32, kSlots = 8, kTokens = 150;

using testing::Kind;

std::unique_ptr<Model> make_model(const std::string& name, Kind kind, int threads, int rows_max = 256,
                                  int context_max = 640, bool keep_scores = false) {
  model::Options o;
  o.limits.rows_max = rows_max;
  o.limits.keep_scores = keep_scores;
  o.limits.outputs_max = std::max(256, rows_max);
  o.limits.sequences_max = kSlots;
  o.limits.context_max = context_max;
  o.pages = kPages;
  o.slots = kSlots;
  Result<std::unique_ptr<Model>> m = Model::create(testing::open_checkpoint(name), testing::make_ops(kind, threads), o);
  EXPECT_TRUE(m.ok()) << m.status().to_string();
  return std::move(m).value();
}

std::vector<int32_t> prompt(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

// Logits of every row at or behind decoder_begin, the prompt run in pieces of the sizes given (the last one repeats).
std::vector<float> in_pieces(Model& m, std::span<const int32_t> tokens, const std::vector<int>& sizes,
                             int decoder_begin = 0, model::Draft* draft = nullptr) {
  KvAllocator kv(kPages, kSlots);
  Result<Sequence> s = Sequence::create(m, kv, decoder_begin);
  std::vector<float> all, part;
  size_t piece = 0;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min<size_t>(sizes[std::min(piece++, sizes.size() - 1)], tokens.size() - at);
    const auto outputs = static_cast<int32_t>(
        std::clamp<int64_t>(static_cast<int64_t>(at + n) - decoder_begin, 0, static_cast<int64_t>(n)));
    const Status status = s->append(tokens.subspan(at, n), outputs, &part);
    EXPECT_TRUE(status.ok()) << status.to_string();
    all.insert(all.end(), part.begin(), part.end());
    at += n;
  }
  if (draft != nullptr) *draft = s->draft(11, static_cast<int32_t>(m.config().dspark_block_size), true).value();
  return all;
}

class Invariance : public ::testing::TestWithParam<std::tuple<const char*, Kind>> {
 protected:
  void SetUp() override {
    const auto& [name, kind] = GetParam();
    if (testing::kSanitized && (name != std::string("tiny-random") || (kind != Kind::kPlain && kind != Kind::kFast)))
      GTEST_SKIP() << "sanitizer build";
  }
  std::unique_ptr<Model> make(int threads, int rows_max = 256) {
    return make_model(std::get<0>(GetParam()), std::get<1>(GetParam()), threads, rows_max);
  }
};

TEST_P(Invariance, Chunking) {
  const auto m = make(2);
  const std::vector<int32_t> tokens = prompt(kTokens, 1);
  model::Draft draft, other;
  const std::vector<float> whole = in_pieces(*m, tokens, {kTokens}, 0, &draft);
  for (const std::vector<int>& sizes :
       std::vector<std::vector<int>>{{1}, {7}, {33}, {64, 1, 1, 5, 37}, {149, 1}, {1, 149}}) {
    EXPECT_TRUE(in_pieces(*m, tokens, sizes, 0, &other) == whole) << "pieces of " << sizes[0];
    EXPECT_TRUE(other.logits == draft.logits);
    EXPECT_EQ(other.confidence, draft.confidence);
  }
}

TEST_P(Invariance, ChunkingOfTheDecoderTail) {
  const auto m = make(2);
  const std::vector<int32_t> tokens = prompt(kTokens, 2);
  constexpr int kBegin = 71;  // inside a ratio-2 group
  model::Draft draft, other;
  const std::vector<float> whole = in_pieces(*m, tokens, {kTokens}, kBegin, &draft);
  EXPECT_EQ(whole.size(), static_cast<size_t>((kTokens - kBegin) * m->config().vocab_size));
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{1}, {9}, {70, 1, 1, 100}, {72, 3}}) {
    EXPECT_TRUE(in_pieces(*m, tokens, sizes, kBegin, &other) == whole) << "pieces of " << sizes[0];
    EXPECT_TRUE(other.logits == draft.logits);
  }
}

// The decoder's global KV comes from hc_collapse where a step has rows below decoder_begin, from hc_enter where not.
// One rounding more or less shows in few rows: these prompts have some.
TEST_P(Invariance, TailWithAndWithoutRowsBelowIt) {
  const auto m = make(2);
  constexpr int kBegin = 85;
  for (uint32_t seed : {1, 30, 32}) {
    const std::vector<int32_t> tokens = prompt(129, seed);
    const std::vector<float> whole = in_pieces(*m, tokens, {129}, kBegin);
    EXPECT_TRUE(in_pieces(*m, tokens, {kBegin, 129}, kBegin) == whole) << "prompt " << seed;
  }
}

TEST_P(Invariance, CollapseIsTheFirstPartOfEntering) {
  const auto m = make(2);
  ops::Ops& ops = m->ops();
  in_pieces(*m, prompt(kTokens, 1), {kTokens});
  const ops::At at{m->config().decoder_start, ops::Rows::kEncoder};
  const auto values = [&](Role role) {
    return std::vector<double>(static_cast<size_t>(kTokens * ops.buffer(role).cols));
  };
  std::vector<double> residual = values(Role::kResidual), pre = values(Role::kPre),
                      collapsed = values(Role::kSublayerIn), entered = collapsed;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 20; ++i) {
    for (double& v : residual) v = numeric::round_bf16(normal(random));
    for (double& v : pre) v = std::abs(normal(random));
    ASSERT_TRUE(ops.write(Role::kResidual, 0, kTokens, residual).ok());
    ASSERT_TRUE(ops.write(Role::kPre, 0, kTokens, pre).ok());
    ops.hc_collapse(at);
    ASSERT_TRUE(ops.read(Role::kSublayerIn, 0, kTokens, collapsed).ok());
    ops.hc_enter(at, ops::Sublayer::kAttention);
    ASSERT_TRUE(ops.read(Role::kSublayerIn, 0, kTokens, entered).ok());
    ASSERT_TRUE(collapsed == entered) << "round " << i;
  }
}

// Steps of 1, 2, 6, 17, 128 and 512 rows on 1, 2, 3 and 7 threads.
TEST_P(Invariance, RowsAndThreads) {
  const auto& [name, kind] = GetParam();
  const bool all = std::getenv("DEEPINFER_TEST_ALL") != nullptr;
  if (name != std::string("tiny-random") || (kind != Kind::kFast && !(all && kind == Kind::kFastAvx2)))
    GTEST_SKIP() << "one model; both instruction sets with DEEPINFER_TEST_ALL=1";
  constexpr int kRows = 512;
  const std::vector<int32_t> tokens = prompt(kRows, 9);
  std::vector<float> whole;
  std::mt19937 random(4);
  const std::pair<int, std::vector<int>> cases[] = {
      {1, {512, 128, 17, 6, 2, 1}}, {2, {512, 6}}, {3, {512, 17}}, {7, {512, 128}}};
  for (const auto& [threads, row_counts] : cases) {
    const auto m = make(threads, kRows);
    for (const int rows : row_counts) {
      std::vector<int> sizes(1, rows);
      for (int i = 0; i < 20 && rows < 128; ++i) sizes.insert(sizes.begin(), 1 + static_cast<int>(random() % rows));
      const std::vector<float> got = in_pieces(*m, tokens, sizes);
      if (whole.empty()) whole = got;
      EXPECT_TRUE(got == whole) << "steps of " << rows << " rows on " << threads << " threads";
    }
  }
}

// Sequences of different lengths and kinds in the same steps equal each of them alone.
TEST_P(Invariance, Batch) {
  const auto m = make(2);
  struct Case {
    std::vector<int32_t> tokens;
    int decoder_begin;
    std::vector<int> sizes;
  };
  const std::vector<Case> cases = {{prompt(kTokens, 3), 0, {40, 1}},  {prompt(90, 4), 0, {1}},
                                   {prompt(120, 5), 50, {17, 33, 1}}, {prompt(64, 6), 10, {64}},
                                   {prompt(131, 7), 0, {5, 6}},       {prompt(75, 8), 30, {31, 1, 6}}};
  std::vector<std::vector<float>> alone;
  for (const Case& c : cases) alone.push_back(in_pieces(*m, c.tokens, c.sizes, c.decoder_begin));

  KvAllocator kv(kPages, kSlots);
  std::vector<Sequence> live;
  std::vector<std::vector<float>> got(cases.size());
  std::vector<size_t> at(cases.size(), 0), piece(cases.size(), 0);
  for (const Case& c : cases) live.push_back(Sequence::create(*m, kv, c.decoder_begin).value());
  const int64_t vocabulary = m->config().vocab_size;
  model::StepPlan plan;
  for (bool more = true; more;) {
    more = false;
    plan.clear();
    std::vector<std::tuple<size_t, size_t, int32_t>> in_step;
    int32_t outputs = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const size_t n = std::min<size_t>(c.sizes[std::min(piece[i], c.sizes.size() - 1)], c.tokens.size() - at[i]);
      if (n == 0) continue;
      ++piece[i];
      const auto rows = static_cast<int32_t>(
          std::clamp<int64_t>(static_cast<int64_t>(at[i] + n) - c.decoder_begin, 0, static_cast<int64_t>(n)));
      ASSERT_TRUE(live[i].add_rows(plan, std::span(c.tokens).subspan(at[i], n), rows).ok());
      in_step.emplace_back(i, n, rows);
      outputs += rows;
      more = true;
    }
    if (!more) break;
    const Status status = m->forward(plan);
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::vector<double> logits(outputs * vocabulary);
    ASSERT_TRUE(m->ops().read(Role::kLogits, 0, outputs, logits).ok());
    auto next = logits.begin();
    for (const auto& [i, n, rows] : in_step) {
      live[i].commit_rows(std::span(cases[i].tokens).subspan(at[i], n));
      at[i] += n;
      got[i].insert(got[i].end(), next, next + rows * vocabulary);
      next += rows * vocabulary;
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_TRUE(got[i] == alone[i]) << "sequence " << i;
}

TEST_P(Invariance, Threads) {
  const std::vector<int32_t> tokens = prompt(kTokens, 9);
  model::Draft draft, other;
  const std::vector<float> one = in_pieces(*make(1), tokens, {100, 1}, 20, &draft);
  for (int threads : {2, 3, 7}) {
    EXPECT_TRUE(in_pieces(*make(threads), tokens, {100, 1}, 20, &other) == one) << threads << " threads";
    EXPECT_TRUE(other.logits == draft.logits);
    EXPECT_EQ(other.confidence, draft.confidence);
  }
}

#ifndef DEEPINFER_TEST_CUDA
// An observer finds what the projections have given, and what it puts in its place is what attention sees, in steps of
// any length.
TEST_P(Invariance, RecordsAreReadAndReplacedWhileAStepRuns) {
  const auto m = make(2);
  const std::vector<int32_t> tokens = prompt(24, 13);
  std::map<int, std::vector<double>> records;
  m->observe([&](int layer, model::Stage stage, ops::Rows rows) {
    if (stage != model::Stage::kProjected) return;
    const int64_t n = m->ops().row_count(rows), cols = m->ops().buffer(Role::kWindowRecords).cols;
    std::vector<double> read(static_cast<size_t>(n * cols));
    EXPECT_TRUE(m->ops().read(Role::kWindowRecords, 0, n, read).ok());
    records[layer].insert(records[layer].end(), read.begin(), read.end());
    if (layer % 2 == 0) return;
    EXPECT_TRUE(m->ops().write(Role::kWindowRecords, 0, n, std::vector<double>(read.size(), 0.0)).ok());
  });
  const std::vector<float> whole = in_pieces(*m, tokens, {24});
  const std::map<int, std::vector<double>> want = std::exchange(records, {});
  for (const int rows : {1, 5}) {
    EXPECT_TRUE(in_pieces(*m, tokens, {rows}) == whole) << "pieces of " << rows;
    EXPECT_TRUE(std::exchange(records, {}) == want) << "pieces of " << rows;
  }
}

// Rows of other ranks go through the experts of a step of one row: each as the row alone, whose shared expert stays.
TEST_P(Invariance, ExpertsTakeRowsOfOthers) {
  constexpr int kOthers = 5;
  const auto m = make(2);
  ops::Ops& ops = m->ops();
  in_pieces(*m, prompt(3, 14), {2, 1});
  const ops::At at{1, ops::Rows::kEncoder};
  const auto values = [&](Role role) {
    std::vector<double> row(static_cast<size_t>(ops.buffer(role).cols));
    EXPECT_TRUE(ops.read(role, 0, 1, row).ok());
    return row;
  };
  ops.route(at);
  const ops::ExpertRows own = ops.local_expert_rows(at);
  ops.experts(at, own);
  ops.shared_expert(at);
  const std::vector<double> want = values(Role::kExpertOut), shared = values(Role::kSharedOut);

  std::vector<std::vector<std::byte>> memory;
  const auto copies = [&](const ops::Buffer& of) {
    const size_t bytes = static_cast<size_t>(of.cols) * (of.element == ops::Element::kDouble ? 8 : 4);
    std::vector<std::byte>& to = memory.emplace_back(kOthers * bytes);
    for (int i = 0; i < kOthers; ++i) std::memcpy(to.data() + i * bytes, of.data, bytes);
    return ops::Buffer{to.data(), of.element, kOthers, of.cols};
  };
  const ops::ExpertRows others{kOthers, own.per_row, copies(own.input), copies(own.ids), copies(own.weights),
                               copies(own.output)};
  const size_t row_bytes = memory.back().size() / kOthers;
  const std::vector<std::byte> row = {memory.back().begin(), memory.back().begin() + static_cast<int64_t>(row_bytes)};
  std::ranges::fill(memory.back(), std::byte{0});
  ops.route(at);
  ops.experts(at, others);
  ops.shared_expert(at);
  for (int i = 0; i < kOthers; ++i)
    EXPECT_EQ(std::memcmp(memory.back().data() + i * row_bytes, row.data(), row_bytes), 0) << "row " << i;
  EXPECT_TRUE(values(Role::kExpertOut) == want);
  EXPECT_TRUE(values(Role::kSharedOut) == shared);
}

// The same of the taps that the drafter's rings are filled from.
TEST_P(Invariance, TapsAreReplacedBeforeTheRingsAreFilled) {
  const std::vector<int32_t> tokens = prompt(24, 17);
  model::Draft untouched, want;
  for (const int threads : {1, 2}) {
    const auto m = make(threads);
    bool replace = false;
    m->observe([&](int, model::Stage stage, ops::Rows rows) {
      if (stage != model::Stage::kTaps || !replace) return;
      const int64_t n = m->ops().row_count(rows), cols = m->ops().buffer(Role::kTaps).cols;
      EXPECT_TRUE(m->ops().write(Role::kTaps, 0, n, std::vector<double>(static_cast<size_t>(n * cols), 0.5)).ok());
    });
    for (const int rows : {1, 5, 24}) {
      model::Draft draft;
      replace = false;
      in_pieces(*m, tokens, {rows}, 0, &draft);
      if (untouched.logits.empty()) untouched = draft;
      EXPECT_TRUE(draft.logits == untouched.logits) << threads << " threads, pieces of " << rows;
      replace = true;
      in_pieces(*m, tokens, {rows}, 0, &draft);
      if (want.logits.empty()) want = draft;
      EXPECT_TRUE(draft.logits == want.logits) << threads << " threads, pieces of " << rows;
    }
  }
  EXPECT_FALSE(want.logits == untouched.logits);
}

TEST(InstructionSets, GiveTheSameBits) {
  if (ops::make_fast_ops(1, "avx512") == nullptr) GTEST_SKIP() << "this processor has one of them only";
  const std::vector<int32_t> tokens = prompt(kTokens, 9);
  model::Draft draft, other;
  const std::vector<float> one =
      in_pieces(*make_model("tiny-random", Kind::kFastAvx512, 2), tokens, {100, 1}, 20, &draft);
  EXPECT_TRUE(in_pieces(*make_model("tiny-random", Kind::kFastAvx2, 2), tokens, {100, 1}, 20, &other) == one);
  EXPECT_TRUE(other.logits == draft.logits);
  EXPECT_EQ(other.confidence, draft.confidence);
}
#endif

// Rows of rejected drafts leave nothing behind: stepping back and going another way equals never having tried.
TEST_P(Invariance, RejectedRows) {
  const auto m = make(2);
  KvAllocator kv(kPages, kSlots);
  const std::vector<int32_t> tried = prompt(6, 11), next = prompt(40, 12);
  Sequence a = Sequence::create(*m, kv).value(), b = Sequence::create(*m, kv).value();
  std::vector<float> x, y;
  for (const int accepted : {0, 1, 3, 5}) {
    const std::vector<int32_t> more = prompt(accepted == 0 ? 101 : 7, 20 + accepted);
    ASSERT_TRUE(a.append(more, 1, &x).ok());
    ASSERT_TRUE(b.append(more, 1, &y).ok());
    ASSERT_TRUE(a.append(tried, 6, &x).ok());
    a.truncate(a.size() - 6 + accepted);
    if (accepted > 0) {
      ASSERT_TRUE(b.append(std::span(tried).first(accepted), 1, &y).ok());
    }
    EXPECT_TRUE(a.draft(5, 5, true).value().logits == b.draft(5, 5, true).value().logits) << accepted;
    ASSERT_TRUE(a.append(next, 40, &x).ok());
    ASSERT_TRUE(b.append(next, 40, &y).ok());
    EXPECT_TRUE(x == y) << accepted << " accepted";
  }
}

// The fast backend scores few of the keys that a row sees and none outside its candidate blocks; kept scores are all.
void expect_entries_of_all_scores(const std::string& name, Kind kind, int threads) {
  constexpr int kLong = 1500, kBegin = 1437, kRows = 512, kContext = 2048;
  const std::vector<int32_t> tokens = prompt(kLong, 4);
  std::vector<float> want;
  {
    const auto m = make_model(name, kind, 2, kRows, kContext, true);
    want = in_pieces(*m, tokens, {kRows}, kBegin);
    ASSERT_EQ(want.size(), static_cast<size_t>((kLong - kBegin) * m->config().vocab_size));
  }
  const auto m = make_model(name, kind, threads, kRows, kContext);
  EXPECT_TRUE(in_pieces(*m, tokens, {kRows}, kBegin) == want);
  EXPECT_TRUE(in_pieces(*m, tokens, {500, 500, 440, 1, 1, 1, 5, 100}, kBegin) == want);
}

TEST_P(Invariance, EntriesChosenWithoutAllScores) {
  const auto& [name, kind] = GetParam();
  if (kind != Kind::kFast && kind != Kind::kFastAvx512 && kind != Kind::kFastAvx2)
    GTEST_SKIP() << "this backend always forms all scores";
  expect_entries_of_all_scores(name, kind, 3);
}

#ifndef DEEPINFER_TEST_CUDA
TEST(InvarianceOfWideRows, EntriesChosenWithoutAllScores) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
  expect_entries_of_all_scores("tiny-wide-random", Kind::kFast, 2);
}
#endif

#ifdef DEEPINFER_TEST_CUDA
const auto kBackends =
    ::testing::Values(std::tuple{"tiny-random", Kind::kCuda}, std::tuple{"tiny-trained", Kind::kCuda},
                      std::tuple{"tiny-wide-random", Kind::kCuda});
#else
const auto kBackends =
    ::testing::Values(std::tuple{"tiny-random", Kind::kReference}, std::tuple{"tiny-random", Kind::kPlain},
                      std::tuple{"tiny-trained", Kind::kPlain}, std::tuple{"tiny-random", Kind::kFast},
                      std::tuple{"tiny-trained", Kind::kFast}, std::tuple{"tiny-random", Kind::kFastAvx2});
#endif

std::string case_name(const ::testing::TestParamInfo<std::tuple<const char*, Kind>>& info) {
  constexpr const char* kNames[] = {"_reference", "_plain", "_fast", "_fast_avx512", "_fast_avx2", "_cuda"};
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + kNames[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Backends, Invariance, kBackends, case_name);

}  // namespace
}  // namespace deepinfer
