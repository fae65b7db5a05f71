#include "checkpoint/store/direct_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/affinity.h"

namespace deepinfer::checkpoint {
namespace {

// In flight: enough for a fast disk while this thread waits some milliseconds for a core.
constexpr size_t kBytesFlying = 32 << 20;
constexpr size_t kBytesAhead = 16 << 20;  // a needed piece waits behind these, which are mostly needed soon themselves
constexpr size_t kBytesLikely = 4 << 20;  // and behind these, which often are
constexpr size_t kBytesSpare = 2 << 20;   // and behind these, which are mostly not

}  // namespace

Result<std::unique_ptr<DirectReader>> DirectReader::create(const Options& options) {
  std::unique_ptr<DirectReader> r(new DirectReader);
  const IoQueue::Options queue{.depth = options.depth};
  DI_ASSIGN_OR_RETURN(r->io_, options.make_queue ? options.make_queue(queue) : IoQueue::create(queue));
  r->depth_ = options.depth;
  r->flying_.resize(static_cast<size_t>(options.depth));
  for (int i = 0; i < options.depth; ++i) r->free_.push_back(static_cast<uint32_t>(i));
  try {
    r->thread_ = std::thread([reader = r.get()] { reader->work(); });
  } catch (const std::exception& e) {
    return make_error(Code::kResourceExhausted, "no thread for reading weights: {}", e.what());
  }
  return r;
}

DirectReader::~DirectReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (std::deque<Job>& q : queues_) q.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  io_.reset();
  for (const File& f : files_) ::close(f.fd);
}

Result<int> DirectReader::add_file(const std::string& path) {
  File f{path};
  f.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (f.fd < 0 && errno == EINVAL) {
    f.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    f.direct = false;
  }
  if (f.fd < 0) return make_error(Code::kIo, "cannot open {}: {}", path, std::strerror(errno));
  // What opening the checkpoint has touched of it.
  ::posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED);
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(f));
  return static_cast<int>(files_.size()) - 1;
}

void DirectReader::read(Class priority, std::span<const Piece> pieces, uint64_t owner, Listener listener,
                        void* context) {
  {
    const std::lock_guard lock(mutex_);
    for (const Piece& p : pieces)
      queues_[static_cast<size_t>(priority)].push_back({p, owner, listener, context, priority, 0});
  }
  changed_.notify_one();
}

void DirectReader::promote(Class priority, uint64_t owner, const void* context) {
  {
    const std::lock_guard lock(mutex_);
    const auto to = static_cast<size_t>(priority);
    for (size_t from = to + 1; from < queues_.size(); ++from) {
      for (Job& j : queues_[from]) {
        if (j.owner != owner || j.context != context) continue;
        j.priority = priority;
        queues_[to].push_back(j);
      }
      std::erase_if(queues_[from], [&](const Job& j) { return j.priority == priority; });
    }
  }
  changed_.notify_one();
}

size_t DirectReader::cancel(uint64_t owner, const void* context) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (std::deque<Job>& q : queues_)
    count += std::erase_if(q, [&](const Job& j) { return j.owner == owner && j.context == context; });
  return count;
}

uint64_t DirectReader::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

// Sleeps while there is nothing at all to do; false: the thread shall end.
bool DirectReader::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto queued = [this] {
    return std::any_of(queues_.begin(), queues_.end(), [](const std::deque<Job>& q) { return !q.empty(); });
  };
  changed_.wait(lock, [&] { return stop_ || free_.size() < flying_.size() || queued(); });
  return !stop_;
}

// Hands queued pieces to the I/O queue.
void DirectReader::start_some() {
  const std::lock_guard lock(mutex_);
  if (stop_) return;
  const auto flying = [this] { return flying_.size() - free_.size(); };
  const int ahead_max = std::max(1, depth_ * 3 / 4);
  constexpr std::array<size_t, 4> kBytesMost = {kBytesFlying, kBytesAhead, kBytesLikely, kBytesSpare};
  while (!free_.empty()) {
    const auto from =
        std::find_if(queues_.begin(), queues_.end(), [](const std::deque<Job>& q) { return !q.empty(); });
    if (from == queues_.end()) break;
    const bool ahead = from != queues_.begin();
    if (ahead && ahead_flying_ >= ahead_max) break;
    if (flying() > 0 && bytes_flying_ >= kBytesMost[static_cast<size_t>(from - queues_.begin())]) break;
    const uint32_t at = free_.back();
    Job& job = flying_[at] = from->front();
    const size_t rest = job.done;
    if (!io_->read(files_[static_cast<size_t>(job.piece.file)].fd, job.piece.into.subspan(rest),
                   job.piece.offset + rest, at))
      break;
    from->pop_front();
    free_.pop_back();
    ahead_flying_ += job.priority != Class::kNeeded;
    bytes_flying_ += job.piece.into.size() - rest;
    if (flying() == 1) io_->submit();  // the disk begins while the others are made ready
  }
}

// Takes note of pieces whose reads have ended; those that go on are queued again, the others are in landed_.
void DirectReader::land(std::span<const IoQueue::Done> done) {
  const std::lock_guard lock(mutex_);
  landed_.clear();
  for (const IoQueue::Done& d : done) {
    Job& job = flying_[d.tag];
    free_.push_back(static_cast<uint32_t>(d.tag));
    ahead_flying_ -= job.priority != Class::kNeeded;
    bytes_flying_ -= job.piece.into.size() - job.done;
    job.done += static_cast<size_t>(d.bytes);
    bytes_read_ += static_cast<uint64_t>(d.bytes);
    const bool again = d.error == EINTR || d.error == EAGAIN;
    const bool partial = d.error == 0 && d.bytes > 0 && job.done < job.piece.least && job.done % kIoAlignment == 0;
    if (stop_) continue;
    if (again || partial) {
      queues_[static_cast<size_t>(job.priority)].push_front(job);
    } else {
      landed_.push_back({job, d.error});
    }
  }
}

void DirectReader::tell(const Landed& landed) {
  const auto& [job, error] = landed;
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    const File& f = files_[static_cast<size_t>(job.piece.file)];
    if (!f.direct)
      ::posix_fadvise(f.fd, static_cast<off_t>(job.piece.offset), static_cast<off_t>(job.done), POSIX_FADV_DONTNEED);
    if (error != 0 || job.done < job.piece.least) path = f.path;
  }
  Status status;
  if (error != 0) {
    status = make_error(Code::kIo, "Cannot read weights at byte {} of {}: {}. Check the disk and the file.",
                        job.piece.offset, path, std::strerror(error));
  } else if (job.done < job.piece.least) {
    status =
        make_error(Code::kDataLoss,
                   "{} ends at byte {}, but weights up to byte {} were there when it was opened: the file was cut. "
                   "Fetch it again.",
                   path, job.piece.offset + job.done, job.piece.offset + job.piece.least);
  }
  job.listener(job.context, job.owner, status);
}

// The next reads begin before the listeners of the last ones run: a disk that answers for many at once (as of virtual
// machines) would stand still meanwhile.
void DirectReader::work() {
  std::array<IoQueue::Done, 64> done;
  run_soon_after_waking();
  while (wait_for_work()) {
    start_some();
    land({done.data(), io_->wait(done)});
    start_some();
    io_->submit();
    for (const Landed& l : landed_) tell(l);
  }
  while (free_.size() < flying_.size()) {
    const size_t n = io_->wait(done);
    if (n == 0) break;
    for (size_t i = 0; i < n; ++i) free_.push_back(static_cast<uint32_t>(done[i].tag));
  }
}

}  // namespace deepinfer::checkpoint
