#include "engine/engine.h"

#include <utility>

#include "engine/engine_impl.h"

namespace deepinfer::engine {

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<StepExecutor> executor,
                                               std::optional<text::Tokenizer> tokenizer, const EngineOptions& options) {
  if (options.drafts.mode != DraftMode::kOff &&
      (options.drafts.drafts_max < 1 || options.drafts.drafts_max > DraftState::kDraftsMax)) {
    return make_error(Code::kInvalidArgument, "{} drafts a step are not possible; it must be 1 to {}.",
                      options.drafts.drafts_max, DraftState::kDraftsMax);
  }
  DI_ASSIGN_OR_RETURN(std::unique_ptr<sched::Scheduler> scheduler,
                      sched::Scheduler::create(scheduler_config(executor->info(), options)));
  auto impl = std::make_unique<Impl>(std::move(executor), std::move(scheduler), std::move(tokenizer), options);
  DI_RETURN_IF_ERROR(impl->check_end_tokens());
  impl->start();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ExecutorInfo& Engine::info() const { return impl_->executor->info(); }
RequestLimits Engine::limits() const { return impl_->limits; }

Result<std::unique_ptr<Stream>> Engine::submit(Request request) {
  Impl& m = *impl_;
  DI_RETURN_IF_ERROR(check_request(request, m.limits));
  if (request.grammar && request.grammar->vocabulary().mask_words() > m.mask_words()) {
    return Status(Code::kInvalidArgument, "The grammar was compiled for another model's vocabulary.");
  }
  if (m.device_failed) return Impl::device_error();
  if (m.draining) return Status(Code::kUnavailable, "The engine is ending and takes no more requests.");
  const int live_max = m.options.waiting_max + m.executor->info().sequences_max;
  if (m.live_count.fetch_add(1) >= live_max) {
    m.request_ended();
    return make_error(Code::kResourceExhausted,
                      "{} requests are waiting or running, which is waiting_max; try again later.", live_max);
  }
  const size_t capacity = std::max<size_t>(static_cast<size_t>(m.options.queue_events),
                                           4 * static_cast<size_t>(request.n) * static_cast<size_t>(1 + m.drafts_max));
  auto state = std::make_shared<StreamState>(capacity, request.n, m.mailbox);
  {
    const std::lock_guard<std::mutex> lock(m.mailbox->mutex);
    m.mailbox->submissions.push_back({std::move(request), state, m.now()});
    m.mailbox->rung = true;
  }
  m.mailbox->changed.notify_one();
  return std::make_unique<Stream>(std::move(state));
}

Status Engine::Impl::device_error() {
  return Status(Code::kUnavailable, "The device failed while it moved KV memory; this engine takes no more requests.");
}

Result<int32_t> Engine::add_tenant(const std::string& name, double weight) {
  std::optional<Result<int32_t>> added;
  impl_->on_loop([&] { added = impl_->scheduler->add_tenant(name, weight); });
  if (!added) return Status(Code::kUnavailable, "The engine has ended.");
  return *std::move(added);
}

EngineStats Engine::stats() {
  EngineStats s;
  impl_->on_loop([&] {
    s = impl_->stats;
    s.scheduler = impl_->scheduler->stats();
    if (impl_->tier) {
      s.tier = impl_->tier->stats();
      s.tier_counts = impl_->options.tier->counts();
    }
    s.drafts = impl_->speculation.stats();
    s.shared_draws = impl_->runner.shared_draws();
    s.live = impl_->live_count;
  });
  s.weights = impl_->executor->weight_stats();
  s.work = impl_->executor->work_stats();
  return s;
}

Status Engine::drain(double timeout_s) {
  impl_->draining = true;
  std::unique_lock<std::mutex> lock(impl_->ended_mutex);
  if (impl_->all_ended.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                [&] { return impl_->live_count == 0; })) {
    return Status();
  }
  return make_error(Code::kDeadlineExceeded, "{} requests were still running after {} s.", impl_->live_count.load(),
                    timeout_s);
}

Status Engine::check_accounting() {
  Status status(Code::kUnavailable, "The engine has ended.");
  impl_->on_loop([&] {
    impl_->settle();
    status = impl_->scheduler->check_accounting();
  });
  return status;
}

void Engine::clear_cache() {
  impl_->on_loop([&] {
    impl_->settle();
    sched::Scheduler& s = *impl_->scheduler;
    s.prefix_index().evict(s.prefix_index().evictable());
    s.host().expire(sched::kNever);
  });
}

}  // namespace deepinfer::engine
