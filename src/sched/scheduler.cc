#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

std::string_view end_reason_name(EndReason reason) {
  switch (reason) {
    case EndReason::kStop: return "stop";
    case EndReason::kMaxTokens: return "max_tokens";
    case EndReason::kContextFull: return "context_full";
    case EndReason::kKvFull: return "kv_full";
    case EndReason::kCancelled: return "cancelled";
    case EndReason::kDeadline: return "deadline";
    case EndReason::kFailed: return "failed";
  }
  return "?";
}

Scheduler::Impl::Impl(const SchedulerConfig& c)
    : config(c),
      shape{.block_tokens = c.block_tokens, .window = c.window, .encoder_layers = c.encoder_layers},
      blocks(c.blocks),
      slots(c.slots),
      index(blocks, {.block_tokens = c.block_tokens, .attention_tokens = c.attention_tokens, .faults = c.faults}),
      host({.bytes_max = c.host_bytes_max, .keep_bytes = c.host_keeps_bytes, .faults = c.faults}),
      history(c.history_tokens) {
  running.reserve(c.sequences_max);
  walk.reserve(c.sequences_max);
  // What a step can hold is reserved once, so that making one allocates nothing; the cap is for contexts of millions.
  const int64_t ids =
      c.blocks_per_step_max > 0 ? c.blocks_per_step_max : static_cast<int64_t>(c.sequences_max) * pages(c.context_max);
  for (OpenPlan& p : open) {
    p.plan.step.blocks.reserve(std::min<int64_t>(ids, 4 << 20));
    p.plan.step.sequences.reserve(c.sequences_max);
    p.plan.step.tokens.reserve(c.rows_max);
    p.plan.step.history.reserve(static_cast<size_t>(c.sequences_max) * c.history_tokens);
    p.plan.samples.reserve(c.outputs_max);
    p.rows.reserve(c.sequences_max);
    p.draws.reserve(c.outputs_max);
  }
}

Status Scheduler::Impl::refuse(Limit limit, std::string message) {
  ++stats.limit_hits[static_cast<int>(limit)];
  return Status(Code::kResourceExhausted, std::move(message));
}

Status Scheduler::Impl::check_request(const Request& r) {
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return make_error(Code::kInvalidArgument, "the prompt is empty; it needs at least one token");
  if (r.max_tokens < 0 || r.samples < 1)
    return make_error(
        Code::kInvalidArgument,
        "max_tokens is {} and the number of answers {}; they may not be negative, and one answer is the least",
        r.max_tokens, r.samples);
  if (r.priority < -8 || r.priority > 8)
    return make_error(Code::kInvalidArgument, "priority is {}; it must be between -8 and 8", r.priority);
  if (r.tenant < 0 || r.tenant >= static_cast<int32_t>(tenants.size()))
    return make_error(Code::kInvalidArgument, "tenant {} does not exist", r.tenant);
  if (r.prompt_outputs && r.prefill != Prefill::kFull)
    return make_error(Code::kInvalidArgument, "logits of prompt rows need full prefill");
  if (prompt >= config.context_max) {
    return refuse(
        Limit::kContext,
        fmt::format("the prompt has {} tokens; with at least one token of output it must fit into context_max = {}",
                    prompt, config.context_max));
  }
  if (r.samples > config.samples_max)
    return refuse(Limit::kSamples,
                  fmt::format("{} answers to one prompt are over samples_max = {}", r.samples, config.samples_max));
  if (r.samples > std::min(config.slots, config.sequences_max)) {
    return refuse(
        Limit::kSlots,
        fmt::format("{} answers to one prompt need as many state slots; this engine runs {} sequences at once (slots)",
                    r.samples, std::min(config.slots, config.sequences_max)));
  }
  if (pages(prompt) > config.blocks || (config.blocks_per_step_max > 0 && pages(prompt) > config.blocks_per_step_max)) {
    return refuse(
        Limit::kBlocks,
        fmt::format(
            "the prompt's {} tokens need {} KV blocks and there are {}; give the engine more KV memory (blocks)",
            prompt, pages(prompt), config.blocks));
  }
  if (const size_t waiting = static_cast<size_t>(queue.size()) + fetching.size();
      waiting >= static_cast<size_t>(config.waiting_max))
    return refuse(Limit::kWaiting,
                  fmt::format("{} requests are waiting, which is waiting_max; try again later or raise it", waiting));
  return {};
}

Sequence& Scheduler::Impl::new_sequence() {
  if (spare.empty()) {
    all.push_back(std::make_unique<Sequence>());
  } else {
    all.push_back(std::move(spare.back()));
    spare.pop_back();
    *all.back() = Sequence{};
  }
  all.back()->at = all.size() - 1;
  return *all.back();
}

Result<int64_t> Scheduler::Impl::submit(Request&& request, double now) {
  now_s = std::max(now_s, now);
  DI_RETURN_IF_ERROR(check_request(request));
  Sequence& s = new_sequence();
  s.state.id = next_id;
  s.state.seed = request.seed;
  s.state.tokens = std::move(request.prompt);
  s.state.prompt_tokens = static_cast<int32_t>(s.state.tokens.size());
  s.state.decoder_begin = request.prefill == Prefill::kFull ? 0 : std::max(0, s.state.prompt_tokens - config.keep);
  s.keys = std::move(request.keys);
  s.request = std::move(request);
  s.request.cache = s.request.cache && config.prefix_cache;
  if (s.request.cache && s.keys.empty()) {
    make_keys(tenants[s.request.tenant].root, s.state.tokens, s.request.images,
              s.state.tokens.size() / config.block_tokens, &s.keys);
  }
  const int32_t room = config.context_max - s.state.prompt_tokens;
  s.max_output = s.request.max_tokens == 0 ? room : std::min(room, s.request.max_tokens);
  s.drafts.reserve(config.drafts_max + 1);
  s.forked = s.request.samples == 1;
  s.dropped.assign(s.request.samples, 0);
  s.flow = queue.flow(s.request.tenant, s.request.priority, tenants[s.request.tenant].weight);
  s.arrival = next_arrival++;
  next_deadline_s = std::min(next_deadline_s, s.request.deadline_s);
  for (int i = 0; i < s.request.samples; ++i) by_id[s.state.id + i] = &s;
  next_id += s.request.samples;
  if (!start_fetch(s)) queue.push_back(s.flow, &s);
  admission_blocked_at = -1;
  ++stats.submitted;
  return s.state.id;
}

Sequence* Scheduler::Impl::find(int64_t id) const {
  const auto it = by_id.find(id);
  return it == by_id.end() ? nullptr : it->second;
}

void Scheduler::Impl::cancel(int64_t id, EndReason reason) {
  Sequence* s = find(id);
  if (s == nullptr || s->phase == Phase::kEnded) return;
  if (s->forked) return finish(*s, reason);
  // One answer of several to a prompt that is not computed yet: the others go on.
  const auto sample = static_cast<size_t>(id - s->state.id);
  if (s->dropped[sample]) return;
  s->dropped[sample] = 1;
  report(id, reason);
  if (std::ranges::count(s->dropped, 0) == 0) finish(*s, reason);
}

void Scheduler::Impl::pass_deadlines(double now) {
  if (now < next_deadline_s) return;
  next_deadline_s = kNever;
  walk.clear();
  for (const auto& s : all) {
    if (s->phase == Phase::kEnded) continue;
    if (s->request.deadline_s <= now) walk.push_back(s.get());
    else next_deadline_s = std::min(next_deadline_s, s->request.deadline_s);
  }
  std::ranges::sort(walk, {}, [](const Sequence* s) { return s->state.id; });  // `all` is in no order
  for (Sequence* s : walk) {
    const int samples = s->forked ? 1 : s->request.samples;
    const int64_t id = s->state.id;
    for (int i = 0; i < samples; ++i) cancel(id + i, EndReason::kDeadline);
  }
}

Status Scheduler::Impl::check_accounting() const {
  const auto bad = [](int64_t count, std::string_view what) {
    return make_error(Code::kInternal, "scheduler accounting: {} {}", count, what);
  };
  if (open_count > 0) return bad(open_count, "plans are open");
  if (!all.empty()) return bad(all.size(), "sequences are left");
  if (slots.free_count() != slots.count()) return bad(slots.count() - slots.free_count(), "slots are lost");
  if (slots_reserved != 0) return bad(slots_reserved, "slots are still reserved");
  if (blocks.free_count() + index.size() != blocks.count())
    return bad(blocks.count() - blocks.free_count() - index.size(), "blocks are lost");
  if (fetch_bytes != 0) return bad(static_cast<int64_t>(fetch_bytes), "bytes of fetched pages are lost");
  if (host.owned() != 0) return bad(host.owned(), "host entries are lost");
  for (int b = 0; b < blocks.count(); ++b) {
    if (blocks.holders(b) > 1) return bad(b, "is a cached block with another holder");
  }
  return {};
}

SchedulerStats Scheduler::Impl::current_stats() const {
  SchedulerStats s = stats;
  s.waiting = queue.size();
  s.fetching = static_cast<int>(fetching.size());
  s.running = static_cast<int>(running.size());
  s.open_plans = open_count;
  s.blocks_free = blocks.free_count();
  s.blocks_evictable = index.evictable();
  s.slots_free = slots.free_count();
  return s;
}

Result<std::unique_ptr<Scheduler>> Scheduler::create(const SchedulerConfig& config) {
  DI_RETURN_IF_ERROR(check(config));
  std::unique_ptr<Scheduler> s(new Scheduler(std::make_unique<Impl>(config)));
  DI_RETURN_IF_ERROR(s->add_tenant("", 1).status());
  return s;
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

Result<int32_t> Scheduler::add_tenant(const std::string& name, double weight) {
  Impl& i = *impl_;
  if (!(weight >= 1e-6 && weight <= 1e6))
    return make_error(Code::kInvalidArgument, "the share of tenant '{}' is {}; it must be between 1e-6 and 1e6", name,
                      weight);
  if (static_cast<int>(i.tenants.size()) >= i.config.tenants_max)
    return i.refuse(Limit::kTenants, fmt::format("there are {} tenants, which is tenants_max", i.tenants.size()));
  kv::CacheScope scope = i.config.scope;
  scope.tenant = name;
  i.tenants.push_back({name, weight, kv::root_key(scope), kv::space_of(name)});
  return static_cast<int32_t>(i.tenants.size()) - 1;
}

void Scheduler::set_weight(int32_t tenant, double weight) {
  if (tenant < 0 || tenant >= static_cast<int32_t>(impl_->tenants.size()) || !(weight >= 1e-6 && weight <= 1e6)) return;
  impl_->tenants[tenant].weight = weight;
  impl_->queue.set_weight(tenant, weight);
}

std::vector<kv::BlockKey> Scheduler::prompt_keys(int32_t tenant, std::span<const int32_t> prompt,
                                                 std::span<const ImageSpan> images) const {
  std::vector<kv::BlockKey> keys;
  if (tenant < 0 || tenant >= static_cast<int32_t>(impl_->tenants.size())) return keys;
  impl_->make_keys(impl_->tenants[tenant].root, prompt, images, prompt.size() / impl_->config.block_tokens, &keys);
  return keys;
}

Result<int64_t> Scheduler::submit(Request request, double now_s) { return impl_->submit(std::move(request), now_s); }
void Scheduler::cancel(int64_t id) {
  impl_->cancel(id, EndReason::kCancelled);
  impl_->retire_ended();
}

void Scheduler::pause(int64_t id, bool paused) {
  if (Sequence* s = impl_->find(id); s != nullptr) s->paused = paused;
}

Status Scheduler::set_drafts(int64_t id, std::span<const int32_t> drafts) {
  if (static_cast<int>(drafts.size()) > impl_->config.drafts_max) {
    return impl_->refuse(Limit::kDrafts,
                         fmt::format("{} drafts are over drafts_max = {}", drafts.size(), impl_->config.drafts_max));
  }
  if (Sequence* s = impl_->find(id); s != nullptr && s->forked) s->drafts.assign(drafts.begin(), drafts.end());
  return {};
}

void Scheduler::set_draft_rows(int64_t id, int rows) {
  Sequence* s = impl_->find(id);
  if (s != nullptr && s->forked) s->draft_rows = std::clamp(rows, 0, impl_->config.drafts_max);
}
int Scheduler::draft_rows_kept() const { return impl_->draft_rows_kept(); }
int Scheduler::draft_room(int64_t id) const {
  const Sequence* s = impl_->find(id);
  return s != nullptr && impl_->open_count == 2 && s->in_plan == impl_->current().plan.step.step ? s->draft_room : 0;
}
void Scheduler::place_drafts(std::span<const PlacedDrafts> by_sample) { impl_->place_drafts(by_sample); }

void Scheduler::set_feeds_drafter(bool feeds) { impl_->feeds_drafter = feeds; }

void Scheduler::set_cost(const StepCost& cost) { impl_->cost = cost; }
const Plan& Scheduler::plan(double now_s) { return impl_->make_plan(now_s); }
void Scheduler::fill_drawn(std::span<const int32_t> drawn) {
  if (impl_->open_count == 0) return;
  for (int32_t& t : impl_->current().plan.step.tokens) {
    const auto at = static_cast<size_t>(-1 - static_cast<int64_t>(t));
    if (t < 0 && at < drawn.size()) t = std::max(drawn[at], 0);
  }
}

void Scheduler::commit(const StepResult& result, double now_s) { impl_->commit(result, now_s); }

void Scheduler::take_ended(std::vector<Ended>* out) {
  out->insert(out->end(), impl_->ended.begin(), impl_->ended.end());
  impl_->ended.clear();
}

bool Scheduler::has_work() const { return !impl_->all.empty() || !impl_->pending.empty() || !impl_->puts.empty(); }

void Scheduler::take_tier_gets(std::vector<TierGet>* out) { impl_->take_gets(out); }

void Scheduler::take_tier_puts(std::vector<TierPut>* out) { impl_->take_puts(out); }

void Scheduler::tier_arrived(const kv::BlockKey& key, std::span<const std::byte> page, double now_s,
                             std::shared_ptr<const void> owner) {
  impl_->now_s = std::max(impl_->now_s, now_s);
  impl_->arrived(key, page, std::move(owner));
}

LoadState Scheduler::load_state() const { return impl_->load_state(); }
void Scheduler::end_load(bool here) { impl_->end_load(here); }

bool Scheduler::fetching() const { return !impl_->fetching.empty(); }

std::span<const int32_t> Scheduler::tokens(int64_t id) const {
  const Sequence* s = impl_->find(id);
  return s == nullptr ? std::span<const int32_t>() : std::span<const int32_t>(s->state.tokens);
}

Progress Scheduler::progress(int64_t id) const {
  const Sequence* s = impl_->find(id);
  if (s == nullptr) return {};
  Progress p = s->progress;
  p.output_tokens = s->outputs();
  p.running = s->phase == Phase::kRunning;
  return p;
}

SchedulerStats Scheduler::stats() const { return impl_->current_stats(); }
kv::HostStore& Scheduler::host() { return impl_->host; }
kv::PrefixIndex& Scheduler::prefix_index() { return impl_->index; }
kv::BlockPool& Scheduler::blocks() { return impl_->blocks; }
kv::BlockPool& Scheduler::slots() { return impl_->slots; }

void Scheduler::expire(double now_s) {
  impl_->index.expire(now_s);
  impl_->host.expire(now_s);
}

Status Scheduler::check_accounting() const { return impl_->check_accounting(); }

}  // namespace deepinfer::sched
