// Where the encoder starts on a hit: the figures of design.md 6 and a brute-force check of what the windows then hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kv/hit_plan.h"

namespace deepinfer::kv {
namespace {

TEST(HitPlan, ReplayRowsOfTheTwoModels) {
  EXPECT_EQ((WindowShape{.window = 128, .encoder_layers = 20}.replay_rows()), 2541);
  EXPECT_EQ((WindowShape{.window = 64, .encoder_layers = 4}.replay_rows()), 253);
}

TEST(HitPlan, FullSizeFigures) {
  const WindowShape shape;  // 128 tokens, window 128, 20 layers
  const int keep = 140, n = 10'000, begin = n - keep;
  // Cold.
  EXPECT_EQ(plan_hit(shape, {.hit = 0, .decoder_begin = begin}).kind, HitKind::kCold);
  // A continuation behind 9,088 cached tokens, with and without its snapshot.
  HitPlan p = plan_hit(shape, {.hit = 9088, .decoder_begin = begin, .snapshot = 8832});
  EXPECT_EQ(p.kind, HitKind::kSnapshot);
  EXPECT_EQ(p.start, 8832);
  EXPECT_EQ(p.cached, 9088);
  EXPECT_EQ(p.window_begin, 8832 - 127);
  EXPECT_EQ(p.replayed(), 256);
  p = plan_hit(shape, {.hit = 9088, .decoder_begin = begin});
  EXPECT_EQ(p.kind, HitKind::kExactReplay);
  EXPECT_EQ(p.start, 9088 - 2541);
  EXPECT_EQ(p.window_begin, p.start);
  p = plan_hit(shape, {.hit = 9088, .decoder_begin = begin, .exactness = Replay::kBounded});
  EXPECT_EQ(p.kind, HitKind::kBoundedReplay);
  EXPECT_EQ(p.replayed(), 128);
  // The identical prompt again: the decoder's tail needs encoder rows from the border before it on.
  p = plan_hit(shape, {.hit = 9984, .decoder_begin = begin});
  EXPECT_EQ(p.start, 9856 - 2541);
  // A short prompt runs whole, but does not write what is there.
  p = plan_hit(shape, {.hit = 1280, .decoder_begin = 1300});
  EXPECT_EQ(p.kind, HitKind::kFromStart);
  EXPECT_EQ(p.start, 0);
  EXPECT_EQ(p.cached, 1280);
  // A snapshot that is farther away than the replay is of no use.
  EXPECT_EQ(plan_hit(shape, {.hit = 9088, .decoder_begin = begin, .snapshot = 6400}).kind, HitKind::kExactReplay);
}

TEST(HitPlan, SnapshotBorderServesEveryContinuation) {
  const WindowShape shape;
  for (int length : {100, 139, 140, 268, 269, 1000, 4096, 4097}) {
    const int s = snapshot_border(shape, length, 140);
    EXPECT_LE(s, std::max(0, length - 140));
    EXPECT_GT(s + 128, length - 140);
    EXPECT_EQ(s % 128, 0);
    for (int more : {0, 1, 5, 139, 140, 141, 127, 128, 129, 300}) {  // the text again, with a new part
      const HitInput in{.hit = length / 128 * 128, .decoder_begin = std::max(0, length + more - 140)};
      EXPECT_LE(s, encoder_border(shape, in)) << length << " + " << more;
    }
  }
}

// Marks, layer by layer, which rows are what a cold run would have, and checks that those that matter are.
TEST(HitPlan, ExactModesAreExactByBruteForce) {
  for (int window : {2, 3, 5}) {
    for (int layers : {1, 2, 3}) {
      const WindowShape shape{.block_tokens = 4, .window = window, .encoder_layers = layers};
      for (int n = 1; n < 60; ++n) {
        const int begin = std::max(0, n - window - 3);
        for (int hit = 4; hit <= n; hit += 4) {
          for (int snapshot = -1; snapshot <= encoder_border(shape, {.hit = hit, .decoder_begin = begin});
               snapshot += snapshot < 0 ? 5 : 4) {
            const HitPlan p = plan_hit(shape, {.hit = hit, .decoder_begin = begin, .snapshot = snapshot});
            std::vector<bool> exact(n, true);  // inputs of layer 0 are embeddings
            for (int layer = 0; layer < layers; ++layer) {
              std::vector<bool> out(n, false);
              // Rows before those that the layer may leave out (StepSequence::exact_begin) hold nothing right.
              const int left = p.exact_begin - window - (layers - 1 - layer) * (window - 1);
              for (int row = std::max(p.start, p.exact_begin > 0 ? left : 0); row < n; ++row) {
                out[row] = true;
                for (int q = std::max(0, row - window + 1); q <= row; ++q) {
                  const bool there =
                      p.kind == HitKind::kSnapshot && q < p.start ? q >= p.window_begin : q >= p.start && exact[q];
                  if (p.exact_begin > 0 && q < left) {
                    out[row] = false;
                    break;
                  }
                  out[row] = out[row] && there && q >= p.window_begin;
                }
              }
              exact = out;
            }
            for (int row = std::min(hit, begin); row < n; ++row)
              EXPECT_TRUE(exact[row]) << n << " " << hit << " " << snapshot << " row " << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::kv
