// The two ends of a Stream, and the engine's mailbox (internal to engine/).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/event_count.h"
#include "engine/request.h"
#include "engine/stream.h"

namespace deepinfer::engine {

// Single producer, single consumer. Slots keep their memory.
class EventQueue {
 public:
  explicit EventQueue(size_t capacity) : slots_(capacity) {}

  size_t free_slots() const { return slots_.size() - (tail_.load() - head_.load()); }
  size_t capacity() const { return slots_.size(); }
  bool empty() const { return tail_.load() == head_.load(); }
  // The next slot to fill; the caller has checked that one is free.
  Event& slot() { return slots_[tail_.load(std::memory_order_relaxed) % slots_.size()]; }
  void push() { tail_.fetch_add(1); }
  bool pop(Event* event);

 private:
  std::vector<Event> slots_;
  std::atomic<size_t> head_{0}, tail_{0};
};

struct Submission {
  Request request;
  std::shared_ptr<StreamState> stream;
  double at_s = 0;
};

// How other threads reach the engine's. It outlives the engine as long as a stream does.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> rung{false};
  bool stopping = false;
  std::vector<Submission> submissions;
  std::vector<std::shared_ptr<StreamState>> cancels;
  std::vector<std::function<void()>> jobs;

  void ring();
};

struct StreamState {
  StreamState(size_t capacity, int samples, std::shared_ptr<Mailbox> box)
      : queue(capacity), open(samples), mailbox(std::move(box)) {}

  void added();  // by the engine, after one or several pushes

  EventQueue queue;
  int open;  // answers whose last event was not read yet; the reader's
  std::shared_ptr<Mailbox> mailbox;
  std::vector<PromptLogprob> prompt_logprobs;  // written before the first event is pushed
  std::atomic<bool> paused{false};             // the engine waits for the queue to empty
  std::atomic<bool> cancelled{false};

  // Who uses `notify` now. The reader waits for the engine, the engine never for the reader.
  enum : int { kIdle, kCalling, kChanging };
  void acquire_notifier();
  void release_notifier();

  // Calls of added(). The reader sleeps at once: to look first would take a core from the step that it waits for.
  EventCount news;
  std::atomic<bool> has_notify{false};
  std::atomic<int> notifier{kIdle};
  std::function<void()> notify;
};

}  // namespace deepinfer::engine
