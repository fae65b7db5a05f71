#include <algorithm>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

// ---- blocks ---------------------------------------------------------------------------------------------------------

Sequence* Scheduler::Impl::victim(const Sequence& s) const {
  const int64_t step = current().plan.step.step;
  for (auto it = running.rbegin(); it != running.rend() && *it != &s; ++it) {
    if ((*it)->in_plan != step && !(*it)->blocks.empty()) return *it;
  }
  return nullptr;
}

int Scheduler::Impl::take_block(const Sequence& s) {
  for (;;) {
    int b = blocks.take();
    if (b == kv::kNoBlock && index.evict(1) > 0) b = blocks.take();
    if (b != kv::kNoBlock) return b;
    Sequence* v = victim(s);
    if (v == nullptr) return kv::kNoBlock;
    preempt(*v);
  }
}

bool Scheduler::Impl::grow(Sequence& s, int end) {
  const int first_written = std::max(s.planned, s.state.cached);
  if (const int at = first_written / config.block_tokens;
      at < static_cast<int>(s.blocks.size()) && blocks.holders(s.blocks[at]) > 1) {
    const int copy = take_block(s);
    if (copy == kv::kNoBlock) return false;
    if (blocks.holders(s.blocks[at]) > 1) {
      current().plan.before.push_back({.kind = MemoryOp::Kind::kCopyBlock, .from = s.blocks[at], .to = copy});
      blocks.release(s.blocks[at]);
      s.blocks[at] = copy;
      ++stats.copies_on_write;
    } else {  // the other holder was preempted to make room
      blocks.release(copy);
    }
  }
  while (static_cast<int>(s.blocks.size()) < pages(end)) {
    const int b = take_block(s);
    if (b != kv::kNoBlock) {
      s.blocks.push_back(b);
      continue;
    }
    // Alone and still too little: nothing that could come back would be enough.
    if (running.size() == 1 && draining == 0) finish(s, EndReason::kKvFull);
    return false;
  }
  return true;
}

void Scheduler::Impl::release_memory(Sequence& s) {
  drop_pages(s);
  release_claims(s);
  release_device(s);
}

void Scheduler::Impl::release_device(Sequence& s) {
  s.loaded_begin = s.loaded_end = 0;
  index.drop(s.node);
  s.node = kv::kNoNode;
  s.indexed = 0;
  for (auto it = s.blocks.rbegin(); it != s.blocks.rend(); ++it) blocks.release(*it);
  s.blocks.clear();
  if (s.slot >= 0) slots.release(s.slot);
  s.slot = -1;
  slots_reserved -= s.reserved_slots;
  s.reserved_slots = 0;
}

// ---- preemption -----------------------------------------------------------------------------------------------------

bool Scheduler::Impl::spill(Sequence& s) {
  if (!config.spill || config.host_bytes_max == 0) return false;
  const int id = host.reserve(config.slot_bytes + s.blocks.size() * config.block_bytes);
  if (id == kv::kNoEntry) return false;
  auto& before = current().plan.before;
  before.push_back({.kind = MemoryOp::Kind::kSaveSlot, .from = s.slot, .host = id});
  for (size_t i = 0; i < s.blocks.size(); ++i) {
    before.push_back({.kind = MemoryOp::Kind::kSaveBlock, .from = s.blocks[i], .host = id,
                      .offset = static_cast<int64_t>(config.slot_bytes + i * config.block_bytes)});
  }
  before.push_back({.kind = MemoryOp::Kind::kSeal, .host = id});
  s.spill = id;
  s.spill_blocks = static_cast<int>(s.blocks.size());
  return true;
}

void Scheduler::Impl::restart(Sequence& s) {
  s.planned = s.written = s.state.computed = s.state.cached = s.state.window_begin = s.exact_begin = 0;
}

void Scheduler::Impl::drop_spill(Sequence& s) {
  if (s.spill != kv::kNoEntry) host.unpin(s.spill);
  s.spill = kv::kNoEntry;
  s.spill_blocks = 0;
}

void Scheduler::Impl::preempt(Sequence& s) {
  index_blocks(s);
  if (spill(s)) {
    ++stats.spilled;
  } else {
    restart(s);
    ++stats.recomputed;
  }
  stop_running(s);
  release_memory(s);
  s.phase = Phase::kWaiting;
  ++s.progress.preemptions;
  queue.push_front(s.flow, &s);
  admission_blocked_at = -1;
}

// ---- admission ------------------------------------------------------------------------------------------------------

int64_t Scheduler::Impl::blocks_to_admit(const Sequence& s, int shared_blocks) const {
  int64_t wanted = std::max(pages(s.known()), s.spill_blocks) - shared_blocks;
  for (const Sequence* r : running) wanted += std::max(0, pages(r->known()) - static_cast<int>(r->blocks.size()));
  // Each running sequence may soon want one more: admitting into the last blocks would only preempt again.
  return wanted + std::min<int64_t>(static_cast<int64_t>(running.size()), config.blocks / 16);
}

bool Scheduler::Impl::admit(Sequence& s) {
  const int samples = s.forked ? 1 : s.request.samples;
  if (!s.idle()) return false;  // its last plan is still open
  if (slots.free_count() - slots_reserved < samples) return false;
  if (static_cast<int>(running.size()) + slots_reserved + samples > config.sequences_max) return false;
  if (s.spill != kv::kNoEntry && !host.sealed(s.spill)) return false;

  kv::PrefixIndex::Match match;
  // A bounded replay computes other bits than the spilled ones, so there nothing is mixed.
  if (s.request.cache && s.request.prefill == Prefill::kTail &&
      (s.spill == kv::kNoEntry || config.scope.replay == kv::Replay::kExact)) {
    const auto whole =
        static_cast<size_t>((s.spill == kv::kNoEntry ? s.known() : s.state.computed) / config.block_tokens);
    extend_keys(s, static_cast<int>(whole));
    match = index.match(std::span<const kv::BlockKey>(s.keys).first(whole), s.state.tokens, now_s, s.request.ttl_s);
  }
  index.hold(match.node);
  const int room = blocks.free_count() + index.evictable();
  const bool alone = running.empty() && draining == 0;
  if (!alone && blocks_to_admit(s, match.blocks) > room) {
    index.drop(match.node);
    admission_blocked_at = blocks.free_count() + index.evictable();
    return false;
  }
  queue.take(s.flow);
  // Room for the output, so that decode steps do not allocate; answers beyond 64 k tokens grow by doubling.
  const int64_t expected = s.state.prompt_tokens + std::min<int64_t>(s.max_output, 1 << 16);
  s.state.tokens.reserve(expected);
  s.blocks.reserve(pages(expected + config.drafts_max + 1));
  s.slot = slots.take();
  s.reserved_slots = samples - 1;
  slots_reserved += s.reserved_slots;
  s.node = match.node;
  s.indexed = match.blocks;
  index.share_blocks(match, &s.blocks);
  s.skips = 0;
  const bool first = s.progress.preemptions == 0;
  run(s);
  if (s.spill != kv::kNoEntry) {
    if (restore(s)) return true;
    ++stats.spill_losses;
    drop_spill(s);
    restart(s);
  }
  load_fetched(s, match.blocks);
  start_rows(s, static_cast<int>(s.blocks.size()) * config.block_tokens);
  if (first) {
    s.progress.cached_tokens = s.state.cached;
    s.progress.fetched_tokens = (s.loaded_end - s.loaded_begin) * config.block_tokens;
    stats.cached_tokens += s.state.cached;
    const int64_t rows = s.known() - s.planned;
    queue.charge(s.flow, static_cast<double>(std::max<int64_t>(rows - s.charged, 0)));
    s.charged = std::max(rows, s.charged);
  }
  return true;
}

bool Scheduler::Impl::restore(Sequence& s) {
  if (!host.verify(s.spill)) return false;
  // Blocks that are still in the index need no copy: their tokens were compared.
  const int shared = static_cast<int>(s.blocks.size());
  while (static_cast<int>(s.blocks.size()) < s.spill_blocks) {
    const int b = take_block(s);
    if (b != kv::kNoBlock) {
      s.blocks.push_back(b);
      continue;
    }
    for (; static_cast<int>(s.blocks.size()) > shared; s.blocks.pop_back()) blocks.release(s.blocks.back());
    return false;
  }
  OpenPlan& p = current();
  p.plan.before.push_back({.kind = MemoryOp::Kind::kLoadSlot, .to = s.slot, .host = s.spill});
  for (int i = shared; i < s.spill_blocks; ++i) {
    p.plan.before.push_back({.kind = MemoryOp::Kind::kLoadBlock, .to = s.blocks[i], .host = s.spill,
                             .offset = static_cast<int64_t>(config.slot_bytes + i * config.block_bytes)});
  }
  p.pinned.push_back(s.spill);
  s.spill = kv::kNoEntry;
  s.spill_blocks = 0;
  return true;
}

void Scheduler::Impl::start_rows(Sequence& s, int hit) {
  kv::HitInput in{.hit = hit, .decoder_begin = s.state.decoder_begin, .exactness = config.scope.replay};
  in.snapshot = find_snapshot(s, in);
  kv::HitPlan plan = kv::plan_hit(shape, in);
  if (plan.kind == kv::HitKind::kSnapshot) {
    const kv::BlockKey& key = s.keys[plan.start / config.block_tokens - 1];
    const int id = host.find(key, now_s);
    if (id == kv::kNoEntry) {  // damaged, too old or still being written: a miss
      in.snapshot = -1;
      plan = kv::plan_hit(shape, in);
    } else {
      ++stats.snapshots_used;
      s.continues_answer = host.tag(id) == kAnswerSnapshot;
      s.restored_from = key;
      current().plan.before.push_back(
          {.kind = MemoryOp::Kind::kLoadWindows, .to = s.slot, .host = id, .border = plan.start});
      current().pinned.push_back(id);
    }
  }
  s.state.cached = plan.cached;
  s.state.window_begin = plan.window_begin;
  s.exact_begin = plan.exact_begin;
  s.planned = s.written = s.draft_begin = s.state.computed = plan.start;
  s.progress.hit = plan.kind;
  s.progress.replayed_rows += plan.replayed();
  stats.replayed_rows += plan.replayed();
}

// ---- cache ----------------------------------------------------------------------------------------------------------

void Scheduler::Impl::make_keys(const kv::BlockKey& root, std::span<const int32_t> tokens,
                                std::span<const ImageSpan> images, size_t count,
                                std::vector<kv::BlockKey>* keys) const {
  const auto block = static_cast<size_t>(config.block_tokens);
  std::vector<kv::ImageDigest> digests;
  for (size_t i = keys->size(); i < count; ++i) {
    const auto begin = static_cast<int64_t>(i * block), end = static_cast<int64_t>((i + 1) * block);
    digests.clear();
    for (const ImageSpan& image : images) {
      if (image.begin < end && image.begin + image.count > begin) digests.push_back(image.digest);
    }
    keys->push_back(kv::next_key(i == 0 ? root : keys->back(), tokens.subspan(i * block, block), digests));
  }
}

void Scheduler::Impl::extend_keys(Sequence& s, int count) {
  if (static_cast<int>(s.keys.size()) >= count) return;
  make_keys(tenants[s.request.tenant].root, s.state.tokens, s.request.images, count, &s.keys);
}

void Scheduler::Impl::index_blocks(Sequence& s) {
  if (!s.request.cache) return;
  const int whole = static_cast<int>(std::min<int64_t>(s.state.computed, s.known())) / config.block_tokens;
  extend_keys(s, whole);
  const auto block = static_cast<size_t>(config.block_tokens);
  while (s.indexed < whole) {
    const std::span<const int32_t> tokens = std::span<const int32_t>(s.state.tokens).subspan(s.indexed * block, block);
    const int64_t inserted = index.counters().inserted;
    const int node = index.insert(s.node, s.keys[s.indexed], tokens, s.blocks[s.indexed], now_s, s.request.ttl_s);
    if (node == kv::kNoNode) return;
    const bool computed_here = s.indexed < s.loaded_begin || s.indexed >= s.loaded_end;
    if (config.tier_gets_max > 0 && computed_here && index.counters().inserted > inserted)
      put_block(s, s.keys[s.indexed], tokens, s.blocks[s.indexed]);
    if (int32_t& own = s.blocks[s.indexed]; index.block_of(node) != own) {
      // Somebody else computed the same tokens first. Exact blocks are equal bit for bit: one is enough.
      if (config.scope.replay != kv::Replay::kExact) return;
      blocks.share(index.block_of(node));
      blocks.release(own);
      own = index.block_of(node);
    }
    index.move_hold(s.node, node);
    s.node = node;
    ++s.indexed;
  }
  if (s.fetch && s.phase == Phase::kRunning && s.indexed >= s.loaded_end) release_claims(s);
}

}  // namespace deepinfer::sched
