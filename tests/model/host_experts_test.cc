// Experts that the host computes for a device: bit-equal to the CPU backend's own, whatever the rows of a call, close
// to the reference, and nothing else is written.
#include "ops/host_experts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "model/weights.h"
#include "tests/model/support.h"

namespace deepinfer {
namespace {

using ops::HostExpertRows;
using ops::HostExperts;
using testing::Kind;

constexpr uint16_t kUntouched = 0xabcd;
constexpr int64_t kColumns = 7;  // more than a row chooses

float number(uint16_t word) { return std::bit_cast<float>(uint32_t{word} << 16); }

// Rows of random activations, each with random experts of which those below `first` are not the host's.
struct Rows {
  std::vector<uint16_t> input, output;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int64_t rows = 0, hidden = 0;
  int per_row = 0;

  Rows(const checkpoint::ModelConfig& c, int64_t n, int first)
      : rows(n), hidden(c.hidden_size), per_row(static_cast<int>(c.num_experts_per_tok)) {
    std::mt19937 random(static_cast<uint32_t>(n));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n * hidden; ++i)
      input.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16));
    ids.assign(static_cast<size_t>(n * kColumns), 5);  // columns beyond per_row are to be ignored
    weights.assign(static_cast<size_t>(n * kColumns), 0.5f);
    std::vector<int32_t> all(static_cast<size_t>(c.n_routed_experts));
    for (int64_t r = 0; r < n; ++r) {
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      for (int64_t k = 0; k < per_row; ++k) {
        const int32_t e = all[static_cast<size_t>(k)];
        ids[static_cast<size_t>(r * kColumns + k)] = e >= first ? e : -1;
        weights[static_cast<size_t>(r * kColumns + k)] = 0.1f + std::abs(normal(random));
      }
    }
    output.assign(static_cast<size_t>(n * kColumns * hidden), kUntouched);
  }
  HostExpertRows call(int layer, int64_t begin, int64_t count) {
    return {layer,
            count,
            per_row,
            kColumns,
            input.data() + begin * hidden,
            ids.data() + begin * kColumns,
            weights.data() + begin * kColumns,
            output.data() + begin * kColumns * hidden};
  }
};

std::unique_ptr<HostExperts> make_host(const checkpoint::Checkpoint& c, Kind kind, int threads, int64_t rows_max) {
  Result<std::unique_ptr<HostExperts>> made =
      HostExperts::create(testing::make_ops(kind, threads), c.config(), model::collect_weights(c, nullptr), rows_max);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

// experts() of a backend, all rows at once.
std::vector<double> by_backend(const checkpoint::Checkpoint& c, Kind kind, Rows& rows, int layer) {
  const std::unique_ptr<ops::Ops> ops = testing::make_ops(kind, 2);
  ops::Limits limits;
  limits.rows_max = static_cast<int>(rows.rows);
  EXPECT_TRUE(ops->load(c.config(), model::collect_weights(c, nullptr), limits).ok());
  ops::ExpertRows r = ops->local_expert_rows({layer});
  r.rows = rows.rows;
  const auto columns = static_cast<size_t>(r.ids.cols);
  std::vector<double> input(static_cast<size_t>(rows.rows * rows.hidden)),
      ids(static_cast<size_t>(rows.rows) * columns, -1), weights(ids.size()),
      out(ids.size() * static_cast<size_t>(rows.hidden));
  for (size_t i = 0; i < input.size(); ++i) input[i] = number(rows.input[i]);
  for (size_t i = 0; i < static_cast<size_t>(rows.rows); ++i) {
    for (size_t k = 0; k < static_cast<size_t>(rows.per_row); ++k) {
      ids[i * columns + k] = rows.ids[i * kColumns + k];
      weights[i * columns + k] = rows.weights[i * kColumns + k];
    }
  }
  EXPECT_TRUE(ops->write(ops::Role::kSublayerIn, 0, rows.rows, input).ok());
  EXPECT_TRUE(ops->write(ops::Role::kExpertIds, 0, rows.rows, ids).ok());
  EXPECT_TRUE(ops->write(ops::Role::kExpertWeights, 0, rows.rows, weights).ok());
  ops->experts({layer}, r);
  EXPECT_TRUE(ops->read(ops::Role::kExpertOut, 0, rows.rows, out).ok());
  std::vector<double> wide(rows.output.size());  // in columns of `rows`
  const auto hidden = static_cast<size_t>(rows.hidden);
  for (size_t i = 0; i < static_cast<size_t>(rows.rows); ++i) {
    for (size_t at = 0; at < static_cast<size_t>(rows.per_row) * hidden; ++at)
      wide[i * kColumns * hidden + at] = out[i * columns * hidden + at];
  }
  return wide;
}

// Looks at every word: the host's outputs through `check`, the others must be as they were.
template <class Check>
void for_outputs(const Rows& rows, const Check& check) {
  for (int64_t pair = 0; pair < rows.rows * kColumns; ++pair) {
    const bool host = pair % kColumns < rows.per_row && rows.ids[static_cast<size_t>(pair)] >= 0;
    for (int64_t i = pair * rows.hidden; i < (pair + 1) * rows.hidden; ++i) {
      if (host) {
        check(static_cast<size_t>(i));
      } else {
        ASSERT_EQ(rows.output[static_cast<size_t>(i)], kUntouched) << "pair " << pair;
      }
    }
  }
}

class HostExpertsOf : public ::testing::TestWithParam<const char*> {};

TEST_P(HostExpertsOf, RowsOfACallAndThreadsChangeNothing) {
  const auto c = testing::open_checkpoint(GetParam());
  const int first = static_cast<int>(c->config().n_routed_experts * 2 / 3);
  constexpr int64_t kRows = 300;  // more than the backend's work memory takes at once
  const int layer = static_cast<int>(c->config().num_hidden_layers) - 1;
  Rows whole(c->config(), kRows, first);
  make_host(*c, Kind::kFast, 2, kRows)->run(whole.call(layer, 0, kRows));
  for (const auto& [threads, step] : {std::pair(1, 1), std::pair(2, 7), std::pair(3, 64)}) {
    Rows parts(c->config(), kRows, first);
    const std::unique_ptr<HostExperts> host = make_host(*c, Kind::kFast, threads, step == 7 ? 3 : kRows);
    for (int64_t at = 0; at < kRows; at += step) host->run(parts.call(layer, at, std::min<int64_t>(step, kRows - at)));
    EXPECT_TRUE(host->take_error().ok());
    EXPECT_TRUE(parts.output == whole.output) << threads << " threads, " << step << " rows";
  }
  const std::vector<double> expected = by_backend(*c, Kind::kFast, whole, layer);
  int64_t compared = 0, wrong = 0;
  for_outputs(whole, [&](size_t i) {
    ++compared, wrong += number(whole.output[i]) != static_cast<float>(expected[i]);
  });
  EXPECT_GT(compared, kRows * c->config().hidden_size / 2);
  EXPECT_EQ(wrong, 0);
}

TEST_P(HostExpertsOf, TheReferenceAgrees) {
  const auto c = testing::open_checkpoint(GetParam());
  Rows rows(c->config(), 40, 1);
  make_host(*c, Kind::kFast, 2, 40)->run(rows.call(1, 0, 40));
  const std::vector<double> exact = by_backend(*c, Kind::kReference, rows, 1);
  double error = 0, norm = 0;
  for_outputs(rows, [&](size_t i) {
    const double d = number(rows.output[i]) - exact[i];
    error += d * d, norm += exact[i] * exact[i];
  });
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(error / norm), 2e-3);  // a few values fall on the other side of a rounding point
}

INSTANTIATE_TEST_SUITE_P(Models, HostExpertsOf, ::testing::Values("tiny-random", "tiny-trained"));

TEST(HostExperts, RatesAreMeasuredOnAnyModel) {
  const auto c = testing::open_checkpoint("tiny-random");
  const std::unique_ptr<HostExperts> host = make_host(*c, Kind::kFast, 2, 16);
  EXPECT_GT(host->measure(2, 1), 0);
  EXPECT_GT(host->measure(1000, 1000), 0);  // bounded by the model and by rows_max
}

TEST(HostExperts, ABackendWithDoubleWeightsIsRefused) {
  const auto c = testing::open_checkpoint("tiny-random");
  const Result<std::unique_ptr<HostExperts>> made = HostExperts::create(
      testing::make_ops(Kind::kReference, 1), c->config(), model::collect_weights(*c, nullptr), 4);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  EXPECT_NE(made.status().message().find("reference"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
