#include "engine/stream.h"

#include <limits>
#include <utility>

#include "engine/stream_state.h"

namespace deepinfer::engine {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
      return "stop";
    case FinishReason::kStopText:
      return "stop_text";
    case FinishReason::kMaxTokens:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kKvFull:
      return "kv_full";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kTimeout:
      return "timeout";
    case FinishReason::kFailed:
      return "error";
  }
  return "?";
}

bool EventQueue::pop(Event* event) {
  const size_t head = head_.load(std::memory_order_relaxed);
  if (tail_.load() == head) return false;
  std::swap(*event, slots_[head % slots_.size()]);  // the slot takes over the reader's memory
  head_.store(head + 1);
  return true;
}

void Mailbox::ring() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    rung = true;
  }
  changed.notify_one();
}

// Takes no lock: this is a part of every step.
void StreamState::added() {
  news.add();
  if (!has_notify.load()) return;
  int idle = kIdle;
  // Else the reader is changing it, and will look at the queue when it has done so.
  if (!notifier.compare_exchange_strong(idle, kCalling)) return;
  if (notify) notify();
  release_notifier();
}

void StreamState::acquire_notifier() {
  for (int seen = kIdle; !notifier.compare_exchange_strong(seen, kChanging); seen = kIdle) notifier.wait(seen);
}

void StreamState::release_notifier() {
  notifier.store(kIdle);
  notifier.notify_all();
}

Stream::Stream(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}

Stream::~Stream() {
  cancel();
  on_events(nullptr);
}

bool Stream::try_next(Event* event) {
  if (!state_->queue.pop(event)) return false;
  if (event->finished) --state_->open;
  if (state_->paused.load() && state_->queue.free_slots() >= state_->queue.capacity() / 2) state_->mailbox->ring();
  return true;
}

bool Stream::next(Event* event) {
  for (;;) {
    const int seen = state_->news.count();
    if (try_next(event)) return true;
    if (done()) return false;
    state_->news.sleep(seen, std::numeric_limits<double>::infinity());
  }
}

bool Stream::done() const { return state_->open == 0; }

void Stream::cancel() {
  if (done() || state_->cancelled.exchange(true)) return;
  {
    const std::lock_guard<std::mutex> lock(state_->mailbox->mutex);
    state_->mailbox->cancels.push_back(state_);
    state_->mailbox->rung = true;
  }
  state_->mailbox->changed.notify_one();
}

void Stream::on_events(std::function<void()> notify) {
  StreamState& s = *state_;
  s.acquire_notifier();
  s.notify = std::move(notify);
  s.has_notify = s.notify != nullptr;
  const bool wanted = s.notify != nullptr;
  const bool told = wanted && !s.queue.empty();
  if (told) s.notify();
  s.release_notifier();
  if (!wanted || told || s.queue.empty()) return;
  s.acquire_notifier();  // for what came meanwhile
  s.notify();
  s.release_notifier();
}

const std::vector<PromptLogprob>& Stream::prompt_logprobs() const { return state_->prompt_logprobs; }

}  // namespace deepinfer::engine
