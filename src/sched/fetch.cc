#include <algorithm>
#include <utility>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {
namespace {

// So long a wait for pages is no worse than what measurements are off by.
constexpr double kShortWaitS = 0.25;

}  // namespace

// ---- what to ask for ------------------------------------------------------------------------------------------------

int Scheduler::Impl::start_with(const Sequence& s, int count) const {
  kv::HitInput in{.hit = count * config.block_tokens, .decoder_begin = s.state.decoder_begin,
                  .exactness = config.scope.replay};
  in.snapshot = find_snapshot(s, in);
  return kv::plan_hit(shape, in).start;
}

double Scheduler::Impl::computing_takes_s(int rows) const {
  return cost.prefill_row_s > 0 ? rows * cost.prefill_row_s : kNever;
}

bool Scheduler::Impl::choose_blocks(Sequence& s) {
  // Behind the encoder's border all rows run anyway.
  int end = s.state.decoder_begin / config.block_tokens;
  const auto known = std::span<const kv::BlockKey>(s.keys).first(static_cast<size_t>(end));
  const int first = index.match(known, s.state.tokens, now_s, s.request.ttl_s).blocks;
  const uint64_t room = std::max(config.host_bytes_max / 2, fetch_bytes) - fetch_bytes;
  end = static_cast<int>(std::min<uint64_t>(
      static_cast<uint64_t>(end), static_cast<uint64_t>(first) + room / std::max<size_t>(config.block_bytes, 1)));
  if (first >= end) return false;
  bool sure = false;
  if (config.tier_known) {
    const auto wanted = known.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
    const kv::Tier::Known there = config.tier_known(wanted);
    // Where there is nothing the first block is asked for all the same, so that it counts as a miss.
    sure = there.all && there.keys > 0;
    if (sure) end = first + static_cast<int>(there.keys);
  }
  const int windows = choose_windows(s, end);
  const int saved = std::max(start_with(s, end), windows) - start_with(s, first);
  if (saved <= 0) return false;
  const double compute_s = std::max(kShortWaitS, computing_takes_s(saved));
  if (load_rate.seconds(end - first + gets_in_flight) > compute_s) {
    load_rate.fade();
    ++stats.tier_loads_declined;
    stats.tier_blocks_declined += end - first;
    return false;
  }
  Fetch& f = *s.fetch;
  f.first = f.next = f.arrived = first;
  f.end = end;
  f.sure = sure;
  f.here.assign(static_cast<size_t>(end - first), 0);
  f.until_s = std::min(f.until_s, now_s + compute_s);
  return true;
}

bool Scheduler::Impl::start_fetch(Sequence& s) {
  if (config.tier_gets_max == 0 || !s.request.cache || s.request.prefill != Prefill::kTail) return false;
  s.fetch.emplace();
  s.fetch->until_s = now_s + config.tier_wait_s;
  if (!choose_blocks(s)) {
    s.fetch.reset();
    return false;
  }
  s.phase = Phase::kFetching;
  fetching.push_back(&s);
  issue_gets(s);
  return true;
}

// Unless it is known, the first block tells whether there is anything; only then the others are worth asking for.
void Scheduler::Impl::issue_gets(Sequence& s) {
  Fetch& f = *s.fetch;
  const bool found = f.sure || f.arrived > f.first;
  if (found && f.asked) issue_window_gets(s);
  const int limit = found ? f.end : std::min(f.first + 1, f.end);
  for (; f.next < limit && gets_in_flight < config.tier_gets_max; ++f.next) {
    const auto at = static_cast<size_t>(f.next);
    const auto [it, added] = claims.try_emplace(s.keys[at], Claim{.by = &s, .block = f.next, .in_flight = true});
    if (!added) return;  // somebody else is at it
    if (gets_in_flight++ == 0) load_rate.asked(now_s);
    ++f.outstanding;
    stats.tier_loads += !f.asked;
    f.asked = true;
    // Windows in front: the step cannot begin without them, and blocks that lie together are read together.
    if (found) issue_window_gets(s);
    gets.push_back(s.keys[at]);
  }
}

void Scheduler::Impl::take_gets(std::vector<TierGet>* out) {
  const auto block = static_cast<size_t>(config.block_tokens);
  for (const kv::BlockKey& key : gets) {
    const auto it = claims.find(key);
    if (const Sequence* s = it->second.by; s != nullptr) {
      const size_t first = static_cast<size_t>(it->second.block) * block;
      out->push_back({key, std::span<const int32_t>(s->state.tokens).subspan(first, block), put_info(*s),
                      it->second.windows ? config.snapshot_bytes : config.block_bytes});
    } else {  // it ended before anybody was asked
      claims.erase(it);
      --gets_in_flight;
    }
  }
  gets.clear();
}

void Scheduler::Impl::advance_fetches() {
  size_t kept = 0;
  for (Sequence* s : fetching) {
    Fetch& f = *s->fetch;
    bool done = now_s >= f.until_s;
    stats.tier_loads_late += done && f.asked && f.arrived < f.end;
    if (!done && !f.asked && f.looked_at != claims_version) {
      // Who had the claim may have brought the blocks into the index meanwhile.
      f.looked_at = claims_version;
      done = !choose_blocks(*s);
    }
    if (!done) issue_gets(*s);
    done |= f.arrived >= f.end && f.outstanding == 0;
    if (!done) done = f.beside = may_load_beside(*s);
    if (!done) {
      fetching[kept++] = s;
      continue;
    }
    s->phase = Phase::kWaiting;
    queue.push_by_arrival(s->flow, s);
    admission_blocked_at = -1;
  }
  fetching.resize(kept);
}

// ---- what came ------------------------------------------------------------------------------------------------------

void Scheduler::Impl::arrived(const kv::BlockKey& key, std::span<const std::byte> page,
                              std::shared_ptr<const void> owner) {
  const auto it = claims.find(key);
  if (it == claims.end() || !it->second.in_flight) return;
  it->second.in_flight = false;
  --gets_in_flight;
  if (!page.empty()) it->second.windows ? load_rate.other_arrived(now_s) : load_rate.arrived(now_s);
  Sequence* s = it->second.by;
  const int block = it->second.block;
  if (s != nullptr) --s->fetch->outstanding;
  if (it->second.windows) {
    if (s != nullptr) --s->fetch->windows_outstanding;
    windows_arrived(it->second, page);
    claims.erase(it);
    return;
  }
  const bool wanted = s != nullptr && (s->phase != Phase::kRunning || s == loading);
  if (wanted && block < s->fetch->end && keep_page(*s, block, page, std::move(owner))) return;
  claims.erase(it);
  ++claims_version;
  if (!wanted) return;
  Fetch& f = *s->fetch;
  if (block < f.end) f.sure = true;
  f.end = std::min(f.end, block);  // what lies behind a gap is of no use
}

bool Scheduler::Impl::reserve_pages(Fetch& f) {
  if (f.host != kv::kNoEntry) return true;
  const size_t bytes = static_cast<size_t>(f.end - f.first) * config.block_bytes;
  f.host = host.reserve_parts(bytes, config.block_bytes);
  if (f.host == kv::kNoEntry) return false;
  fetch_bytes += bytes;
  f.here.resize(static_cast<size_t>(f.end - f.first));
  return true;
}

bool Scheduler::Impl::keep_page(Sequence& s, int block, std::span<const std::byte> page,
                                std::shared_ptr<const void> owner) {
  Fetch& f = *s.fetch;
  if (page.empty() || page.size() != config.block_bytes || !reserve_pages(f)) return false;
  const auto at = static_cast<size_t>(block - f.first);
  host.put_part(f.host, at * config.block_bytes, page, std::move(owner));
  f.here[at] = 1;
  while (f.arrived < f.end && f.here[static_cast<size_t>(f.arrived - f.first)] != 0) ++f.arrived;
  return true;
}

// Puts what has come behind the sequence's first `shared` blocks, at its admission, or what is to come.
void Scheduler::Impl::load_fetched(Sequence& s, int shared) {
  if (!s.fetch) return;
  Fetch& f = *s.fetch;
  const bool beside = loads_beside(s, shared);
  if (f.host == kv::kNoEntry) return;
  s.loaded_begin = s.loaded_end = shared;
  OpenPlan& p = current();
  for (int i = shared, end = beside ? f.end : f.arrived; i >= f.first && i < end; ++i) {
    const int b = take_block(s);
    if (b == kv::kNoBlock) break;
    s.blocks.push_back(b);
    s.loaded_end = i + 1;
    (beside ? p.plan.beside : p.plan.before)
        .push_back({.kind = MemoryOp::Kind::kLoadBlock, .to = b, .host = f.host,
                    .offset = static_cast<int64_t>(i - f.first) * static_cast<int64_t>(config.block_bytes)});
  }
  if (s.loaded_end > s.loaded_begin) {
    host.pin(f.host);
    p.pinned.push_back(f.host);
    if (beside) {
      loading = &s;
      ++stats.loads_beside;
      return;
    }
  }
  count_loaded(s);
  drop_pages(s);
}

void Scheduler::Impl::count_loaded(Sequence& s) {
  const int used = s.loaded_end - s.loaded_begin;
  stats.tier_blocks += used;
  stats.tier_losses += s.fetch->arrived - s.fetch->first - used;
}

void Scheduler::Impl::drop_pages(Sequence& s) {
  if (!s.fetch || s.fetch->host == kv::kNoEntry) return;
  Fetch& f = *s.fetch;
  fetch_bytes -= f.here.size() * config.block_bytes;
  host.seal(f.host, false);
  host.unpin(f.host);
  f.host = kv::kNoEntry;
}

void Scheduler::Impl::release_claims(Sequence& s) {
  if (!s.fetch) return;
  for (int i = s.fetch->first; i < s.fetch->next; ++i) {
    const auto it = claims.find(s.keys[static_cast<size_t>(i)]);
    if (it == claims.end() || it->second.by != &s) continue;
    it->second.by = nullptr;
    if (!it->second.in_flight) claims.erase(it);
  }
  for (size_t i = 0; i < s.fetch->borders_asked; ++i) {
    const auto it = claims.find(kv::windows_key(s.keys[static_cast<size_t>(s.fetch->borders[i]) - 1]));
    if (it != claims.end() && it->second.by == &s) it->second.by = nullptr;
  }
  ++claims_version;
  s.fetch.reset();
}

// ---- what goes there ------------------------------------------------------------------------------------------------

void Scheduler::Impl::put_block(const Sequence& s, const kv::BlockKey& key, std::span<const int32_t> tokens,
                                int block) {
  const int id = static_cast<int>(puts.size()) < config.tier_puts_max ? host.reserve(config.block_bytes) : kv::kNoEntry;
  if (id == kv::kNoEntry) {
    ++stats.tier_puts_skipped;
    return;
  }
  // A block that a preempted sequence leaves behind may be overwritten by the very step that is being planned.
  std::vector<MemoryOp>& copies = planning ? current().plan.before : pending;
  copies.push_back({.kind = MemoryOp::Kind::kSaveBlock, .from = block, .host = id});
  copies.push_back({.kind = MemoryOp::Kind::kSeal, .host = id});
  puts.push_back({.key = key,
                  .tokens = {tokens.begin(), tokens.end()},
                  .host = id,
                  .info = put_info(s)});
  ++stats.tier_puts;
}

kv::PutInfo Scheduler::Impl::put_info(const Sequence& s) const {
  return {.space = tenants[s.request.tenant].space, .ttl_s = s.request.ttl_s, .traffic = s.request.traffic};
}

// Their copies run in order, so that the sealed ones are in front.
void Scheduler::Impl::take_puts(std::vector<TierPut>* out) {
  size_t n = 0;
  while (n < puts.size() && host.sealed(puts[n].host)) ++n;
  std::move(puts.begin(), puts.begin() + static_cast<std::ptrdiff_t>(n), std::back_inserter(*out));
  puts.erase(puts.begin(), puts.begin() + static_cast<std::ptrdiff_t>(n));
}

}  // namespace deepinfer::sched
