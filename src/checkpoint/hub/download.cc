#include "checkpoint/hub/download.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/hub/http.h"
#include "checkpoint/hub/metadata.h"
#include "checkpoint/hub/partial_file.h"

namespace deepinfer::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr int kRetryDelayMsMax = 30'000;

// "bytes 100-199/1000" -> {100, 1000}
struct ContentRange {
  uint64_t begin = 0, total = 0;
};
std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  const size_t slash = text.find('/');
  if (!text.starts_with("bytes ") || slash == std::string_view::npos) return std::nullopt;
  const auto a = std::from_chars(text.data() + 6, text.data() + text.size(), range.begin);
  const auto b = std::from_chars(text.data() + slash + 1, text.data() + text.size(), range.total);
  if (a.ec != std::errc() || b.ec != std::errc()) return std::nullopt;
  return range;
}

class Downloader {
 public:
  Downloader(const HubConfig& config, const ModelId& id, const std::vector<BlobJob>& jobs, PullProgress base)
      : config_(config), id_(id), base_(base), files_(jobs.size()) {
    for (size_t i = 0; i < jobs.size(); ++i) files_[i].job = &jobs[i];
  }

  Status run(const OnProgress& progress, const std::atomic<bool>* stop) {
    std::vector<std::thread> workers;
    const int count = std::clamp(config_.connections, 1, 64);
    running_ = count;
    for (int i = 0; i < count; ++i) workers.emplace_back([this] { work(); });
    {
      std::unique_lock<std::mutex> lock(mutex_);
      while (running_ > 0) {
        changed_.wait_for(lock, 100ms);
        if (stop != nullptr && stop->load()) stop_ = true;
        if (!progress) continue;
        const PullProgress now = progress_now();
        lock.unlock();
        progress(now);
        lock.lock();
      }
    }
    for (std::thread& w : workers) w.join();
    if (progress) progress(progress_now());
    if (stop != nullptr && stop->load()) {
      return Status(Code::kCancelled, "Stopped; what was fetched is kept, run the same command again to go on.");
    }
    return error_;
  }

 private:
  // A file starts kUntried; its first request shows whether the server gives ranges, and others join only then.
  enum class Mode { kUntried, kProbing, kRanges, kWhole, kDone };
  struct File {
    const BlobJob* job = nullptr;
    std::unique_ptr<PartialFile> part;
    Mode mode = Mode::kUntried;
    std::vector<bool> taken;
    size_t left = 0;                 // ranges not complete yet
    std::atomic<uint64_t> bytes{0};  // received and kept
  };

  PullProgress progress_now() const {
    PullProgress now = base_;
    for (const File& f : files_) {
      now.bytes += f.bytes;
      now.files += f.mode == Mode::kDone;
    }
    return now;
  }

  void fail(Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.ok() && status.code() != Code::kCancelled) error_ = std::move(status);
    stop_ = true;
    changed_.notify_all();
  }

  void work() {
    HttpClient http(config_, &stop_);
    while (true) {
      File* file = nullptr;
      size_t range = 0;
      if (!take(&file, &range)) break;
      Status status = range < file->taken.size() ? fetch(http, *file, range) : Status();
      if (status.ok()) status = complete(*file, range);
      if (!status.ok()) fail(std::move(status));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    --running_;
    changed_.notify_all();
  }

  // Waits for a range to fetch; false when there is nothing left to do.
  bool take(File** file, size_t* range) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      bool all_done = true;
      for (File& f : files_) {
        all_done = all_done && f.mode == Mode::kDone;
        if (f.mode == Mode::kUntried) {
          const Status opened = start(f);
          if (!opened.ok()) {
            lock.unlock();
            fail(opened);
            return false;
          }
        } else if (f.mode != Mode::kRanges) {
          continue;
        }
        const auto next = std::find(f.taken.begin(), f.taken.end(), false);
        if (next == f.taken.end() && f.left > 0) continue;
        if (next == f.taken.end() && f.mode != Mode::kProbing) continue;
        *file = &f;
        *range = static_cast<size_t>(next - f.taken.begin());
        if (next != f.taken.end()) *next = true;
        return true;
      }
      if (all_done) return false;
      changed_.wait(lock);
    }
    return false;
  }

  Status start(File& f) {
    f.mode = Mode::kProbing;
    DI_ASSIGN_OR_RETURN(f.part,
                        PartialFile::open(f.job->blob_path, f.job->lock_path, f.job->size, config_.range_bytes));
    f.taken.resize(f.part->range_count());
    for (size_t r = 0; r < f.taken.size(); ++r) {
      f.taken[r] = f.part->done(r);
      if (f.taken[r]) f.bytes += std::min(f.job->size - r * config_.range_bytes, config_.range_bytes);
      f.left += !f.taken[r];
    }
    return Status();
  }

  Status complete(File& f, size_t range) {
    bool last = false, whole = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      whole = f.mode == Mode::kWhole;
      f.left = whole || f.left == 0 ? 0 : f.left - 1;
      last = f.left == 0;
    }
    if (!whole && range < f.taken.size()) DI_RETURN_IF_ERROR(f.part->mark_done(range));
    if (!last) return Status();
    const Status finished = f.part->finish(f.job->digest, &stop_);
    if (finished.code() == Code::kDataLoss) {
      return make_error(Code::kDataLoss,
                        "{} of {} did not arrive intact: {}. Run the same command again to fetch it anew.", f.job->path,
                        id_.to_string(), finished.message());
    }
    DI_RETURN_IF_ERROR(finished);
    const std::lock_guard<std::mutex> lock(mutex_);
    f.part.reset();
    f.mode = Mode::kDone;
    changed_.notify_all();
    return Status();
  }

  // One range, through as many connections as it takes.
  Status fetch(HttpClient& http, File& f, size_t range) {
    uint64_t at = range * config_.range_bytes;
    uint64_t end = std::min(f.job->size, at + config_.range_bytes);
    int failures = 0;
    while (true) {
      const uint64_t before = at;
      bool first = true;
      const HttpClient::Sink sink = [&](const HttpReply& head, std::string_view bytes) {
        if (first) DI_RETURN_IF_ERROR(begin_body(f, head, &at, &end));
        first = false;
        if (bytes.size() > end - at) {
          return make_error(Code::kDataLoss, "The hub sent more bytes of {} than its size of {}.", f.job->path,
                            f.job->size);
        }
        DI_RETURN_IF_ERROR(f.part->write(at, bytes));
        at += bytes.size();
        f.bytes += bytes.size();
        return Status();
      };
      const ByteRange wanted = at == 0 && end == f.job->size ? ByteRange{} : ByteRange{at, end};
      const Result<HttpReply> reply = http.get(f.job->url, wanted, sink);
      if (at == end && reply.ok()) return Status();
      Status status = reply.ok() ? status_of_reply(reply.value(), config_, id_, f.job->path) : reply.status();
      if (status.ok()) {
        status = make_error(Code::kUnavailable, "{} ended {} before its last byte.", config_.endpoint, f.job->path);
      }
      if (status.code() != Code::kUnavailable) return status;
      failures = at > before ? 1 : failures + 1;
      if (failures > config_.retries) {
        return make_error(Code::kUnavailable, "{} What was fetched is kept; run the same command again to go on.",
                          status.message());
      }
      if (at <= before) pause(failures, reply.ok() ? reply.value().header("retry-after") : "");
      if (stop_) return Status(Code::kCancelled, "Stopped.");
    }
  }

  // Decides by a reply's head where its body belongs.
  Status begin_body(File& f, const HttpReply& head, uint64_t* at, uint64_t* end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (head.status == 206) {
      const std::optional<ContentRange> got = parse_content_range(head.header("content-range"));
      if (!got || got->begin != *at || got->total != f.job->size) {
        return make_error(Code::kDataLoss,
                          "The hub answered \"{}\" for {} of {} bytes; its file list and its files disagree.",
                          head.header("content-range"), f.job->path, f.job->size);
      }
      if (f.mode == Mode::kProbing) {
        f.mode = Mode::kRanges;
        changed_.notify_all();
      }
      return Status();
    }
    if (f.mode == Mode::kRanges && f.part->range_count() > 1) {
      return make_error(Code::kUnavailable, "{} gave a whole file where part of {} was asked for.", config_.endpoint,
                        f.job->path);
    }
    f.mode = Mode::kWhole;
    f.bytes = 0;
    *at = 0;
    *end = f.job->size;
    return Status();
  }

  void pause(int failures, const std::string& retry_after) {
    int64_t delay_ms =
        std::min<int64_t>(kRetryDelayMsMax, int64_t{config_.retry_delay_ms} << std::min(failures - 1, 10));
    int64_t seconds = 0;
    if (std::from_chars(retry_after.data(), retry_after.data() + retry_after.size(), seconds).ec == std::errc() &&
        seconds > 0) {
      delay_ms = std::max(delay_ms, std::min<int64_t>(seconds * 1000, 2 * kRetryDelayMsMax));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(delay_ms);
    while (!stop_ && std::chrono::steady_clock::now() < until) {
      changed_.wait_until(lock, std::min(until, std::chrono::steady_clock::now() + 100ms));
    }
  }

  const HubConfig& config_;
  const ModelId& id_;
  const PullProgress base_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<File> files_;
  std::atomic<bool> stop_{false};
  int running_ = 0;
  Status error_;
};

}  // namespace

Status download_blobs(const HubConfig& config, const ModelId& id, const std::vector<BlobJob>& jobs, PullProgress base,
                      const OnProgress& progress, const std::atomic<bool>* stop) {
  if (jobs.empty()) return Status();
  return Downloader(config, id, jobs, base).run(progress, stop);
}

}  // namespace deepinfer::checkpoint
