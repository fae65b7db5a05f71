#include <algorithm>
#include <cstring>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

int Scheduler::Impl::find_snapshot(const Sequence& s, const kv::HitInput& in) const {
  const int border = kv::encoder_border(shape, in);
  for (int at = border; at > 0 && at > border - shape.replay_rows(); at -= config.block_tokens) {
    if (host.contains(s.keys[at / config.block_tokens - 1])) return at;
  }
  return -1;
}

void Scheduler::Impl::save_windows(Sequence& s, int length, bool answer) {
  const int border = kv::snapshot_border(shape, length, config.keep);
  if (border == 0 || !s.request.cache || config.snapshot_bytes == 0 || config.host_bytes_max == 0) return;
  const int first = std::max(0, border - (config.window - 1));
  extend_keys(s, border / config.block_tokens);
  const kv::BlockKey& key = s.keys[border / config.block_tokens - 1];
  if (host.contains(key)) return;
  if (s.written - first > config.ring_slots) {  // overwritten: rings without room for history
    ++stats.snapshots_skipped;
    return;
  }
  const int id = host.reserve(config.snapshot_bytes, shape.replay_rows());
  if (id == kv::kNoEntry) {
    ++stats.snapshots_skipped;
    return;
  }
  host.publish(id, key, now_s + config.snapshot_ttl_s, answer ? kAnswerSnapshot : 0);
  pending.push_back({.kind = MemoryOp::Kind::kSaveWindows, .from = s.slot, .host = id, .border = border});
  pending.push_back({.kind = MemoryOp::Kind::kSeal, .host = id});
  ++stats.snapshots_taken;
  put_windows(s, border, id);
  // A conversation went on: the snapshot behind its last answer has served.
  if (!answer && s.continues_answer) host.supersede(s.restored_from);
}

void Scheduler::Impl::put_windows(Sequence& s, int border, int id) {
  if (!config.tier_snapshots || config.tier_gets_max == 0) return;
  if (static_cast<int>(puts.size()) >= config.tier_puts_max) {
    ++stats.tier_puts_skipped;
    return;
  }
  const auto block = static_cast<size_t>(config.block_tokens), end = static_cast<size_t>(border);
  const auto tokens = s.state.tokens.begin() + static_cast<std::ptrdiff_t>(end - block);
  host.pin(id);
  puts.push_back({.key = kv::windows_key(s.keys[end / block - 1]),
                  .tokens = {tokens, tokens + config.block_tokens},
                  .host = id,
                  .info = put_info(s)});
  ++stats.snapshots_put;
}

int Scheduler::Impl::choose_windows(Sequence& s, int end) {
  Fetch& f = *s.fetch;
  f.borders.clear();
  if (!config.tier_snapshots || config.snapshot_bytes == 0) return 0;
  const kv::HitInput in{
      .hit = end * config.block_tokens, .decoder_begin = s.state.decoder_begin, .exactness = config.scope.replay};
  const int border = kv::encoder_border(shape, in);
  // An earlier prompt whose last whole block this one shares left them at most so far below.
  const int near = border - (config.keep + config.block_tokens - 1) / config.block_tokens * config.block_tokens;
  for (int at = border; at > std::max({0, border - shape.replay_rows(), find_snapshot(s, in)});
       at -= config.block_tokens) {
    const int blocks = at / config.block_tokens;
    kv::Tier::Known there;
    const kv::BlockKey key = kv::windows_key(s.keys[static_cast<size_t>(blocks) - 1]);
    if (config.tier_known) there = config.tier_known(std::span(&key, 1));
    if (there.keys == 0 && (there.all || at < near)) continue;
    f.borders.push_back(blocks);
    if (there.keys > 0) return at;
  }
  return 0;
}

void Scheduler::Impl::issue_window_gets(Sequence& s) {
  Fetch& f = *s.fetch;
  for (; f.borders_asked < f.borders.size() && gets_in_flight < config.tier_gets_max; ++f.borders_asked) {
    const int block = f.borders[f.borders_asked] - 1;
    const kv::BlockKey key = kv::windows_key(s.keys[static_cast<size_t>(block)]);
    const Claim claim{.by = &s, .block = block, .in_flight = true, .windows = true};
    if (!claims.try_emplace(key, claim).second) continue;  // somebody else is at it
    if (gets_in_flight++ == 0) load_rate.asked(now_s);
    ++f.outstanding;
    ++f.windows_outstanding;
    gets.push_back(key);
  }
}

void Scheduler::Impl::windows_arrived(const Claim& claim, std::span<const std::byte> windows) {
  const Sequence* s = claim.by;
  if (s == nullptr || windows.size() != config.snapshot_bytes) return;
  const kv::BlockKey& key = s->keys[static_cast<size_t>(claim.block)];
  if (host.contains(key)) return;
  const int id = host.reserve(config.snapshot_bytes, shape.replay_rows());
  if (id == kv::kNoEntry) return;
  if (config.host_keeps_bytes) std::memcpy(host.buffer(id).data(), windows.data(), windows.size());
  host.publish(id, key, now_s + config.snapshot_ttl_s);
  host.seal(id);
  ++stats.snapshots_loaded;
}

}  // namespace deepinfer::sched
