#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "base/mix.h"
#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

constexpr double kIdleWaitS = 3600, kPausedWaitS = 0.05, kExpiryS = 60;
constexpr unsigned long kTimerSlackNs = 1000;  // sleeps of this thread are short: in front of a step's end, of a tier
constexpr double kGetWaitS = 0.00005, kPutWaitS = 0.01;  // between polls of a tier

FinishReason finish_reason(sched::EndReason end, const Answer& a) {
  switch (end) {
    case sched::EndReason::kStop:
      return a.reason();
    case sched::EndReason::kMaxTokens:
      return FinishReason::kMaxTokens;
    case sched::EndReason::kContextFull:
      return FinishReason::kContextFull;
    case sched::EndReason::kKvFull:
      return FinishReason::kKvFull;
    case sched::EndReason::kCancelled:
      return FinishReason::kCancelled;
    case sched::EndReason::kDeadline:
      return FinishReason::kTimeout;
    case sched::EndReason::kFailed:
      return FinishReason::kFailed;
  }
  return FinishReason::kFailed;
}

// Without a prefix cache nothing of a request is kept for others.
DraftOptions draft_options(const EngineOptions& options) {
  DraftOptions o = options.drafts;
  o.history = o.history && options.prefix_cache;
  return o;
}

}  // namespace

bool runs_alone(const ExecutorInfo& info, const EngineOptions& options) {
  return !info.leaves_cores && !(options.drafts.ahead && options.overlap);
}

sched::SchedulerConfig scheduler_config(const ExecutorInfo& info, const EngineOptions& options) {
  sched::SchedulerConfig c;
  c.blocks = info.blocks;
  c.slots = info.slots;
  c.block_bytes = info.block_bytes;
  c.slot_bytes = info.slot_bytes;
  c.snapshot_bytes = info.windows_bytes;
  c.host_bytes_max = options.host_bytes_max;
  c.window = info.window;
  c.encoder_layers = info.encoder_layers;
  c.ring_slots = info.ring_slots;
  c.backtrack = info.backtrack;
  c.history_tokens = info.history_tokens;
  c.keep = info.window + options.keep_extra;
  c.rows_max = info.rows_max;
  c.sequences_max = info.sequences_max;
  c.outputs_max = info.outputs_max;
  c.context_max = info.context_max;
  c.waiting_max = options.waiting_max + info.sequences_max;
  c.samples_max = std::min(options.samples_max, info.sequences_max);
  c.step_target_s = options.step_target_s;
  c.preempt_drill = options.preempt_drill;
  c.spill = options.spill;
  c.prefix_cache = options.prefix_cache;
  if (options.drafts.mode != DraftMode::kOff) {
    c.drafts_max = options.drafts.drafts_max;
    c.drafts_ahead = options.drafts.ahead && options.overlap;
  }
  if (options.tier) c.tier_gets_max = kTierGetsMax;
  c.tier_snapshots = options.tier_snapshots;
  c.tier_wait_s = options.tier_wait_s;
  if (options.tier) {
    c.tier_known = [tier = options.tier](std::span<const kv::BlockKey> keys) { return tier->known_prefix(keys); };
  }
  if (options.tier && info.loads_beside && runs_alone(info, options)) c.load_beside_s = options.tier_beside_s;
  c.scope = {.checkpoint = info.checkpoint,
             .layout = info.layout,
             .kv_dtype = info.kv_dtype,
             .numeric_class = info.numeric_class,
             .replay = options.bounded_replay ? kv::Replay::kBounded : kv::Replay::kExact};
  return c;
}

Engine::Impl::Impl(std::unique_ptr<StepExecutor> e, std::unique_ptr<sched::Scheduler> s,
                   std::optional<text::Tokenizer> t, const EngineOptions& o)
    : options(o),
      executor(std::move(e)),
      scheduler(std::move(s)),
      tokenizer(std::move(t)),
      alone(runs_alone(executor->info(), options)),
      runner(*executor, *scheduler, tokenizer ? &*tokenizer : nullptr, !alone, options.cpu_times,
             [](const void* self) { return static_cast<const Impl*>(self)->now(); }, this),
      drafts_max(options.drafts.mode == DraftMode::kOff ? 0 : options.drafts.drafts_max),
      speculation(draft_options(options), executor->info(), draft_costs(*executor, options.drafts),
                  options.overlap && !alone) {
  if (tokenizer) vocabulary = recipe::OutputVocabulary(*tokenizer);
  limits.vocab_size = executor->info().vocab_size;
  limits.context_max = executor->info().context_max;
  limits.samples_max = std::min(options.samples_max, executor->info().sequences_max);
  limits.has_text = tokenizer.has_value();
  scheduler->set_cost(options.step_cost);
  scheduler->set_feeds_drafter(speculation.feeds_drafter());
  if (options.tier) tier = std::make_unique<TierLink>(options.tier, executor->info(), options.tier_timeout_s);
}

Engine::Impl::~Impl() {
  if (!thread.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mailbox->mutex);
    mailbox->stopping = true;
    mailbox->rung = true;
  }
  mailbox->changed.notify_one();
  thread.join();
}

Status Engine::Impl::check_end_tokens() const {
  for (const auto& [name, tokens] : {std::pair("end", &options.end_tokens), {"banned", &options.banned_tokens}}) {
    for (int32_t t : *tokens) {
      if (t >= 0 && t < limits.vocab_size) continue;
      return make_error(Code::kInvalidArgument, "The {} token {} is outside the vocabulary of {}.", name, t,
                        limits.vocab_size);
    }
  }
  return Status();
}

double Engine::Impl::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Engine::Impl::step_clock() const {
  if (!options.cpu_times) return now();
  timespec t = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void Engine::Impl::start() {
  thread = std::thread([this] { loop(); });
}

void Engine::Impl::loop() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  while (read_mail()) {
    resume_read_streams();
    if (now() >= next_expiry_s) {
      scheduler->expire(now());
      next_expiry_s = now() + kExpiryS;
    }
    if (tier) tier->pump(*scheduler, now());
    if (!step()) wait_for_work();
  }
  settle();
  for (const std::unique_ptr<Live>& l : live) {
    for (const std::unique_ptr<Answer>& a : l->answers) scheduler->cancel(a->id);
  }
  collect_ends();
  flush_tier();
}

void Engine::Impl::wait_for_work() {
  speculation.idle();
  if (tier && tier->pump(*scheduler, now())) return;  // what the plan that was empty asked for, and what came since
  double seconds = scheduler->has_work() ? kPausedWaitS : kIdleWaitS;
  if (tier && tier->in_flight() > 0) seconds = tier->gets_in_flight() > 0 ? kGetWaitS : kPutWaitS;
  wait_for_mail(seconds);
}

void Engine::Impl::flush_tier() {
  const double end = now() + options.tier_flush_s;
  while (tier && (tier->in_flight() > 0 || scheduler->has_work()) && now() < end) {
    step();
    tier->pump(*scheduler, now());
    std::this_thread::sleep_for(std::chrono::duration<double>(kGetWaitS));
  }
}

void Engine::Impl::wait_for_mail(double seconds) {
  std::unique_lock<std::mutex> lock(mailbox->mutex);
  mailbox->changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return mailbox->rung.load(); });
}

bool Engine::Impl::read_mail() {
  if (!mailbox->rung.load()) return true;
  bool stopping = false;
  {
    const std::lock_guard<std::mutex> lock(mailbox->mutex);
    mailbox->rung = false;
    new_submissions.swap(mailbox->submissions);
    new_cancels.swap(mailbox->cancels);
    new_jobs.swap(mailbox->jobs);
    stopping = mailbox->stopping;
    loop_ended = stopping;
  }
  for (Submission& s : new_submissions) add(std::move(s));
  for (const auto& c : new_cancels) cancel(*c);
  for (const auto& j : new_jobs) j();
  new_submissions.clear();
  new_cancels.clear();
  new_jobs.clear();
  collect_ends();
  return !stopping;
}

void Engine::Impl::on_loop(std::function<void()> job) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  {
    const std::lock_guard<std::mutex> lock(mailbox->mutex);
    if (loop_ended) return;
    mailbox->jobs.push_back([&] {
      job();
      const std::lock_guard<std::mutex> done_lock(mutex);
      done = true;
      changed.notify_one();
    });
    mailbox->rung = true;
  }
  mailbox->changed.notify_one();
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
}

void Engine::Impl::add(Submission&& submission) {
  auto l = std::make_unique<Live>();
  l->request = std::move(submission.request);
  l->stream = std::move(submission.stream);
  l->submitted_s = submission.at_s;
  Request& r = l->request;
  l->seed = r.seed ? *r.seed : mix_seed(options.seed + mix_seed(requests));
  ++requests;
  if (!r.ignore_end) l->end_tokens = options.end_tokens;
  l->end_tokens.insert(l->end_tokens.end(), r.stop_tokens.begin(), r.stop_tokens.end());
  if (!r.allowed_tokens.empty()) {
    l->allowed.assign(mask_words(), 0);
    for (int32_t t : r.allowed_tokens) l->allowed[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
  }
  if (!options.banned_tokens.empty()) {
    if (l->allowed.empty()) l->allowed.assign(mask_words(), ~0u);
    for (int32_t t : options.banned_tokens) l->allowed[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));
  }
  if (options.top_k_max > 0 && (r.sampling.top_k < 0 || r.sampling.top_k > options.top_k_max)) {
    r.sampling.top_k = options.top_k_max;
  }
  if (r.prompt_logprobs) l->stream->prompt_logprobs.resize(r.prompt.size());
  const recipe::OutputVocabulary* words = tokenizer && r.text ? &vocabulary : nullptr;
  for (int i = 0; i < r.n; ++i) {
    l->answers.push_back(std::make_unique<Answer>(*l, i, limits.vocab_size, words));
    if (speculation.enabled() && Speculation::suits(r)) l->answers.back()->drafts = std::make_unique<DraftState>();
  }
  l->open = r.n;
  speculation.request_added(r);
  scheduler->set_feeds_drafter(speculation.feeds_drafter());

  sched::Request s;
  s.prompt = r.prompt;
  s.max_tokens = r.max_tokens;
  s.samples = r.n;
  s.seed = l->seed;
  s.tenant = r.tenant;
  s.priority = r.priority;
  s.prefill = r.full_prefill || r.prompt_logprobs ? sched::Prefill::kFull : sched::Prefill::kTail;
  s.prompt_outputs = r.prompt_logprobs;
  s.cache = r.cache;
  s.traffic = r.traffic;
  s.ttl_s = options.ttl_s[static_cast<size_t>(r.traffic)];
  if (r.timeout_s > 0) s.deadline_s = l->submitted_s + r.timeout_s;
  const Result<int64_t> id =
      device_failed ? Result<int64_t>(device_error()) : scheduler->submit(std::move(s), now());
  live.push_back(std::move(l));
  Live& added = *live.back();
  for (int i = 0; i < added.request.n; ++i) {
    Answer& a = *added.answers[static_cast<size_t>(i)];
    a.id = id.ok() ? id.value() + i : -1;
    if (id.ok()) by_id[a.id] = &a;
  }
  if (id.ok()) return;
  for (int i = 0; i < added.request.n; ++i) {  // the last one takes the Live with it
    Answer& a = *added.answers[static_cast<size_t>(i)];
    a.error = id.status();
    end_answer(a, FinishReason::kFailed);
  }
  collect_ends();
}

void Engine::Impl::cancel(const StreamState& stream) {
  const auto it = std::ranges::find_if(live, [&](const auto& l) { return l->stream.get() == &stream; });
  if (it == live.end()) return;
  for (const std::unique_ptr<Answer>& a : (*it)->answers) {
    if (!a->ended) scheduler->cancel(a->id);
  }
}

void Engine::Impl::resume_read_streams() {
  std::erase_if(paused, [this](Live* l) {
    const EventQueue& queue = l->stream->queue;
    if (queue.free_slots() < std::max(queue.capacity() / 2, events_ahead(*l))) return false;
    l->paused = false;
    l->stream->paused = false;
    for (const std::unique_ptr<Answer>& a : l->answers) scheduler->pause(a->id, false);
    return true;
  });
}

void Engine::Impl::collect_ends() {
  ends.clear();
  scheduler->take_ended(&ends);
  for (const sched::Ended& e : ends) {
    if (Answer* a = find(e.id); a != nullptr) end_answer(*a, finish_reason(e.reason, *a));
  }
  for (Live* l : touched) l->stream->added();
  touched.clear();
  std::erase_if(live, [this](const std::unique_ptr<Live>& l) {
    if (l->open > 0) return false;
    std::erase(paused, l.get());
    request_ended();
    return true;
  });
}

void Engine::Impl::end_answer(Answer& a, FinishReason reason) {
  Live& l = a.live;
  a.ended = true;
  by_id.erase(a.id);
  speculation.answer_ended(a);
  --l.open;
  Event& e = l.stream->queue.slot();
  e = Event();
  e.sample = a.index;
  e.finished = true;
  e.reason = reason;
  e.text = a.finish_text();
  if (reason == FinishReason::kStopText) e.stop_text = a.stop_text();
  e.error = a.error;
  if (reason == FinishReason::kFailed && e.error.ok())
    e.error = Status(Code::kInternal, "The step of this request failed.");
  e.usage = a.usage;
  e.usage.total_s = now() - l.submitted_s;
  if (options.observer) options.observer->on_end(e.usage, reason);
  l.stream->queue.push();
  touched.push_back(&l);
  if (a.index == 0 && options.on_answered) options.on_answered(l.request, a.usage);
}

void Engine::Impl::request_ended() {
  if (live_count.fetch_sub(1) != 1) return;
  { const std::lock_guard<std::mutex> lock(ended_mutex); }
  all_ended.notify_all();
}

}  // namespace deepinfer::engine
