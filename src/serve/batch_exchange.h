// The exchange of a batch's line: a request without a connection, whose answer is kept (internal to serve/).
//
//   auto x = std::make_shared<BatchExchange>(loop, "/v1/chat/completions", body, [](BatchAnswer answer) { ... });
//   route.handler(x);                         // on the loop; the callback runs there later, once, never from within
//   x->cancel();                              // ends its work; nothing is called any more
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "serve/exchange.h"

namespace deepinfer::serve {

struct BatchAnswer {
  int status = 0;
  std::string body;
  bool complete = true;  // false: it broke off
};

class BatchExchange final : public Exchange {
 public:
  BatchExchange(Loop& loop, std::string path, std::string body, std::function<void(BatchAnswer)> done)
      : loop_(loop), path_(std::move(path)), body_(std::move(body)), done_(std::move(done)) {}

  void cancel() {
    done_ = nullptr;
    if (ended_) return;
    const auto self = shared_from_this();
    if (on_gone) std::exchange(on_gone, nullptr)();
  }

  std::string_view method() const override { return "POST"; }
  std::string_view path() const override { return path_; }
  std::string_view query() const override { return {}; }
  std::string_view header(std::string_view) const override { return {}; }
  std::string& body() override { return body_; }
  Loop& loop() override { return loop_; }

  void respond(Response response) override {
    if (ended_ || begun()) return;
    answer_ = {.status = response.status, .body = std::move(response.body)};
    finish(true);
  }
  void begin_stream(const Response& head) override {
    if (!ended_ && !begun()) answer_.status = head.status;
  }
  std::string& stream_out() override { return answer_.body; }
  void flush() override {}
  void end_stream() override {
    if (!ended_ && begun()) finish(true);
  }
  void abort() override {
    if (!ended_) finish(false);
  }
  bool begun() const override { return answer_.status != 0; }
  size_t unsent() const override { return 0; }

 private:
  void finish(bool complete) {
    ended_ = true;
    answer_.complete = complete;
    // The callbacks may hold what holds this.
    on_writable = nullptr;
    on_gone = nullptr;
    on_quiet = nullptr;
    loop_.post([self = shared_from_this(), this] {
      if (auto done = std::exchange(done_, nullptr)) done(std::move(answer_));
    });
  }

  Loop& loop_;
  const std::string path_;
  std::string body_;
  std::function<void(BatchAnswer)> done_;
  BatchAnswer answer_;
  bool ended_ = false;
};

}  // namespace deepinfer::serve
