#include "engine/tier_link.h"

#include <utility>

namespace deepinfer::engine {

TierLink::TierLink(std::shared_ptr<kv::Tier> tier, const ExecutorInfo& info, double timeout_s)
    : tier_(std::move(tier)),
      writer_(*tier_, {.page_bytes = info.block_bytes,
                       .windows_bytes = info.windows_bytes,
                       .in_flight_max = kTierPutsMax}),
      reader_(*tier_, {.page_bytes = info.block_bytes,
                       .in_flight_max = kTierGetsMax,
                       .timeout_s = timeout_s,
                       .on_other = [this](const kv::Tier::Completion& done) { writer_.completed(done); }}) {}

bool TierLink::pump(sched::Scheduler& scheduler, double now_s) {
  bool answered = false;
  if (in_flight() > 0) {
    reader_.poll(now_s, [&](const kv::TierReader::Arrived& a) {
      scheduler.tier_arrived(a.key, a.ok ? a.page : std::span<const std::byte>(), now_s, a.owner);
      answered = true;
    });
  }
  gets_.clear();
  scheduler.take_tier_gets(&gets_);
  for (const sched::TierGet& get : gets_) {
    if (reader_.fetch(get.key, get.tokens, now_s, get.info, get.bytes)) continue;
    scheduler.tier_arrived(get.key, {}, now_s);
    answered = true;
  }
  puts_.clear();
  scheduler.take_tier_puts(&puts_);
  for (const sched::TierPut& put : puts_) {
    if (scheduler.host().verify(put.host)) {
      writer_.write(put.key, put.tokens, scheduler.host().buffer(put.host), put.info);
    }
    scheduler.host().unpin(put.host);
  }
  return answered;
}

TierStats TierLink::stats() const {
  const kv::TierReaderCounters& r = reader_.counters();
  const kv::TierWriterCounters& w = writer_.counters();
  return {.hits = r.hits,
          .missing = r.missing,
          .damaged = r.damaged,
          .late = r.late,
          .errors = r.errors,
          .written = w.written,
          .write_failures = w.failed,
          .write_refusals = w.refused,
          .in_flight = in_flight()};
}

}  // namespace deepinfer::engine
