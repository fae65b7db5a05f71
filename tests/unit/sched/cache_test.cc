// Prefix hits: who hits what, where the encoder starts, snapshots.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

struct Hit {
  int cached = 0, replayed = 0, first_row = 0, window_begin = 0;
  kv::HitKind kind = kv::HitKind::kCold;
};

Hit run_once(Driver& d, Request r) {
  const int64_t id = d.submit(std::move(r));
  const auto& plan = d.step();
  Hit hit;
  for (const model::StepSequence& s : plan.step.sequences) {
    if (s.id == id) hit = {.cached = s.cached, .first_row = s.first_position, .window_begin = s.window_begin};
  }
  const Progress p = d.s->progress(id);
  hit.replayed = p.replayed_rows;
  hit.kind = p.hit;
  if (d.s->progress(id).output_tokens > 0) {
    EXPECT_EQ(p.cached_tokens, hit.cached);
  }
  d.drain();
  return hit;
}

Request ask(int length, int max_tokens = 2) { return {.prompt = prompt_of(length), .max_tokens = max_tokens}; }

// window 4, 2 encoder layers: 7 rows of replay; KEEP 8; blocks of 8.
TEST(Cache, SamePromptAgainStartsAtItsSnapshot) {
  Driver d(small_config());
  EXPECT_EQ(run_once(d, ask(60)).kind, kv::HitKind::kCold);
  const Hit hit = run_once(d, ask(60, 3));
  EXPECT_EQ(hit.cached, 56);
  EXPECT_EQ(hit.kind, kv::HitKind::kSnapshot);
  EXPECT_EQ(hit.first_row, 48) << "the last border that is at least KEEP before the end";
  EXPECT_EQ(hit.window_begin, 45);
  EXPECT_EQ(hit.replayed, 8);
  EXPECT_EQ(d.s->stats().snapshots_used, 1);
}

TEST(Cache, WithoutSnapshotsTheWindowsAreReplayed) {
  SchedulerConfig c = small_config();
  c.snapshot_bytes = 0;
  Driver d(c);
  run_once(d, ask(60));
  const Hit hit = run_once(d, ask(60, 3));
  EXPECT_EQ(hit.kind, kv::HitKind::kExactReplay);
  EXPECT_EQ(hit.first_row, 48 - 7);
  EXPECT_EQ(hit.window_begin, 41);
}

TEST(Cache, BoundedReplayOnlyWhereAskedFor) {
  SchedulerConfig c = small_config();
  c.snapshot_bytes = 0;
  c.scope.replay = kv::Replay::kBounded;
  Driver d(c);
  run_once(d, ask(60));
  const Hit hit = run_once(d, ask(60, 3));
  EXPECT_EQ(hit.kind, kv::HitKind::kBoundedReplay);
  EXPECT_EQ(hit.first_row, 44);
}

TEST(Cache, NoHitsAcrossTenantsOrScopesOrForThoseWhoDoNotWantThem) {
  Driver d(small_config());
  const int32_t other = d.s->add_tenant("other", 1).value();
  run_once(d, ask(60));
  Request r = ask(60);
  r.tenant = other;
  EXPECT_EQ(run_once(d, std::move(r)).cached, 0);
  r = ask(60);
  r.cache = false;
  EXPECT_EQ(run_once(d, std::move(r)).cached, 0);
  r = ask(60);
  r.prefill = Prefill::kFull;
  EXPECT_EQ(run_once(d, std::move(r)).cached, 0);
  r = ask(60);
  r.images.push_back({.begin = 2, .count = 2, .digest = {1}});
  EXPECT_EQ(run_once(d, std::move(r)).cached, 0);
  EXPECT_EQ(run_once(d, ask(60)).cached, 56);

  const SchedulerConfig base = small_config();
  std::vector<SchedulerConfig> scopes(5, base);
  scopes[0].scope.checkpoint = "b";
  scopes[1].scope.kv_dtype = "b";
  scopes[2].scope.numeric_class = "b";
  scopes[3].scope.layout = "b";
  scopes[4].scope.replay = kv::Replay::kBounded;
  Driver a(base);
  for (const SchedulerConfig& c : scopes) {
    Driver b(c);
    EXPECT_NE(a.s->prompt_keys(0, prompt_of(8), {}), b.s->prompt_keys(0, prompt_of(8), {}));
  }
}

TEST(Cache, AConversationGoesOnAtItsAnswersSnapshotWhichIsThenSuperseded) {
  SchedulerConfig c = small_config();
  c.encoder_layers = 4;  // 13 rows of replay, so that a snapshot a block away is nearer
  Driver d(c);
  const int64_t id = d.submit({.prompt = prompt_of(30), .max_tokens = 40});
  std::vector<int32_t> text;
  while (d.s->has_work()) {
    d.step();
    if (!d.s->tokens(id).empty()) text.assign(d.s->tokens(id).begin(), d.s->tokens(id).end());
  }
  ASSERT_GE(text.size(), 69u);
  for (int i = 0; i < 15; ++i) text.push_back(5000 + i);
  const Hit hit = run_once(d, {.prompt = text, .max_tokens = 2});
  EXPECT_EQ(hit.kind, kv::HitKind::kSnapshot);
  EXPECT_EQ(hit.cached, 64) << "the answer's blocks are in the cache too";
  EXPECT_EQ(hit.first_row, 56);
  EXPECT_EQ(d.s->host().counters().superseded, 1);
}

TEST(Cache, DamagedSnapshotsAreMisses) {
  SchedulerConfig c = small_config();
  bool damaged = false;
  c.faults.hook = [&](kv::FaultPoint p) { return damaged && p == kv::FaultPoint::kHostVerify; };
  Driver d(c);
  run_once(d, ask(60));
  damaged = true;
  EXPECT_EQ(run_once(d, ask(60)).kind, kv::HitKind::kExactReplay);
  EXPECT_EQ(d.s->host().counters().damaged, 1);
}

TEST(Cache, RequestsThatRunTogetherShareFinishedBlocks) {
  SchedulerConfig c = small_config();
  c.rows_max = 16;
  Driver d(c);
  d.submit(ask(60, 20));
  for (int i = 0; i < 3; ++i) d.step();
  const int64_t second = d.submit(ask(60, 20));
  for (int i = 0; i < 6 && !d.s->progress(second).running; ++i) d.step();
  EXPECT_GE(d.s->progress(second).cached_tokens, 48);
  d.drain();
}

TEST(Cache, BlocksExpireByTheirClass) {
  Driver d(small_config());
  Request r = ask(60);
  r.ttl_s = 100;
  run_once(d, std::move(r));
  d.now += 50;
  r = ask(60);
  r.ttl_s = 100;
  EXPECT_EQ(run_once(d, std::move(r)).cached, 56);
  d.now += 101;
  EXPECT_EQ(run_once(d, ask(60)).cached, 0);
}

}  // namespace
}  // namespace deepinfer::sched
