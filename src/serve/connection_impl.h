// The body of Connection, for the two files that instantiate it (internal to serve/; includes Beast).
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "recipe/logprobs.h"
#include "serve/connection.h"
#include "serve/http_exchange.h"

namespace deepinfer::serve {

namespace http = boost::beast::http;
using boost::system::error_code;

template <class Stream>
class Connection final : public Swept, public Wire, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  template <class... Args>
  Connection(Host& host, LoopThread& loop, std::string peer, Args&&... args)
      : stream_(std::forward<Args>(args)...), host_(host), loop_(loop), peer_(std::move(peer)), wake_(loop.context()) {
    ++host_.connections;
    loop_.add(this);
  }

  ~Connection() override {
    loop_.remove(this);
    --host_.connections;
    host_.body_bytes -= counted_body_;
  }

  void start() {
    asio::co_spawn(loop_.context().get_executor(), run(),
                   [self = this->shared_from_this()](std::exception_ptr failure) {
                     if (failure) self->close();  // out of memory
                   });
  }

  void sweep(int64_t now_ms) override {
    const auto self = this->shared_from_this();
    if (writing_ && now_ms > write_deadline_ms_) {
      host_.limit_hit("write_timeout_s");
      return close();
    }
    if (now_ms > read_deadline_ms_) {
      // A request that was begun gets an answer; silence is just ended.
      if (phase_ == Phase::kHead && reading_request_) {
        host_.limit_hit("header_timeout_s");
        refuse_unread(408, "The request's headers did not arrive within header_timeout_s.");
      } else if (phase_ == Phase::kBody) {
        host_.limit_hit("body_timeout_s");
        refuse_unread(408, "The request's body did not arrive in time: body_timeout_s and body_rate_min.");
      } else {
        close();
      }
      return;
    }
    if (exchange_) exchange_->sweep(now_ms);
  }

  void stop(bool now) override {
    const auto self = this->shared_from_this();
    stopping_ = true;
    if (now || (phase_ == Phase::kHead && !reading_request_ && !writing_)) close();
  }

  // Wire.
  std::string& output() override { return output_; }
  size_t unsent() const override { return output_.size() + (writing_ ? in_flight_.size() - sent_ : 0); }

  void send() override {
    if (writing_ || output_.empty() || closed_) return;
    std::swap(output_, in_flight_);
    output_.clear();
    sent_ = 0;
    writing_ = true;
    write_some();
  }

  void response_ended(bool keep_alive) override {
    keep_alive_ = keep_alive;
    ended_ = true;
    send();
    wake();
  }

 private:
  using Parser = http::request_parser<http::string_body>;
  using Token = asio::as_tuple_t<asio::use_awaitable_t<LoopThread::Executor>>;
  template <class T>
  using Awaitable = asio::awaitable<T, LoopThread::Executor>;

  enum class Phase : uint8_t { kHandshake, kHead, kBody, kHandler, kLinger };

  static constexpr size_t kReadBytes = 16 << 10, kReadBytesMax = 256 << 10, kLingerBytesMax = 1 << 20;
  static constexpr size_t kAheadBytesMax = 32 << 10;  // of requests behind the one in work
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kLingerMs = 2000;

  static int64_t ms(double seconds) { return static_cast<int64_t>(seconds * 1000); }
  const ServeLimits& limits() const { return *host_.config->limits; }

  Awaitable<void> run() {
    const auto self = this->shared_from_this();
    read_deadline_ms_ = loop_.now_ms() + ms(limits().header_timeout_s);
    if (!co_await handshake()) co_return close();
    while (!closed_) {
      if (!co_await read_head()) break;
      if (!co_await read_body()) break;
      const Route* route = std::exchange(route_, nullptr);
      if (route != nullptr) {
        phase_ = Phase::kHandler;
        read_deadline_ms_ = kNever;
        call_handler(*route);
      }
      co_await finish_response();
      if (closed_ || !keep_alive_ || stopping_) break;
    }
    co_await linger();
    close();
  }

  Awaitable<bool> handshake();

  // Reads into the buffer; false at the end of the stream.
  Awaitable<bool> read_more(size_t bytes) {
    if (watching_) {  // a read was begun while the last handler worked
      while (watching_) co_await wait();
      co_return !eof_;
    }
    if (eof_) co_return false;
    auto [ec, n] = co_await stream_.async_read_some(buffer_.prepare(bytes), Token());
    if (ec) {
      eof_ = true;
      co_return false;
    }
    buffer_.commit(n);
    co_return true;
  }

  Awaitable<bool> read_head() {
    phase_ = Phase::kHead;
    // A read that watch() began still writes into the buffer.
    if (!watching_ && buffer_.size() == 0 && buffer_.capacity() > 4 * kReadBytes) buffer_ = {};
    reading_request_ = buffer_.size() > 0;
    read_deadline_ms_ = loop_.now_ms() + ms(reading_request_ ? limits().header_timeout_s : limits().idle_timeout_s);
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(limits().header_bytes_max));
    parser_->body_limit(boost::none);
    ended_ = false;
    while (!parser_->is_header_done()) {
      if (buffer_.size() > parsed_) {
        error_code ec;
        const size_t used = parser_->put(buffer_.data(), ec);
        buffer_.consume(used);
        parsed_ = buffer_.size();
        if (ec == http::error::need_more) ec = {};
        if (ec == http::error::header_limit) {
          host_.limit_hit("header_bytes_max");
          refuse_unread(431, "The request line and headers are larger than header_bytes_max.");
          co_return false;
        }
        if (ec) {
          refuse_unread(400, "This is no valid HTTP/1.1 request: " + ec.message() + ".");
          co_return false;
        }
        if (parser_->is_header_done()) break;
      }
      if (!co_await read_more(kReadBytes) || closed_ || refused_) co_return false;
      if (!reading_request_) {
        reading_request_ = true;
        read_deadline_ms_ = loop_.now_ms() + ms(limits().header_timeout_s);
      }
    }
    parsed_ = 0;
    co_return open_exchange();
  }

  // The headers are there: which route, may it be used, how large may the body be.
  bool open_exchange() {
    const auto self = std::make_shared<HttpExchange>(this, host_, loop_, peer_);
    exchange_ = self;
    HttpExchange& x = *self;
    expect_continue_ = parser_->get()[http::field::expect] == "100-continue";
    const auto length = parser_->content_length();
    has_body_ = parser_->chunked() || length.value_or(0) > 0;
    const std::string fault = ambiguous(parser_->get().base());
    x.set_head(std::move(parser_->get().base()));
    x.set_keep_alive(!has_body_);  // of a refusal: a body that nobody reads is in the way of the next request
    if (!fault.empty()) {
      x.set_keep_alive(false);  // nobody knows where the next request begins
      respond_error(x, 400, fault);
      return true;
    }
    const RouteMatch match = host_.router->find(x.method(), x.path());
    if (match.route != nullptr) {
      x.protocol = match.route->protocol;
      x.argument = match.argument;
      x.set_route(match.route);
    } else if (x.path().find("/messages") != std::string_view::npos) {
      x.protocol = recipe::Protocol::kMessages;
    }
    if (match.route == nullptr && x.method() == "OPTIONS" && !host_.config->cors_origins.empty()) {
      x.respond({.status = 204,
                 .content_type = {},
                 .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                             {"Access-Control-Allow-Headers", "*, Authorization"},
                             {"Access-Control-Max-Age", "86400"}}});
      return true;
    }
    if (match.route == nullptr && !match.allowed.empty()) {
      respond_error(x, 405,
                    std::string(x.method()) + " is not possible at this path. What it takes: " + match.allowed + ".",
                    "invalid_request_error", "method_not_allowed", {}, {{"Allow", match.allowed}});
      return true;
    }
    if (match.route == nullptr) {
      respond_error(x, 404, "There is nothing at " + recipe::printable(x.path().substr(0, 200)) +
                                "; GET /openapi.json lists what this server has.",
                    "invalid_request_error", "not_found");
      return true;
    }
    if (const std::string_view coding = x.header("content-encoding");
        has_body_ && !coding.empty() && coding != "identity") {
      respond_error(x, 415,
                    "The request body is encoded (Content-Encoding: " + recipe::printable(coding.substr(0, 50)) +
                        "); this server takes bodies as they are.",
                    "invalid_request_error", "unsupported_content_encoding", {}, {{"Accept-Encoding", "identity"}});
      return true;
    }
    if (host_.admit && !host_.admit(exchange_, *match.route)) return true;
    const size_t body_max = limits().body_bytes_max;
    if (length.value_or(0) > body_max) {
      host_.limit_hit("body_bytes_max");
      respond_error(x, 413, "The request body has " + std::to_string(*length) + " bytes, more than body_bytes_max = " +
                                std::to_string(body_max) + " of this server.");
      return true;
    }
    if (!count_body(length.value_or(0))) {
      host_.limit_hit("bodies_bytes_max");
      respond_error(x, 503, "The requests being read hold more than bodies_bytes_max. Try again soon.", "server_error",
                    "overloaded", {}, {{"Retry-After", "1"}});
      return true;
    }
    parser_->body_limit(body_max);
    x.set_keep_alive(true);
    route_ = match.route;
    return true;
  }

  // Heads that a proxy before this server may read otherwise than it does: then one client's body could be taken for
  // another one's request (RFC 9112, 6.1 and 3.2).
  static std::string ambiguous(const http::request_header<>& head) {
    if (head.count(http::field::host) > 1) return "The request has more than one Host header.";
    if (head.count(http::field::host) == 0 && head.version() >= 11) return "The request has no Host header.";
    if (head.count(http::field::transfer_encoding) == 0) return {};
    const auto coding = head[http::field::transfer_encoding];
    if (head.count(http::field::transfer_encoding) == 1 && boost::beast::iequals(coding, "chunked") &&
        head.version() >= 11)
      return {};
    return "The request's Transfer-Encoding is not just \"chunked\", the only one of this server.";
  }

  bool count_body(size_t bytes) {
    counted_body_ += bytes;
    return host_.body_bytes.fetch_add(bytes) + bytes <= limits().bodies_bytes_max;
  }

  void uncount_body() { host_.body_bytes -= std::exchange(counted_body_, 0); }

  Awaitable<bool> read_body() {
    if (route_ == nullptr || !has_body_) co_return true;
    phase_ = Phase::kBody;
    const int64_t begin_ms = loop_.now_ms();
    double received = static_cast<double>(buffer_.size());
    if (expect_continue_ && buffer_.size() == 0) {
      output_ += "HTTP/1.1 100 Continue\r\n\r\n";
      send();
    }
    parser_->eager(true);
    while (!parser_->is_done()) {
      read_deadline_ms_ = begin_ms + ms(limits().body_timeout_s + received / limits().body_rate_min);
      if (buffer_.size() > parsed_) {
        error_code ec;
        const size_t used = parser_->put(buffer_.data(), ec);
        buffer_.consume(used);
        parsed_ = buffer_.size();
        if (ec == http::error::need_more) ec = {};
        if (ec == http::error::body_limit) {
          host_.limit_hit("body_bytes_max");
          refuse_unread(413, "The request body is larger than body_bytes_max = " +
                                 std::to_string(limits().body_bytes_max) + " of this server.");
          co_return false;
        }
        if (ec) {
          refuse_unread(400, "The request body is not valid HTTP: " + ec.message() + ".");
          co_return false;
        }
        if (used > 0) continue;
        if (parser_->is_done()) break;
        // What the parser leaves is a chunk's line or the trailers, of which it takes only whole ones.
        if (parser_->chunked() && buffer_.size() > limits().header_bytes_max) {
          host_.limit_hit("header_bytes_max");
          refuse_unread(431, "A chunk's first line or the body's trailers are larger than header_bytes_max.");
          co_return false;
        }
      }
      const size_t left = parser_->content_length_remaining().value_or(kReadBytes);
      const size_t before = buffer_.size();
      if (!co_await read_more(std::clamp(left, kReadBytes, kReadBytesMax)) || closed_ || refused_) co_return false;
      const size_t bytes = buffer_.size() - before;
      received += static_cast<double>(bytes);
      if (parser_->chunked() && !count_body(bytes)) {
        host_.limit_hit("bodies_bytes_max");
        refuse_unread(503, "The requests being read hold more than bodies_bytes_max. Try again soon.");
        co_return false;
      }
    }
    parsed_ = 0;
    exchange_->set_body(std::move(parser_->get().body()));
    co_return true;
  }

  void call_handler(const Route& route) {
    const std::shared_ptr<HttpExchange> x = exchange_;
    try {
      route.handler(x);
    } catch (const std::exception& e) {
      respond_error(*x, 500, std::string("The service failed: ") + e.what() + ".", "internal_error");
    }
    // Nobody is left who could answer.
    if (!x->ended() && x.use_count() == 2)
      respond_error(*x, 500, "The service has no answer to this request.", "internal_error");
  }

  // Until the response is over and written, or the client is gone.
  Awaitable<void> finish_response() {
    while (!ended_ && !closed_) {
      watch();
      co_await wait();
      if (eof_ && exchange_) exchange_->detach();  // the client has gone; the handler hears of it
      if (eof_ && !ended_) break;
    }
    uncount_body();
    exchange_.reset();
    while (writing_ && !closed_ && (!keep_alive_ || unsent() > limits().unsent_bytes_max)) co_await wait();
    if (eof_ && !ended_) close();
  }

  // A read while nothing is expected: the end of the stream, or requests that the client sends ahead. Those wait in the
  // buffer, which the parser may move while the read is on its way; so it goes elsewhere where the buffer is not empty.
  void watch() {
    if (watching_ || eof_ || buffer_.size() >= kAheadBytesMax) return;
    watching_ = true;
    const bool apart = buffer_.size() > 0;
    if (apart) ahead_.resize(kReadBytes);
    stream_.async_read_some(apart ? asio::buffer(ahead_) : asio::mutable_buffer(buffer_.prepare(kReadBytes)),
                            [self = this->shared_from_this(), apart](const error_code& ec, size_t n) {
                              self->watching_ = false;
                              if (ec) {
                                self->eof_ = true;
                              } else if (apart) {
                                asio::buffer_copy(self->buffer_.prepare(n), asio::buffer(self->ahead_));
                                self->buffer_.commit(n);
                              } else {
                                self->buffer_.commit(n);
                              }
                              self->ahead_ = std::string();
                              self->wake();
                            });
  }

  // A refusal while the request has not been read to its end.
  void refuse_unread(int status, std::string message) {
    if (!exchange_) {
      exchange_ = std::make_shared<HttpExchange>(this, host_, loop_, peer_);
    }
    const auto x = exchange_;
    x->set_keep_alive(false);
    read_deadline_ms_ = kNever;
    route_ = nullptr;
    respond_error(*x, status, std::move(message));
    exchange_.reset();
    phase_ = Phase::kLinger;
    refused_ = true;
    begin_linger();
  }

  void begin_linger() {
    linger_deadline_ms_ = loop_.now_ms() + kLingerMs;
    read_deadline_ms_ = linger_deadline_ms_;
  }

  // After a response that ends the connection: waits until it is written, then reads what the client still sends, so
  // that the close does not destroy the response on its way.
  Awaitable<void> linger() {
    while (writing_ && !closed_) co_await wait();
    if (closed_ || eof_) co_return;
    error_code ignored;
    lowest().shutdown(Socket::shutdown_send, ignored);
    phase_ = Phase::kLinger;
    begin_linger();
    for (size_t read = 0; read < kLingerBytesMax && !closed_;) {
      buffer_.clear();
      if (!co_await read_more(kReadBytes)) break;
      read += buffer_.size();
    }
  }

  void write_some() {
    write_deadline_ms_ = loop_.now_ms() + ms(limits().write_timeout_s);
    stream_.async_write_some(
        asio::buffer(in_flight_.data() + sent_, in_flight_.size() - sent_),
        [self = this->shared_from_this()](const error_code& ec, size_t n) { self->on_write(ec, n); });
  }

  void on_write(const error_code& ec, size_t n) {
    if (ec || closed_) {
      writing_ = false;
      return close();
    }
    sent_ += n;
    if (sent_ < in_flight_.size()) return write_some();
    writing_ = false;
    if (in_flight_.capacity() > 4 * kReadBytesMax) in_flight_ = std::string();
    in_flight_.clear();
    sent_ = 0;
    send();
    if (const auto x = exchange_) x->wrote(unsent());
    if (!writing_) wake();
  }

  auto& lowest() { return stream_.lowest_layer(); }

  void close() {
    if (std::exchange(closed_, true)) return;
    const auto self = this->shared_from_this();
    error_code ignored;
    lowest().shutdown(Socket::shutdown_both, ignored);
    lowest().close(ignored);
    read_deadline_ms_ = kNever;
    if (const auto x = std::exchange(exchange_, nullptr)) x->detach();
    wake();
  }

  Awaitable<void> wait() {
    if (std::exchange(woken_, false)) co_return;
    wake_.expires_at(asio::steady_timer::time_point::max());
    waiting_ = true;
    co_await wake_.async_wait(Token());
    waiting_ = false;
    woken_ = false;
  }

  void wake() {
    woken_ = true;
    if (waiting_) wake_.cancel();
  }

  Stream stream_;
  Host& host_;
  LoopThread& loop_;
  const std::string peer_;
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>,
                             LoopThread::Executor>
      wake_;
  bool woken_ = false, waiting_ = false;

  Phase phase_ = Phase::kHandshake;
  boost::beast::flat_buffer buffer_;
  size_t parsed_ = 0;  // of the buffer: no more can be made of it without further bytes
  std::optional<Parser> parser_;
  std::shared_ptr<HttpExchange> exchange_;
  const Route* route_ = nullptr;
  size_t counted_body_ = 0;
  bool has_body_ = false, expect_continue_ = false, reading_request_ = false, refused_ = false;
  bool watching_ = false, eof_ = false, closed_ = false, stopping_ = false;
  bool ended_ = false, keep_alive_ = true;

  std::string output_, in_flight_, ahead_;
  size_t sent_ = 0;
  bool writing_ = false;
  int64_t read_deadline_ms_ = kNever, write_deadline_ms_ = kNever, linger_deadline_ms_ = kNever;
};

}  // namespace deepinfer::serve
