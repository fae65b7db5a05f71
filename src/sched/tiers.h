// Pages of lower tiers (kv/tier.h) as the scheduler sees them: what it wants from there, what came, what is to be
// written. The scheduler moves no bytes and waits for nothing; its owner does, between steps:
//
//   s->take_tier_gets(&gets);      for each: reader.fetch(get.key, get.tokens, now, get.info, get.bytes)
//   s->tier_arrived(key, page, now, owner);                      // an empty page: it is not there, late or damaged;
//                                                                // with an owner it is kept by reference
//   s->take_tier_puts(&puts);      for each: if (s->host().verify(put.host))
//                                              writer.write(put.key, put.tokens, s->host().buffer(put.host), put.info);
//                                            s->host().unpin(put.host);
//
// Policy. A request whose prompt goes on behind what the device's prefix index holds asks for its missing blocks up to
// where cached KV saves rows (kv/hit_plan.h): for those that are known to be there (SchedulerConfig::tier_known), else
// for the first, and if that comes for all. It does not ask if loading them takes longer, by what loads have taken
// lately and what is in flight already, than computing the rows that they save (StepCost); loads of a quarter of a
// second are never too slow. Meanwhile it is not in the queue, so that it holds nobody up, and it gives up waiting
// after tier_wait_s or as long as computing takes, whichever is less. What has come by its admission is used, the rest
// is computed. Requests with the same prefix wait for the first of them instead of asking again.
//
// Beside computing. With load_beside_s a request that is alone need not wait for its last pages: once it is known which
// blocks are there, or the first that is not has been answered, and all are asked for, it starts as if they had come.
// Its plan names them in Plan::beside, and no other rows. Before its commit() the owner says what became of them:
//
//   while (s->load_state() == LoadState::kComing && it is not too late) ...      // hand over what comes
//   s->end_load(s->load_state() == LoadState::kHere);
//
// Pages that did not come throw the step away: its rows and draws do not count, and the request goes back to wait for
// what is still under way, up to the gap, and starts again without what has not come.
//
// Windows. With tier_snapshots the snapshots of encoder windows (design.md 6) are written as well, under a key of their
// own (kv::windows_key) with the tokens of the block before their border; they are larger or smaller than pages
// (TierGet::bytes). Who asks for blocks asks for the windows before the last border that they reach, or for those
// before one of the borders below it, waits for them as for the blocks, and runs none of the replayed rows; without
// them, or if they are damaged, it replays. What came is a snapshot in host memory like any other.
//
// Pages lie in host memory, at most half of host_bytes_max, until the request is admitted; a lost race
// (the blocks before them were evicted) throws them away, counted. Every block that was computed here and entered the
// prefix index is written, once its bytes are in host memory; beyond tier_puts_max, or without host memory, it is not,
// counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache_key.h"
#include "kv/tier.h"

namespace deepinfer::sched {

struct TierGet {
  kv::BlockKey key;
  std::span<const int32_t> tokens;  // valid until the next call of the scheduler
  kv::PutInfo info;                 // of who asks
  size_t bytes = 0;                 // of the page: SchedulerConfig::block_bytes, or snapshot_bytes of windows
};

// Of the pages in the newest plan's `beside`: none are named; some are under way; all are there; some will not come.
enum class LoadState : uint8_t { kNone, kComing, kHere, kLost };

struct TierPut {
  kv::BlockKey key;
  std::vector<int32_t> tokens;
  int host = -1;  // entry of Scheduler::host() with the page; to be unpinned
  kv::PutInfo info;
};

}  // namespace deepinfer::sched
