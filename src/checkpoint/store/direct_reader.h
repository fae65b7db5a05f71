// Pieces of files read past the page cache by a thread of its own, many at a time (internal to checkpoint/store).
//
//   DI_ASSIGN_OR_RETURN(auto reader, DirectReader::create({.depth = 64}));
//   DI_ASSIGN_OR_RETURN(int file, reader->add_file(path));
//   reader->read(DirectReader::Class::kNeeded, pieces, owner, [](uint64_t owner, Status s) { ... });
//
// Pieces begin and end at multiples of kIoAlignment, in the file and in memory; the last one of a file may reach beyond
// its end, `least` says how many bytes must come. Each piece ends with one call of its listener, on the reader's
// thread, which holds no lock then: kIo with the system's reason, kDataLoss where the file is shorter than it was.
// Needed pieces go before wanted ones, those before likely and those before spare ones. As many pieces are in flight as
// keep a disk busy: 64 small ones, of large ones 32 MiB, of wanted ones 16 MiB, of likely ones 4 MiB, of spare ones
// 2 MiB, so that a needed one does not wait long behind them.
// Files are opened with O_DIRECT; where a file system lacks it they are read normally and dropped from the page cache.
// read(), promote(), cancel() and add_file() may be called by any thread, also from a listener. Destroying it ends what
// is in flight and forgets what is queued, without calls.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/io_queue.h"
#include "base/status.h"

namespace deepinfer::checkpoint {

class DirectReader {
 public:
  enum class Class : uint8_t { kNeeded, kWanted, kLikely, kSpare };
  struct Piece {
    int file = 0;
    uint64_t offset = 0;
    std::span<std::byte> into;
    size_t least = 0;
  };
  using Listener = void (*)(void* context, uint64_t owner, const Status& status);
  using MakeQueue = std::function<Result<std::unique_ptr<IoQueue>>(const IoQueue::Options&)>;

  struct Options {
    int depth = 64;
    MakeQueue make_queue;  // empty: IoQueue::create. Tests put faults in
  };
  static Result<std::unique_ptr<DirectReader>> create(const Options& options);
  ~DirectReader();

  Result<int> add_file(const std::string& path);
  void read(Class priority, std::span<const Piece> pieces, uint64_t owner, Listener listener, void* context);
  // Moves the queued pieces of an owner up to `priority`.
  void promote(Class priority, uint64_t owner, const void* context);
  // Forgets the queued pieces of an owner, without calls; how many. Those in flight end as ever.
  size_t cancel(uint64_t owner, const void* context);
  uint64_t bytes_read() const;

 private:
  struct Job {
    Piece piece;
    uint64_t owner = 0;
    Listener listener = nullptr;
    void* context = nullptr;
    Class priority = Class::kNeeded;
    size_t done = 0;
  };
  struct File {
    std::string path;
    int fd = -1;
    bool direct = true;
  };
  DirectReader() = default;
  struct Landed {
    Job job;
    int error = 0;
  };
  void work();
  bool wait_for_work();
  void start_some();
  void land(std::span<const IoQueue::Done> done);
  void tell(const Landed& landed);

  std::unique_ptr<IoQueue> io_;
  int depth_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<File> files_;
  std::array<std::deque<Job>, 4> queues_;  // by Class
  uint64_t bytes_read_ = 0;
  bool stop_ = false;
  // The thread's own.
  std::vector<Job> flying_;
  std::vector<uint32_t> free_;
  std::vector<Landed> landed_;
  int ahead_flying_ = 0;  // not needed yet
  size_t bytes_flying_ = 0;
  std::thread thread_;
};

}  // namespace deepinfer::checkpoint
