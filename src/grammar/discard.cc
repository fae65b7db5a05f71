#include "grammar/discard.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace deepinfer::grammar {
namespace {

constexpr size_t kWaitingMax = 16;

class Disposer {
 public:
  Disposer() {
    std::thread([this] { work(); }).detach();
  }

  // False if too many wait.
  bool take(std::shared_ptr<void>& object) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= kWaitingMax) return false;
    waiting_.push_back(std::move(object));
    changed_.notify_one();
    return true;
  }

 private:
  void work() {
    for (;;) {
      std::shared_ptr<void> object;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !waiting_.empty(); });
        object = std::move(waiting_.front());
        waiting_.pop_front();
      }
      object.reset();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<void>> waiting_;
};

}  // namespace

void discard(std::shared_ptr<void> object) {
  static Disposer& disposer = *new Disposer;  // lives as long as its thread: to the end of the process
  disposer.take(object);
}

}  // namespace deepinfer::grammar
