// Reads the images of requests in the background: from their data URLs, or fetched, then decoded.
//
//   ImageLoader loader(options, [&](const ImageOutcome& o) { count(o); });
//   // null: too many wait
//   auto check = loader.check(std::move(images), [&](std::optional<recipe::ApiError> error) { ... });
//   check.reset();                                       // gives up: `done` is not called any more
//
// The images of many requests take turns. Of one request up to kAtOncePerRequest are read at once, and the error of the
// first bad one in its order is reported. `done` runs on a thread of the loader. What is decoded at once stays below
// memory_max.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/conversation.h"
#include "recipe/request.h"
#include "serve/images/options.h"

namespace deepinfer::serve {

// One image was read; for metrics.
struct ImageOutcome {
  bool fetched = false;
  std::string_view code;   // of the error, or "ok"
  std::string_view limit;  // that was hit, or empty
};

class ImageCheck {
 public:
  virtual ~ImageCheck() = default;
};

class ImageLoader {
 public:
  static constexpr size_t kAtOncePerRequest = 8;

  ImageLoader(ImageOptions options, std::function<void(const ImageOutcome&)> on_outcome);
  // stop().
  ~ImageLoader();

  std::unique_ptr<ImageCheck> check(std::vector<recipe::Image> images,
                                    std::function<void(std::optional<recipe::ApiError>)> done);
  // Ends what is being read, without a call of `done`, and waits for it. No check afterwards.
  void stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::serve
