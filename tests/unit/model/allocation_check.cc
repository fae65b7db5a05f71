// A decode step, a verification step and a draft round allocate nothing once they have run before (design.md 5.5).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "checkpoint/checkpoint.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/support/checkpoints.h"

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {
std::atomic<int64_t> allocations{0};
}

void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace deepinfer::model {
namespace {

void check(std::unique_ptr<ops::Ops> ops) {
  Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open(testing::tiny_random_dir());
  ASSERT_TRUE(c.ok());
  Options o;
  o.limits.rows_max = 64;
  o.limits.sequences_max = 4;
  o.limits.outputs_max = 24;
  o.limits.context_max = 512;
  o.pages = 16;
  o.slots = 4;
  auto model = Model::create(std::make_shared<const checkpoint::Checkpoint>(std::move(c).value()), std::move(ops), o);
  ASSERT_TRUE(model.ok());
  Model& m = *model.value();
  KvAllocator kv(o.pages, o.slots);
  std::vector<Sequence> live;
  std::vector<float> logits;
  for (int i = 0; i < 4; ++i) {
    live.push_back(Sequence::create(m, kv).value());
    ASSERT_TRUE(live.back().append(std::vector<int32_t>(60 + i, 5 + i), 1, &logits).ok());
  }
  const DraftChooser greedy = m.greedy_chooser();
  DraftPlan drafts{5, {}};
  for (Sequence& s : live) drafts.sequences.push_back({.slot = s.slot(), .position = s.size() - 1, .token = 9});
  StepPlan decode, verify;
  const std::vector<int32_t> row = {11}, rows = {11, 12, 13, 14, 15, 16};
  for (Sequence& s : live) {
    ASSERT_TRUE(s.add_rows(decode, row, 1).ok());
    ASSERT_TRUE(s.add_rows(verify, rows, 6).ok());
  }
  const auto round = [&] {
    return m.draft(drafts, greedy).ok() && m.forward(verify).ok() && m.forward(decode).ok() &&
           m.ops().synchronize().ok();
  };
  ASSERT_TRUE(round());
  const int64_t before = allocations;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(round());
  EXPECT_EQ(allocations - before, 0);
}

TEST(Allocation, PlainStepsAllocateNothing) { check(ops::make_plain_ops(3)); }
TEST(Allocation, FastStepsAllocateNothing) { check(ops::make_cpu_ops(3)); }
TEST(Allocation, ReferenceStepsAllocateNothing) { check(ops::make_reference_ops(ops::ReferenceMode::kExact, 2)); }

}  // namespace
}  // namespace deepinfer::model
