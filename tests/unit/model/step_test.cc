// Steps whose input is unusual: tokens that only the device knows, and weights that are damaged.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::model {
namespace {

Result<std::unique_ptr<Model>> try_model(const std::string& directory, std::unique_ptr<ops::Ops> ops,
                                         bool count_experts = false) {
  Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open(directory);
  if (!c.ok()) return c.status();
  Options o;
  o.limits.rows_max = 128;
  o.limits.outputs_max = 4;
  o.limits.context_max = 256;
  o.limits.feedback_max = 4;
  o.pages = 2;
  o.count_experts = count_experts;
  return Model::create(std::make_shared<const checkpoint::Checkpoint>(std::move(c).value()), std::move(ops), o);
}

std::unique_ptr<Model> open_model(const std::string& directory, std::unique_ptr<ops::Ops> ops,
                                  bool count_experts = false) {
  Result<std::unique_ptr<Model>> m = try_model(directory, std::move(ops), count_experts);
  EXPECT_TRUE(m.ok()) << m.status().to_string();
  return m.ok() ? std::move(m).value() : nullptr;
}

std::vector<double> logits_of(Model& m) {
  std::vector<double> row(m.config().vocab_size);
  EXPECT_TRUE(m.ops().read(ops::Role::kLogits, 0, 1, row).ok());
  return row;
}

TEST(Step, TokensFromFeedbackEqualTheTokensThemselves) {
  const auto m = open_model(testing::tiny_random_dir(), ops::make_plain_ops(2));
  const std::vector<int32_t> tokens = {100, 200, 300, 400, 500}, blocks = {0};
  const std::vector<int32_t> none(3, ops::kNoToken);
  const auto run = [&](std::vector<int32_t> last, std::vector<int32_t> history) {
    StepPlan prefill, decode;
    prefill.add_sequence({.kind = RowKind::kPrefill}, std::span(tokens).first(4), none, blocks);
    decode.add_sequence({.first_position = 4, .outputs = 1}, last, history, blocks);
    EXPECT_TRUE(m->forward(prefill).ok());
    EXPECT_TRUE(m->forward(decode).ok());
    return logits_of(*m);
  };
  const std::vector<double> want = run({500}, {400, 300, 200});
  ASSERT_TRUE(m->ops().write(ops::Role::kFeedback, 0, 4, std::vector<double>{400, 500, 1, 2}).ok());
  EXPECT_EQ(run({-2}, {-1, 300, 200}), want);
  EXPECT_NE(run({-3}, {-1, 300, 200}), want);
}

TEST(Step, CountsTheRowsOfTheBusiestExpert) {
  const auto m = open_model(testing::tiny_random_dir(), ops::make_cpu_ops(2), true);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back(10 + 7 * i);
  StepPlan plan;
  plan.add_sequence({.kind = RowKind::kPrefill, .decoder_begin = 50, .outputs = 1}, tokens,
                    std::vector<int32_t>(3, ops::kNoToken), std::vector<int32_t>{0});
  ExpertLoad want;
  m->observe([&](int layer, Stage stage, ops::Rows rows) {
    if (stage != Stage::kRouted) return;
    const int64_t cols = m->ops().buffer(ops::Role::kExpertIds).cols, n = m->ops().row_count(rows);
    std::vector<double> ids(static_cast<size_t>(n * cols));
    ASSERT_TRUE(m->ops().read(ops::Role::kExpertIds, 0, n, ids).ok());
    std::map<double, int> counts;
    for (const double id : ids) counts[id] += id >= 0;
    int busiest = 0;
    for (const auto& [id, count] : counts) busiest = std::max(busiest, count);
    want.busiest += busiest;
    want.mean += static_cast<double>(n * m->config().num_experts_per_tok) /
                 static_cast<double>(m->config().n_routed_experts);
    EXPECT_EQ(m->ops().experts_per_row(layer), m->config().num_experts_per_tok);
  });
  ASSERT_TRUE(m->forward(plan).ok());
  ASSERT_TRUE(m->ops().synchronize().ok());
  EXPECT_GT(want.busiest, want.mean);
  EXPECT_EQ(m->expert_load().busiest, want.busiest);
  EXPECT_DOUBLE_EQ(m->expert_load().mean, want.mean);
}

// Fills tensor `name` with a byte. 0x7f: NaN in e4m3, very large numbers in bf16 and fp32; 0x7e: the largest e4m3.
void damage(const std::string& directory, const std::string& name, char byte) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    uint64_t at = 0, bytes = 0;
    {
      Result<checkpoint::SafetensorsFile> file = checkpoint::SafetensorsFile::open(entry.path());
      ASSERT_TRUE(file.ok());
      for (const auto& t : file->tensors()) {
        if (t.name != name) continue;
        at = file->header_bytes() + t.offset;
        bytes = t.view.bytes();
      }
    }
    if (bytes == 0) continue;
    std::fstream out(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out << std::string(bytes, byte);
    return;
  }
  FAIL() << "no tensor " << name;
}

std::unique_ptr<ops::Ops> damaged_ops(bool reference) {
  return reference ? ops::make_reference_ops(ops::ReferenceMode::kExact, 2) : ops::make_plain_ops(2);
}

TEST(Step, WeightsThatHoldNaNAreRefusedByName) {
  for (const char* name :
       {"layers.1.attn.indexer.wq_b.weight", "layers.0.attn.wkv.weight", "layers.1.engram.wkv.weight"}) {
    testing::TempDir temp;
    const std::string directory = temp.path() + "/damaged";
    std::filesystem::copy(testing::tiny_random_dir(), directory);
    damage(directory, name, '\x7f');
    const auto m = try_model(directory, damaged_ops(false));
    ASSERT_FALSE(m.ok()) << name;
    EXPECT_EQ(m.status().code(), Code::kDataLoss);
    EXPECT_NE(m.status().message().find(name), std::string::npos) << m.status().to_string();
  }
}

TEST(Step, HugeWeightsGiveNoNumberAndNoCrash) {
  const struct {
    const char* name;
    char byte;
    bool reaches_logits;  // index scores and routing may swallow a NaN (it is the worst score)
  } cases[] = {{"embed.weight", '\x7f', true},
               {"layers.1.attn.indexer.wq_b.weight", '\x7e', false},
               {"layers.4.attn.indexer.wk.weight", '\x7f', false},
               {"layers.6.attn.indexer.weights_proj.weight", '\x7f', false},
               {"layers.2.ffn.gate.weight", '\x7f', false},
               {"layers.0.attn.wkv.weight", '\x7e', false},
               {"layers.1.engram.wkv.weight", '\x7e', false},
               {"norm.weight", '\x7f', true}};
  for (const auto& c : cases) {
    testing::TempDir temp;
    const std::string directory = temp.path() + "/damaged";
    std::filesystem::copy(testing::tiny_random_dir(), directory);
    damage(directory, c.name, c.byte);
    for (const bool reference : {false, true}) {
      const auto m = open_model(directory, damaged_ops(reference));
      ASSERT_NE(m, nullptr) << c.name;
      KvAllocator kv(2, 1);
      Sequence s = Sequence::create(*m, kv).value();
      std::vector<int32_t> tokens(150);
      for (int i = 0; i < 150; ++i) tokens[i] = 10 + 37 * i;
      std::vector<float> logits;
      ASSERT_TRUE(s.append(tokens, 1, &logits).ok()) << c.name;
      ASSERT_TRUE(s.draft(5, 5).ok());
      if (c.reaches_logits) {
        EXPECT_TRUE(std::isnan(logits[0])) << c.name;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::model
