#include "engine/stats_line.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::engine {
namespace {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// A line for each tier and kind of traffic, all tenants together, since the start.
void append_tiers(const std::vector<kv::TierCount>& counts, std::string* out) {
  std::map<std::pair<std::string_view, kv::Traffic>, kv::TierCount> sums;
  for (const kv::TierCount& c : counts) {
    kv::TierCount& sum = sums[{c.tier, c.traffic}];
    sum.gets += c.gets;
    sum.hits += c.hits;
    sum.puts += c.puts;
    sum.read_bytes += c.read_bytes;
    sum.written_bytes += c.written_bytes;
  }
  for (const auto& [of, sum] : sums) {
    *out +=
        fmt::format("  KV in {}, {}: {} of {} blocks found, {:.1f} MB read, {:.1f} MB in {} blocks written\n", of.first,
                    kv::traffic_name(of.second), sum.hits, sum.gets, 1e-6 * static_cast<double>(sum.read_bytes),
                    1e-6 * static_cast<double>(sum.written_bytes), sum.puts);
  }
}

// Drafts by their place in a round; none: an empty line.
std::string draft_line(const DraftStats& now, const DraftStats& before) {
  const auto of = [](int64_t a, int64_t b) { return static_cast<double>(a - b); };
  std::string places;
  for (size_t i = 0; i < now.verified.size(); ++i) {
    const double verified = of(now.verified[i], before.verified[i]);
    if (verified > 0) places += fmt::format(" {:.0f}%", 100 * of(now.accepted[i], before.accepted[i]) / verified);
  }
  if (places.empty()) return places;
  const double turns = of(now.turns, before.turns);
  std::string out =
      fmt::format("  drafts accepted by place:{} | {:.2f} verified and {:.2f} tokens a step and answer", places,
                  ratio(of(now.verify_rows, before.verify_rows), turns), ratio(of(now.tokens, before.tokens), turns));
  const double judged = of(now.confidence_judged, before.confidence_judged);
  if (judged > 0) {
    out += fmt::format(" | confidence off by {:.2f}", (now.confidence_error - before.confidence_error) / judged);
  }
  return out + "\n";
}

std::string work_line(const WorkStats& now, const WorkStats& before, double peak, double forward_s, double steps) {
  const double attention = now.work.attention - before.work.attention, index = now.work.index - before.work.index;
  const double total = now.work.total() - before.work.total();
  std::string out =
      fmt::format("  {:.3g} GFLOP a step ({:.0f}% attention, {:.0f}% index) | {:.3g} TFLOP/s, attention {:.3g}",
                  1e-9 * total / steps, 100 * ratio(attention, total), 100 * ratio(index, total),
                  1e-12 * ratio(total, forward_s), 1e-12 * ratio(attention, forward_s));
  if (peak > 0) {
    out += fmt::format(", {:.1f}% of {:.3g} (MFU)", 100 * ratio(total, forward_s * peak), 1e-12 * peak);
  }
  if (const double mean = now.expert_mean - before.expert_mean; mean > 0) {
    out +=
        fmt::format(" | experts: the busiest {:.2f} of the mean", (now.expert_busiest - before.expert_busiest) / mean);
  }
  return out + "\n";
}

}  // namespace

void StatsLine::on_step(const StepRecord& r) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Window& w = window_;
  ++all_steps_;
  ++w.steps;
  int64_t prefill_rows = 0;
  for (const model::StepSequence& s : r.plan.step.sequences) {
    const int64_t n = s.count, context = s.first_position + n;
    w.rows += n;
    if (s.kind == model::RowKind::kPrefill) {
      prefill_rows += n;
      w.chunks += s.outputs == 0;
    }
    w.keys += n * s.first_position + n * (n + 1) / 2;
    w.context_min = std::min(w.context_min, context);
    w.context_max = std::max(w.context_max, context);
  }
  for (size_t i = 0; i < r.plan.samples.size(); ++i) {
    const auto drawn = static_cast<int64_t>(r.result.samples[i].tokens.size());
    w.tokens += drawn;
    w.drafts += r.plan.samples[i].rows - 1;
    if (drawn > 0) w.accepted += drawn - 1;
  }
  w.prefill_rows += prefill_rows;
  w.prefill_steps += prefill_rows > 0;
  (prefill_rows > 0 ? w.prefill_s : w.decode_s) += r.at.ready - r.at.started;
  w.plan_max_s = std::max(w.plan_max_s, r.at.planned - r.at.begin);
  w.forward_max_s = std::max(w.forward_max_s, r.at.ready - r.at.started);
  w.sample_max_s = std::max(w.sample_max_s, r.at.sampled - r.at.ready);
  w.stream_max_s = std::max(w.stream_max_s, r.at.streamed - r.at.sampled);
}

void StatsLine::on_end(const Usage& usage, FinishReason reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Window& w = window_;
  ++w.ended;
  w.aborted +=
      reason == FinishReason::kCancelled || reason == FinishReason::kTimeout || reason == FinishReason::kFailed;
  w.prompt_tokens += usage.prompt_tokens;
  w.cached_tokens += usage.cached_tokens;
  w.output_tokens += usage.output_tokens;
  w.preemptions += usage.preemptions;
  w.first_token_s += usage.first_token_s;
  w.first_token_max_s = std::max(w.first_token_max_s, usage.first_token_s);
}

int64_t StatsLine::steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return window_.steps;
}

std::string StatsLine::take(const EngineStats& stats, const ExecutorInfo& info) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Window w = std::exchange(window_, Window());
  const StepTimes before = std::exchange(times_, stats.times);
  const double seconds = seconds_since(w.begin), steps = static_cast<double>(std::max<int64_t>(w.steps, 1));
  const auto per_second = [&](int64_t n) { return ratio(static_cast<double>(n), seconds); };
  const auto share = [](int64_t part, int64_t whole) {
    return 100 * ratio(static_cast<double>(part), static_cast<double>(whole));
  };
  const auto mean = [&](int64_t n) { return ratio(static_cast<double>(n), static_cast<double>(w.ended)); };
  const std::string_view kind = w.prefill_steps == 0 ? "decode" : w.prefill_steps == w.steps ? "prefill" : "mixed";
  const sched::SchedulerStats& s = stats.scheduler;
  const int64_t used = info.blocks - s.blocks_free - s.blocks_evictable;
  std::string out = fmt::format(
      "step {} ({}): {:.1f} steps/s, mean {:.1f} | prompt {:.1f}, answers {:.1f} tokens/s | drafts {} of {} accepted | "
      "running {}, "
      "waiting {}, chunked {} | {:.1f} rows a step, {:.0f}% full | KV blocks {:.0f}% used, {:.0f}% cached; slots "
      "{:.0f}% | forward "
      "{:.0f}% with "
      "prompts, {:.0f}% without | prompts {:.0f}% from the cache | first token mean {:.3f} s, longest {:.3f} s | ended "
      "{}: {:.0f} tokens "
      "in, {:.0f} out; preempted {}, aborted {} | contexts {} to {}, {:.0f} keys a step\n",
      all_steps_, kind, per_second(w.steps), ratio(static_cast<double>(all_steps_), seconds_since(begin_)),
      per_second(w.prefill_rows), per_second(w.tokens), w.accepted, w.drafts, s.running, s.waiting, w.chunks,
      static_cast<double>(w.rows) / steps, 100 * static_cast<double>(w.rows) / steps / info.rows_max,
      share(used, info.blocks), share(s.blocks_evictable, info.blocks), share(info.slots - s.slots_free, info.slots),
      100 * ratio(w.prefill_s, w.prefill_s + w.decode_s), 100 * ratio(w.decode_s, w.prefill_s + w.decode_s),
      share(w.cached_tokens, w.prompt_tokens), ratio(w.first_token_s, static_cast<double>(w.ended)),
      w.first_token_max_s, w.ended, mean(w.prompt_tokens), mean(w.output_tokens), w.preemptions, w.aborted,
      w.context_max > 0 ? w.context_min : 0, w.context_max, static_cast<double>(w.keys) / steps);
  const StepTimes& t = stats.times;
  struct Part {
    const char* name;
    double time, longest;  // 0: not known
  };
  out += fmt::format("  a step in us, mean (longest):");
  for (const Part& p :
       {Part{"plan", t.plan - before.plan, w.plan_max_s}, Part{"prepare", t.prepare - before.prepare, 0},
        Part{"launch", t.launch - before.launch, 0}, Part{"forward", t.forward - before.forward, w.forward_max_s},
        Part{"sample", t.sample - before.sample, w.sample_max_s}, Part{"commit", t.commit - before.commit, 0},
        Part{"stream", t.stream - before.stream, w.stream_max_s}}) {
    out += fmt::format(" {} {:.0f}", p.name, 1e6 * p.time / steps);
    if (p.longest > 0) out += fmt::format(" ({:.0f})", 1e6 * p.longest);
    out += fmt::format(" {:.1f}%", 100 * ratio(p.time, seconds));
  }
  out += "\n";
  out += draft_line(stats.drafts, std::exchange(drafts_, stats.drafts));
  if (stats.work) {
    out +=
        work_line(*stats.work, std::exchange(work_, *stats.work), info.peak_flops, t.forward - before.forward, steps);
  }
  append_tiers(stats.tier_counts, &out);
  if (s.tier_loads + s.tier_loads_declined > 0) {
    out += fmt::format(
        "  KV loads: {} prompts asked, {} did not get all in time; {} ({} blocks) did not ask, computing "
        "being faster\n",
        s.tier_loads, s.tier_loads_late, s.tier_loads_declined, s.tier_blocks_declined);
  }
  if (stats.weights)
    out += fmt::format("  {}\n", checkpoint::to_string(*stats.weights, s.prefill_rows + s.decode_rows));
  return out;
}

}  // namespace deepinfer::engine
