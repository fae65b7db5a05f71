#include "engine/stream.h"

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

void StreamState::added() {
  if (waiting.load()) {
    { const std::lock_guard<std::mutex> lock(mutex); }
    changed.notify_one();
  }
  if (!has_notify.load()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (notify) notify();
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
  if (try_next(event)) return true;
  if (done()) return false;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->waiting = true;
    state_->changed.wait(lock, [this] { return !state_->queue.empty(); });
    state_->waiting = false;
  }
  return try_next(event);
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
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->notify = std::move(notify);
  state_->has_notify = state_->notify != nullptr;
  if (state_->notify && !state_->queue.empty()) state_->notify();
}

const std::vector<PromptLogprob>& Stream::prompt_logprobs() const { return state_->prompt_logprobs; }

}  // namespace deepinfer::engine
