#include "serve/image_check.h"

#include <utility>

#include "serve/service.h"

namespace deepinfer::serve {

std::unique_ptr<ImageCheck> check_images(Service& service, Loop& loop, std::vector<recipe::Image> images,
                                         std::function<void(const recipe::ApiError&)> refused) {
  recipe::ApiError cannot_see = {.message = "This model takes no images: its checkpoint has no vision tower.",
                                 .param = images.front().path};
  return service.images->check(
      std::move(images),
      [&loop, cannot_see = std::move(cannot_see), refused = std::move(refused)](std::optional<recipe::ApiError> error) {
        loop.post([refused, error = error ? std::move(*error) : cannot_see] { refused(error); });
      });
}

recipe::ApiError too_many_images() {
  return {.status = 503,
          .message = "The images of too many requests are being read. Try again later (images_requests_max).",
          .type = "server_error",
          .code = "overloaded"};
}

}  // namespace deepinfer::serve
