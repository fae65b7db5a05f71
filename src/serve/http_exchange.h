// The Exchange of a connection: builds status line, headers and chunks into the connection's output (internal to
// serve/; includes Beast).
#pragma once

#include <chrono>
#include <string>

#include <boost/beast/http/message.hpp>

#include "serve/host.h"
#include "serve/loop_thread.h"

namespace deepinfer::serve {

// The connection's side. Null in an exchange whose connection is gone.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::string& output() = 0;
  virtual size_t unsent() const = 0;
  virtual void send() = 0;                           // starts a write if none is in flight
  virtual void response_ended(bool keep_alive) = 0;  // the exchange was answered to its end
};

class HttpExchange final : public Exchange {
 public:
  using Head = boost::beast::http::request_header<>;

  HttpExchange(Wire* wire, Host& host, LoopThread& loop, std::string_view peer);
  ~HttpExchange() override;

  // The headers are there; the body may follow.
  void set_head(Head head);
  void set_body(std::string body) { body_ = std::move(body); }
  void set_route(const Route* route) { route_ = route; }
  // The connection is over, whatever the handler still does.
  void detach();
  // Whether the connection can go on after the response, as far as its own side is concerned.
  void set_keep_alive(bool possible) { keep_alive_ = possible && asked_keep_alive_; }
  void sweep(int64_t now_ms);
  void wrote(size_t unsent);  // some output has left

  bool ended() const { return ended_; }
  bool keep_alive() const { return keep_alive_; }

  std::string_view method() const override { return method_; }
  std::string_view path() const override { return path_; }
  std::string_view query() const override { return query_; }
  std::string_view header(std::string_view name) const override;
  std::string& body() override { return body_; }
  Loop& loop() override { return loop_; }

  void respond(Response response) override;
  void begin_stream(const Response& head) override;
  std::string& stream_out() override;
  void flush() override;
  void end_stream() override;
  void abort() override;
  bool begun() const override { return status_ != 0; }
  size_t unsent() const override { return wire_ == nullptr ? 0 : wire_->unsent(); }

 private:
  void write_head(const Response& r, std::string_view framing);
  void write_cors(std::string& out) const;
  void finish(bool complete);

  Wire* wire_;
  Host& host_;
  LoopThread& loop_;
  const std::string peer_;
  const Route* route_ = nullptr;
  Head head_;
  std::string method_, path_, query_, body_, nothing_;
  bool asked_keep_alive_ = false, keep_alive_ = false, chunked_ = false, head_only_ = false, ended_ = false,
       full_ = false;
  int status_ = 0;
  size_t body_bytes_ = 0;
  size_t chunk_at_ = std::string::npos;  // of the open chunk's size in the output
  int64_t last_sent_ms_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::string_view status_text(int status);

}  // namespace deepinfer::serve
