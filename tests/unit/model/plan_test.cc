// Plans that contradict themselves or the limits are refused with a sentence; nothing runs.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/support/checkpoints.h"

namespace deepinfer::model {
namespace {

class Plan : public ::testing::Test {
 protected:
  static constexpr int kPages = 4, kSlots = 2;

  void SetUp() override {
    Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open(testing::tiny_random_dir());
    ASSERT_TRUE(c.ok());
    checkpoint_ = std::make_shared<const checkpoint::Checkpoint>(std::move(c).value());
    options_.limits.rows_max = 8;
    options_.limits.sequences_max = 2;
    options_.limits.outputs_max = 4;
    options_.limits.context_max = 200;
    options_.limits.image_rows_max = 2;
    options_.pages = kPages;
    options_.slots = kSlots;
    Result<std::unique_ptr<Model>> m = Model::create(checkpoint_, ops::make_plain_ops(1), options_);
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    model_ = std::move(m).value();
  }

  // A plan of one sequence that is right, changed by `change`.
  void refuse(const std::function<void(StepPlan&)>& change, const std::string& part) {
    StepPlan plan = right();
    change(plan);
    const Status s = model_->forward(plan);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  }

  static StepPlan right() {
    StepPlan plan;
    plan.add_sequence({.slot = 1, .outputs = 1}, std::vector<int32_t>{5, 6, 7}, std::vector<int32_t>(3, ops::kNoToken),
                      std::vector<int32_t>{2});
    return plan;
  }

  Options options_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<Model> model_;
};

TEST_F(Plan, Right) {
  EXPECT_TRUE(model_->forward(right()).ok());
  EXPECT_EQ(model_->forward(StepPlan()).code(), Code::kInvalidArgument);
}

TEST_F(Plan, WrongSequence) {
  refuse([](StepPlan& p) { p.sequences[0].slot = kSlots; }, "slot");
  refuse([](StepPlan& p) { p.sequences[0].slot = -1; }, "slot");
  refuse([](StepPlan& p) { p.sequences[0].count = 0; }, "rows");
  refuse([](StepPlan& p) { p.sequences[0].count = 4; }, "tokens");
  refuse([](StepPlan& p) { p.sequences[0].first_position = -1; }, "position");
  refuse([](StepPlan& p) { p.sequences[0].first_position = 198; }, "context");
  refuse([](StepPlan& p) { p.sequences[0].first_position = 126; }, "too few pages");
  refuse([](StepPlan& p) { p.sequences[0].block_count = 2; }, "pages");
  refuse([](StepPlan& p) { p.blocks[0] = kPages; }, "page");
  refuse([](StepPlan& p) { p.blocks[0] = -1; }, "page");
  refuse([](StepPlan& p) { p.sequences[0].window_begin = 1; }, "window");
  refuse([](StepPlan& p) { p.sequences[0].cached = 64; }, "whole pages");
  refuse([](StepPlan& p) { p.sequences[0].outputs = 4; }, "logits");
  refuse([](StepPlan& p) { p.sequences[0].decoder_begin = 3; }, "logits");
}

TEST_F(Plan, WrongTokens) {
  refuse([](StepPlan& p) { p.tokens[1] = 8192; }, "vocabulary");
  refuse([](StepPlan& p) { p.history[1] = 8192; }, "vocabulary");
  refuse([](StepPlan& p) { p.history[0] = -1; }, "feedback");
  refuse([](StepPlan& p) { p.tokens[1] = -1; }, "feedback");  // none was allowed
  refuse([](StepPlan& p) { p.tokens[1] = ops::kNoToken; }, "vocabulary");
  refuse([](StepPlan& p) { p.history.pop_back(); }, "history");
  refuse([](StepPlan& p) { p.image_rows = {0}; }, "image_rows");
  refuse([](StepPlan& p) { p.image_rows = {0, 1, 2}; }, "image row");
}

TEST_F(Plan, OverTheLimits) {
  StepPlan plan;
  const std::vector<int32_t> history(3, ops::kNoToken);
  plan.add_sequence({.slot = 0}, std::vector<int32_t>(9, 5), history, std::vector<int32_t>{0});
  EXPECT_EQ(model_->forward(plan).code(), Code::kInvalidArgument);
  plan.clear();
  for (int i = 0; i < 3; ++i)
    plan.add_sequence({.slot = i % 2}, std::vector<int32_t>{5}, history, std::vector<int32_t>{i});
  EXPECT_EQ(model_->forward(plan).code(), Code::kInvalidArgument);
  plan.clear();
  plan.add_sequence({.slot = 0, .outputs = 5}, std::vector<int32_t>(5, 5), history, std::vector<int32_t>{0});
  EXPECT_EQ(model_->forward(plan).code(), Code::kInvalidArgument);
}

TEST_F(Plan, TwoSequencesMayNotShareASlot) {
  StepPlan plan;
  const std::vector<int32_t> history(3, ops::kNoToken);
  for (int i = 0; i < 2; ++i) plan.add_sequence({.slot = 1}, std::vector<int32_t>{5}, history, std::vector<int32_t>{i});
  EXPECT_EQ(model_->forward(plan).code(), Code::kInvalidArgument);
}

TEST_F(Plan, Drafts) {
  ASSERT_TRUE(model_->forward(right()).ok());
  const auto draft = [&](int drafts, int slot, int position) {
    DraftPlan d{drafts, {{.slot = slot, .position = position, .token = 9}}};
    return model_->draft(d, model_->greedy_chooser());
  };
  EXPECT_TRUE(draft(5, 1, 2).ok());
  EXPECT_TRUE(draft(1, 1, 2).ok());
  EXPECT_FALSE(draft(0, 1, 2).ok());
  EXPECT_FALSE(draft(6, 1, 2).ok());
  EXPECT_FALSE(draft(5, 2, 2).ok());
  EXPECT_FALSE(draft(5, 1, -1).ok());
}

TEST_F(Plan, ModelLimits) {
  Options o = options_;
  o.limits.context_max = 65537;
  const Status s = Model::create(checkpoint_, ops::make_plain_ops(1), o).status();
  EXPECT_NE(s.message().find("65536"), std::string::npos) << s.message();
  o = options_;
  o.pages = 0;
  EXPECT_FALSE(Model::create(checkpoint_, ops::make_plain_ops(1), o).ok());
}

TEST_F(Plan, PagesAndSlotsComeBack) {
  KvAllocator kv(kPages, kSlots);
  std::vector<float> logits;
  {
    Sequence a = Sequence::create(*model_, kv).value();
    ASSERT_TRUE(a.append(std::vector<int32_t>(150, 5), 1, &logits).ok());
    EXPECT_EQ(kv.free_pages(), kPages - 2);
    Sequence b = Sequence::with_cached_prefix(a, 128, 40, 100).value();
    EXPECT_EQ(kv.free_pages(), kPages - 2);
    EXPECT_FALSE(Sequence::create(*model_, kv).ok());
    a.truncate(20);
    EXPECT_EQ(kv.free_pages(), kPages - 1);
  }
  EXPECT_EQ(kv.free_pages(), kPages);
  EXPECT_EQ(kv.free_slots(), kSlots);
}

}  // namespace
}  // namespace deepinfer::model
