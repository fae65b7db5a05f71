// The images of a request, checked before it is refused for having them: so a bad image gets its own error (internal to
// serve/).
//
//   check_ = check_images(service, exchange->loop(), std::move(prepared.images), [](const recipe::ApiError& e) { ...
//   });
//   if (!check_) respond(too_many_images());
//   check_.reset();                                  // the client is gone: what is being fetched for it ends
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "recipe/conversation.h"
#include "recipe/request.h"
#include "serve/exchange.h"
#include "serve/images/loader.h"

namespace deepinfer::serve {

class Service;

// Calls `refused` on the loop, with what is wrong with the first bad image, or that the model cannot see.
std::unique_ptr<ImageCheck> check_images(Service& service, Loop& loop, std::vector<recipe::Image> images,
                                         std::function<void(const recipe::ApiError&)> refused);

recipe::ApiError too_many_images();

}  // namespace deepinfer::serve
