// One request and its response, as a route's handler sees them: no sockets, no HTTP library.
//
//   void version(const std::shared_ptr<Exchange>& x) { x->respond({.body = R"({"version":"0.1.0"})"}); }
//
//   x->begin_stream({.content_type = kEventStream});       // status and headers
//   x->stream_out() += "data: hello\n\n";                   // gathered ..
//   x->flush();                                             // .. and sent as one write when the socket is free
//   x->end_stream();
//
// A handler answers exactly once: respond(), or begin_stream() .. end_stream(). It may do so at once or later, on the
// exchange's loop only (run_on(loop) from other threads). After the client is gone all calls are allowed and do
// nothing. Slow readers: while unsent() is above the limit a handler should add nothing; on_writable() tells when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe/conversation.h"

namespace deepinfer::serve {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kEventStream = "text/event-stream";
inline constexpr std::string_view kTextType = "text/plain; charset=utf-8";

using Headers = std::vector<std::pair<std::string_view, std::string>>;  // names are literals

struct Response {
  int status = 200;
  std::string_view content_type = kJsonType;
  std::string body;
  Headers headers;
};

// Runs things on one of the service's threads, one after the other.
class Loop {
 public:
  virtual ~Loop() = default;
  // From any thread.
  virtual void post(std::function<void()> job) = 0;
  // Milliseconds of a steady clock, updated a few times a second.
  virtual int64_t now_ms() const = 0;
};

// Figures that a handler leaves for the access log and the metrics.
struct ExchangeFigures {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double first_token_s = 0;  // from submit
  double output_s = 0;       // from the first token to the last
  std::string_view finish;  // a literal
  std::string_view rule;    // that changed the prompt, or none; a literal
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  virtual std::string_view method() const = 0;
  virtual std::string_view path() const = 0;   // decoded, without the query
  virtual std::string_view query() const = 0;  // as sent, without the question mark
  virtual std::string_view header(std::string_view name) const = 0;  // empty if absent
  virtual std::string& body() = 0;
  virtual Loop& loop() = 0;
  // A part of the path that the route's pattern leaves open: the id in /v1/responses/{id}.
  std::string_view path_argument() const { return argument; }
  // The value of a query parameter, decoded; empty if absent.
  std::string query_value(std::string_view name) const;

  virtual void respond(Response response) = 0;
  virtual void begin_stream(const Response& head) = 0;
  virtual std::string& stream_out() = 0;
  virtual void flush() = 0;
  virtual void end_stream() = 0;
  // Ends the response without its proper end, as after an error in mid-stream of a whole body.
  virtual void abort() = 0;
  virtual bool begun() const = 0;  // status and headers are fixed

  virtual size_t unsent() const = 0;

  // Callbacks; each is called on the loop and replaced by setting another.
  std::function<void()> on_writable;  // unsent() has fallen below half the limit
  std::function<void()> on_gone;      // the client is gone; called once
  std::function<void()> on_quiet;     // nothing was sent for keep_alive_s

  std::string request_id;
  std::string traceparent;  // as received, if it is well formed
  recipe::Protocol protocol = recipe::Protocol::kChat;  // whose error objects this route uses
  std::string argument;
  std::string key_name;  // of the API key
  int32_t priority = 0;  // of its generation among those that wait, engine::Request::priority
  std::shared_ptr<void> admission;  // what admit() took; given back when the response is over
  Headers extra_headers;            // of the response, whatever it is
  ExchangeFigures figures;

 protected:
  Exchange() = default;
};

// The API's error object with its status.
void respond_error(Exchange& x, int status, std::string message, std::string_view type = "invalid_request_error",
                   std::string_view code = {}, std::string_view param = {}, Headers headers = {});

// %XX and, in queries, + decoded. What is no valid escape stays as it is.
std::string percent_decode(std::string_view text, bool query);

}  // namespace deepinfer::serve
