// Where the encoder must start for a sequence whose first blocks are cached (design.md 6, spec/model.md 15.6).
//
//   HitPlan p = plan_hit(shape, {.hit = 3968, .decoder_begin = 3960, .snapshot = 3840, .exactness = Replay::kExact});
//   // p.start = 3840: rows 3840.. run through the encoder; those below 3968 read shared blocks and do not write them
//
// With H cached tokens and the decoder half beginning at row D, the encoder runs from E = min(H, last block border <=
// D) on, and its windows before E have to come from somewhere:
//   snapshot   of the windows at a border S <= E: rows S..E are run again
//   exact      rows from E - (W + (encoder layers - 1)(W - 1)) on run again, without windows before: exact from E on
//   bounded    rows from E - W on, attention only among them: approximate
// The one with the fewest rows is taken, bounded only where it is asked for. Since E is a border, the windows that a
// snapshot of this prompt needs are exact as well: its own border (snapshot_border) is never before E. Errors: none;
// impossible input gives a cold start.
#pragma once

#include <cstdint>

#include "kv/block_pool.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {

struct WindowShape {
  int block_tokens = kBlockTokens;
  int window = 128;
  int encoder_layers = 20;

  // Rows that make every encoder window before a position exact again: 2,541 at full size.
  int replay_rows() const { return window + (encoder_layers - 1) * (window - 1); }
};

enum class HitKind : uint8_t { kCold, kFromStart, kSnapshot, kExactReplay, kBoundedReplay };

struct HitInput {
  int hit = 0;             // cached tokens: whole blocks
  int decoder_begin = 0;   // of the sequence
  int snapshot = -1;       // largest border <= encoder_border() with a snapshot; -1: none
  Replay exactness = Replay::kExact;
};

struct HitPlan {
  HitKind kind = HitKind::kCold;
  int start = 0;         // first row to run
  int window_begin = 0;  // encoder windows hold nothing below
  int exact_begin = 0;   // rows below run for the windows of those behind alone; 0: none do
  int cached = 0;        // rows below never write global KV
  int replayed() const { return cached > start ? cached - start : 0; }  // rows run although their KV was there
};

// E above: snapshots at borders in (E - replay_rows(), E] are of use.
int encoder_border(const WindowShape& shape, const HitInput& in);
HitPlan plan_hit(const WindowShape& shape, const HitInput& in);

// The border at which a snapshot serves every continuation of a text of `length` tokens: the last one <= length - keep;
// 0: none.
int snapshot_border(const WindowShape& shape, int length, int keep);

}  // namespace deepinfer::kv
