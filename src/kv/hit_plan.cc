#include "kv/hit_plan.h"

#include <algorithm>

namespace deepinfer::kv {
namespace {

int border_below(const WindowShape& shape, int position) {
  return position <= 0 ? 0 : position / shape.block_tokens * shape.block_tokens;
}

}  // namespace

int encoder_border(const WindowShape& shape, const HitInput& in) {
  return std::min(in.hit, border_below(shape, in.decoder_begin));
}

HitPlan plan_hit(const WindowShape& shape, const HitInput& in) {
  HitPlan p;
  if (in.hit <= 0) return p;
  p.cached = in.hit;
  p.kind = HitKind::kFromStart;
  const int border = encoder_border(shape, in);
  const int replay = in.exactness == Replay::kExact ? border - shape.replay_rows() : border - shape.window;
  if (in.snapshot > 0 && in.snapshot <= border && in.snapshot >= replay) {
    p.kind = HitKind::kSnapshot;
    p.start = in.snapshot;
    p.window_begin = std::max(0, in.snapshot - (shape.window - 1));
    return p;
  }
  if (in.exactness == Replay::kExact) p.exact_begin = border;
  if (replay <= 0) return p;
  p.kind = in.exactness == Replay::kExact ? HitKind::kExactReplay : HitKind::kBoundedReplay;
  p.start = p.window_begin = replay;
  return p;
}

int snapshot_border(const WindowShape& shape, int length, int keep) { return border_below(shape, length - keep); }

}  // namespace deepinfer::kv
