#include "serve/images/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include <fmt/format.h>

#include "base/workers.h"
#include "serve/images/data_url.h"
#include "serve/images/decode.h"
#include "serve/images/fetch.h"

namespace deepinfer::serve {
namespace {

// A number of things that several may take parts of.
class Budget {
 public:
  explicit Budget(size_t amount) : free_(amount) {}
  // False: not enough became free before the deadline.
  bool take(size_t amount, Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return free_ >= amount; })) return false;
    free_ -= amount;
    return true;
  }
  bool try_take(size_t amount) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_ < amount) return false;
    free_ -= amount;
    return true;
  }
  void give(size_t amount) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_ += amount;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t free_;
};

// A part of a budget, for a scope.
struct Share {
  Share(Budget& b, size_t n, Deadline deadline) : budget(b), amount(n), taken(b.take(n, deadline)) {}
  ~Share() {
    if (taken) budget.give(amount);
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  Budget& budget;
  const size_t amount;
  const bool taken;
};

// A part that grows, for a scope.
struct GrowingShare {
  explicit GrowingShare(Budget& b) : budget(b) {}
  ~GrowingShare() { budget.give(amount); }
  GrowingShare(const GrowingShare&) = delete;
  GrowingShare& operator=(const GrowingShare&) = delete;
  bool grow(size_t more) {
    if (!budget.try_take(more)) return false;
    amount += more;
    return true;
  }

  Budget& budget;
  size_t amount = 0;
};

recipe::ApiError api_error(const ImageError& error, const std::string& path) {
  const bool busy = error.code == image_code::kOverloaded;
  return {.status = busy ? 503 : error.retry ? 500 : 400,
          .message = fmt::format("{}: {}", path, error.message),
          .type = busy || error.retry ? "server_error" : "invalid_request_error",
          .code = std::string(error.code),
          .param = path};
}

// The images of one request.
struct Job {
  std::vector<recipe::Image> images;
  std::function<void(std::optional<recipe::ApiError>)> done;
  Deadline deadline;
  std::atomic<size_t> next{0};
  std::atomic<size_t> readers{0};       // turns that are in work or wait
  std::atomic<size_t> first_bad;        // index; those after it need not be read
  std::atomic<size_t> fetched_bytes{0};
  std::atomic<bool> over{false};
  std::mutex mutex;
  ImageError error;  // of first_bad
};

struct Handle final : ImageCheck {
  explicit Handle(std::shared_ptr<Job> j) : job(std::move(j)) {}
  ~Handle() override { job->over = true; }
  const std::shared_ptr<Job> job;
};

}  // namespace

struct ImageLoader::Impl {
  Impl(ImageOptions o, std::function<void(const ImageOutcome&)> f)
      : options(std::move(o)),
        on_outcome(std::move(f)),
        memory(options.memory_max),
        files(options.memory_max / 2),
        decoders(static_cast<size_t>(options.decode_threads)),
        fetching(options.fetch_threads, options.requests_max * kAtOncePerRequest),
        reading(options.decode_threads, options.requests_max * kAtOncePerRequest) {}

  std::optional<ImageError> read(Job& job, size_t index);
  std::optional<ImageError> fetch(Job& job, size_t index, GrowingShare& share, std::string* bytes);
  std::optional<ImageError> decode(const Job& job, std::string_view bytes);
  void next_turn(const std::shared_ptr<Job>& job);
  void take_turn(const std::shared_ptr<Job>& job, size_t index);
  void end_reader(const std::shared_ptr<Job>& job);

  const ImageOptions options;
  const std::function<void(const ImageOutcome&)> on_outcome;
  Budget memory, files, decoders;  // files: what is being fetched
  std::atomic<size_t> requests{0};
  std::atomic<bool> ending{false};
  // Apart, so that slow servers hold up no image that is there already.
  Workers fetching, reading;
};

std::optional<ImageError> ImageLoader::Impl::fetch(Job& job, size_t index, GrowingShare& share, std::string* bytes) {
  if (!options.fetch) {
    return ImageError{
        .code = image_code::kBadUrl,
        .message = "This service does not fetch images. Send a data URL, or start it with --image-fetch."};
  }
  const size_t before = job.fetched_bytes.load();
  const size_t left = options.fetched_bytes_max - std::min(before, options.fetched_bytes_max);
  const FetchLimits limits = {.bytes_max = std::min(options.bytes_max, left),
                              .deadline = job.deadline,
                              .reserve = [&](size_t more) { return share.grow(more); }};
  const auto stop = [&] { return ending || job.over || job.first_bad < index; };
  auto error = fetch_image(job.images[index].source, options.rules, limits, stop, bytes);
  if (error) return error;
  if (job.fetched_bytes.fetch_add(bytes->size()) + bytes->size() > options.fetched_bytes_max) {
    return ImageError{
        .code = image_code::kTooManyBytes,
        .message = fmt::format("The images of this request have more than images_fetched_bytes_max, {} bytes.",
                               options.fetched_bytes_max),
        .limit = "images_fetched_bytes_max"};
  }
  return std::nullopt;
}

std::optional<ImageError> ImageLoader::Impl::decode(const Job& job, std::string_view bytes) {
  if (bytes.size() > options.bytes_max) {
    return ImageError{
        .code = image_code::kTooManyBytes,
        .message = fmt::format("The image has {} bytes; image_bytes_max is {}.", bytes.size(), options.bytes_max),
        .limit = "image_bytes_max"};
  }
  const bool many = job.images.size() >= options.many_images;
  ImageInfo info;
  if (auto error = read_image_info(bytes, many ? options.side_max / 2 : options.side_max, &info)) return error;
  const size_t need = std::min(info.decode_bytes, options.memory_max);
  const Share place(decoders, 1, job.deadline), bytes_set_aside(memory, need, job.deadline);
  if (!place.taken || !bytes_set_aside.taken) {
    return ImageError{.code = image_code::kOverloaded,
                      .message = "Too many other images are being decoded (image_memory_max). Try again later.",
                      .retry = true,
                      .limit = "image_memory_max"};
  }
  Pixels pixels;
  return decode_image(bytes, info, job.deadline, &pixels);
}

std::optional<ImageError> ImageLoader::Impl::read(Job& job, size_t index) {
  recipe::Image& image = job.images[index];
  GrowingShare share(files);
  std::string bytes;
  if (!image.is_data_url) {
    if (auto error = fetch(job, index, share, &bytes)) return error;
  } else if (!decode_data_url(image.source, &bytes)) {
    return ImageError{.code = image_code::kBadBase64, .message = "base64 decode error"};
  }
  image.source = std::string();
  return decode(job, bytes);
}

// Each image stands in line for itself, so that requests take turns.
void ImageLoader::Impl::next_turn(const std::shared_ptr<Job>& job) {
  const size_t index = job->next++;
  if (index >= job->images.size() || job->over || ending || index > job->first_bad) return end_reader(job);
  Workers& workers = job->images[index].is_data_url ? reading : fetching;
  if (!workers.submit([this, job, index] { take_turn(job, index); })) end_reader(job);
}

void ImageLoader::Impl::take_turn(const std::shared_ptr<Job>& job, size_t index) {
  if (job->over || index > job->first_bad) return end_reader(job);
  const bool fetched = !job->images[index].is_data_url;
  std::optional<ImageError> error;
  try {
    error = read(*job, index);
  } catch (const std::exception& e) {
    error = ImageError{.code = image_code::kOverloaded,
                       .message = fmt::format("The image cannot be read now: {}.", e.what()),
                       .retry = true};
  }
  if (!job->over && !ending)
    on_outcome(
        {.fetched = fetched, .code = error ? error->code : "ok", .limit = error ? error->limit : std::string_view()});
  if (error) {
    const std::lock_guard<std::mutex> lock(job->mutex);
    if (index < job->first_bad) {
      job->first_bad = index;
      job->error = std::move(*error);
    }
  }
  next_turn(job);
}

void ImageLoader::Impl::end_reader(const std::shared_ptr<Job>& job) {
  if (--job->readers > 0) return;
  --requests;
  // Its caller may own the handle of this job: neither keeps the other alive.
  const auto done = std::exchange(job->done, nullptr);
  if (job->over || ending) return;
  std::optional<recipe::ApiError> error;
  if (const size_t bad = job->first_bad; bad < job->images.size()) error = api_error(job->error, job->images[bad].path);
  done(std::move(error));
}

ImageLoader::ImageLoader(ImageOptions options, std::function<void(const ImageOutcome&)> on_outcome)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(on_outcome))) {}

ImageLoader::~ImageLoader() { stop(); }

void ImageLoader::stop() {
  impl_->ending = true;
  impl_->fetching.stop();
  impl_->reading.stop();
}

std::unique_ptr<ImageCheck> ImageLoader::check(std::vector<recipe::Image> images,
                                               std::function<void(std::optional<recipe::ApiError>)> done) {
  if (impl_->requests.fetch_add(1) >= impl_->options.requests_max) {
    --impl_->requests;
    impl_->on_outcome({.code = image_code::kOverloaded, .limit = "images_requests_max"});
    return nullptr;
  }
  const auto job = std::make_shared<Job>();
  job->images = std::move(images);
  job->done = std::move(done);
  job->first_bad = job->images.size();
  job->deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                         std::chrono::duration<double>(impl_->options.timeout_s));
  const size_t readers = std::min(kAtOncePerRequest, std::max<size_t>(job->images.size(), 1));
  job->readers = readers;
  auto handle = std::make_unique<Handle>(job);
  for (size_t i = 0; i < readers; ++i) impl_->next_turn(job);
  return handle;
}

}  // namespace deepinfer::serve
