// Inside of kv/peer_tier.h: members, what is open with them, and the thread that moves the bytes (internal to kv/).
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kv/peer_tier.h"
#include "kv/peer_wire.h"

namespace deepinfer::kv {

inline double peer_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

enum class PeerLink : uint8_t { kDown, kConnecting, kGreeting, kUp };

struct PeerQuestion {  // of a caller that waits
  std::function<void(Result<PeerBytes>)> done;
  double until_s = 0;
};

struct PeerGet {
  BlockKey key;
  std::span<std::byte> into;
  size_t member = 0;
  double until_s = 0;
};

struct PeerPut {
  size_t member = 0;
  uint64_t bytes = 0;
  bool silent = false;  // nobody waits for its end
};

struct PeerMember {
  std::string name;
  sockaddr_storage address = {};
  socklen_t address_size = 0;

  // Under the mutex.
  std::vector<PeerKey> new_gets;
  std::vector<std::pair<PeerHeader, std::shared_ptr<const PeerBytes>>> new_frames;
  uint64_t queued_bytes = 0;  // of puts without an answer
  double away_until = 0, away_s = 0;
  Status trouble;
  PeerMemberStats stats;

  // The thread's; `receiver` under the copy mutex.
  PeerLink link = PeerLink::kDown;
  int fd = -1;
  bool writable_watched = false;
  bool refused = false;    // it wants another token
  double since_s = 0;      // of connecting and greeting
  double heard_s = 0;      // of the last byte, or of the first question since all were answered
  int64_t open = 0;        // questions without an answer
  FrameSender sender;
  std::unique_ptr<FrameReceiver> receiver;
  std::shared_ptr<PeerBytes> body;
};

struct PeerTier::Impl {
  explicit Impl(const PeerTierOptions& o) : options(o) {}
  ~Impl();

  // Callers', under the mutex.
  void wake();
  Ticket refuse_put(PeerMember& m, double now_s, size_t bytes);  // 0: there is room
  Ticket add_put(size_t i, const BlockKey& key, std::shared_ptr<const PeerBytes> body, const PutInfo& info);
  bool usable(const PeerMember& m, double now_s) const { return now_s >= m.away_until; }
  void complete(Ticket ticket, Status status, size_t bytes = 0, const PutInfo& info = {}) {
    completions.push_back({ticket, std::move(status), bytes, info});
  }
  using Question = std::pair<PeerHeader, std::shared_ptr<const PeerBytes>>;
  using Ask = std::function<std::optional<Question>(size_t member)>;
  // One question to each member for which there is one; waits for the answers.
  std::vector<Result<PeerBytes>> ask_all(double timeout_s, const Ask& question);

  // The thread's.
  void loop();
  void start_writes();
  void connect(size_t i);
  void connected(size_t i);
  void fail(size_t i, const Status& why);
  void end_operations(size_t i, const Status& why);
  void serve(size_t i);
  void flush(size_t i);
  void watch(size_t i, bool writable);
  void look_for_late();
  std::span<std::byte> place(size_t i, const PeerHeader& h);
  bool on_frame(size_t i, const PeerHeader& h, std::span<std::byte> body);
  void greet(size_t i, std::span<std::byte> challenge);
  void record_came(PeerMember& m, const PeerHeader& h, std::span<std::byte> body);

  const PeerTierOptions options;
  std::vector<std::string> names;
  int epoll_fd = -1, wake_fd = -1;

  // Held while bytes are received; taken before the mutex. So cancel() knows that nobody writes to the buffer.
  std::mutex copy_mutex;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<PeerMember>> members;
  std::unordered_map<Ticket, PeerGet> gets;
  std::unordered_map<Ticket, PeerPut> puts;
  std::unordered_map<Ticket, PeerQuestion> questions;
  std::deque<Completion> completions;
  uint64_t spare_bytes = 0;  // of all that follow, at most 16 MiB
  std::vector<std::shared_ptr<PeerBytes>> spares;
  Ticket last = 0;
  bool ending = false, sleeping = false;
  double next_look = 0;
  std::thread thread;
};

}  // namespace deepinfer::kv
