// Pages of lower tiers (kv/tier.h) as the scheduler sees them: what it wants from there, what came, what is to be
// written. The scheduler moves no bytes and waits for nothing; its owner does, between steps:
//
//   s->take_tier_gets(&gets);      for each: reader.fetch(get.key, get.tokens, now, get.info)
//   s->tier_arrived(key, page, now);                             // an empty page: it is not there, late or damaged
//   s->take_tier_puts(&puts);      for each: if (s->host().verify(put.host))
//                                              writer.write(put.key, put.tokens, s->host().buffer(put.host), put.info);
//                                            s->host().unpin(put.host);
//
// Policy. A request whose prompt goes on behind what the device's prefix index holds asks for its first missing block;
// if that comes, for all up to where cached KV saves rows (kv/hit_plan.h). It does not ask if loading them takes
// longer, by what loads have taken lately and what is in flight already, than computing the rows that they save
// (StepCost); loads of a quarter of a second are never too slow. Meanwhile it is not in the queue, so that it holds
// nobody up, and it gives up waiting after tier_wait_s or as long as computing takes, whichever is less. What has come
// by its admission is used, the rest is computed. Requests with the same prefix wait for the first of them instead of
// asking again. Pages lie in host memory, at most half of host_bytes_max, until the request is admitted; a lost race
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
};

struct TierPut {
  kv::BlockKey key;
  std::vector<int32_t> tokens;
  int host = -1;  // entry of Scheduler::host() with the page; to be unpinned
  kv::PutInfo info;
};

}  // namespace deepinfer::sched
