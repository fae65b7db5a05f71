#include "serve/http_exchange.h"

#include <algorithm>
#include <charconv>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/rfc7230.hpp>

namespace deepinfer::serve {
namespace {

constexpr size_t kChunkHead = 10;  // eight hexadecimal digits and a line end
constexpr std::string_view kChunkPlace = "00000000\r\n";

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

void append_number(std::string& out, uint64_t value) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ").append(value).append("\r\n");
}

// The path and query of an absolute-form target, which servers must accept though proxies alone send it (RFC 9112,
// 3.2.2); other targets stay as they are.
std::string_view origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals({target.data(), std::min(target.size(), scheme.size())}, {scheme.data(), scheme.size()}))
      continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    return path == std::string_view::npos ? "/" : target.substr(path);
  }
  return target;
}

}  // namespace

std::string_view status_text(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 402: return "Payment Required";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 507: return "Insufficient Storage";
    case 529: return "Overloaded";
    default: return status >= 500 ? "Internal Server Error" : "Error";
  }
}

HttpExchange::HttpExchange(Wire* wire, Host& host, LoopThread& loop, std::string_view peer)
    : wire_(wire), host_(host), loop_(loop), peer_(peer), last_sent_ms_(loop.now_ms()) {
  request_id = host.next_request_id();
}

HttpExchange::~HttpExchange() {
  // A handler dropped it without an answer.
  if (!ended_) finish(false);
}

void HttpExchange::set_head(Head head) {
  head_ = std::move(head);
  method_ = view(head_.method_string());
  head_only_ = method_ == "HEAD";
  chunked_ = head_.version() >= 11;
  boost::beast::http::token_list connection(head_[boost::beast::http::field::connection]);
  asked_keep_alive_ = chunked_ ? !connection.exists("close") : connection.exists("keep-alive");
  keep_alive_ = asked_keep_alive_;
  const std::string_view target = origin_form(view(head_.target()));
  const size_t question = target.find('?');
  path_ = percent_decode(target.substr(0, question), false);
  if (path_.empty()) path_ = "/";
  if (question != std::string_view::npos) query_ = target.substr(question + 1);
}

std::string_view HttpExchange::header(std::string_view name) const {
  const auto at = head_.find(boost::beast::string_view(name.data(), name.size()));
  return at == head_.end() ? std::string_view() : view(at->value());
}

void HttpExchange::write_cors(std::string& out) const {
  const auto& origins = host_.config->cors_origins;
  if (origins.empty()) return;
  const std::string_view origin = header("origin");
  if (origin.empty()) return;
  const bool all = std::ranges::find(origins, "*") != origins.end();
  if (!all && std::ranges::find(origins, origin) == origins.end()) return;
  append_header(out, "Access-Control-Allow-Origin", all ? std::string_view("*") : origin);
  append_header(out, "Vary", "Origin");
  append_header(out, "Access-Control-Expose-Headers", "x-request-id, request-id, server-timing, retry-after");
}

void HttpExchange::write_head(const Response& r, std::string_view framing) {
  status_ = r.status;
  if (host_.draining.load(std::memory_order_relaxed)) keep_alive_ = false;
  std::string& out = wire_->output();
  out += "HTTP/1.1 ";
  append_number(out, static_cast<uint64_t>(r.status));
  out.append(" ").append(status_text(r.status)).append("\r\n");
  append_header(out, "Date", loop_.date());
  if (!r.content_type.empty()) append_header(out, "Content-Type", r.content_type);
  append_header(out, "x-request-id", request_id);
  if (protocol == recipe::Protocol::kMessages) append_header(out, "request-id", request_id);  // Anthropic's name
  write_cors(out);
  for (const auto& [name, value] : r.headers) append_header(out, name, value);
  for (const auto& [name, value] : extra_headers) append_header(out, name, value);
  if (!keep_alive_) {
    out += "Connection: close\r\n";
  } else if (!chunked_) {
    out += "Connection: keep-alive\r\n";
  }
  out += framing;
}

void HttpExchange::respond(Response r) {
  if (ended_ || status_ != 0) return;
  if (wire_ == nullptr) {
    status_ = r.status;
    return finish(false);
  }
  const bool has_body = r.status >= 200 && r.status != 204 && r.status != 304;
  write_head(r, "");
  std::string& out = wire_->output();
  if (has_body) {
    out += "Content-Length: ";
    append_number(out, r.body.size());
    out += "\r\n";
  }
  out += "\r\n";
  if (has_body && !head_only_) {
    body_bytes_ = r.body.size();
    out += r.body;
  }
  finish(true);
}

void HttpExchange::begin_stream(const Response& head) {
  if (ended_ || status_ != 0) return;
  status_ = head.status;
  if (wire_ == nullptr) return;
  if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
  write_head(head, chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

std::string& HttpExchange::stream_out() {
  if (wire_ == nullptr || ended_ || status_ == 0 || head_only_) {
    nothing_.clear();
    return nothing_;
  }
  std::string& out = wire_->output();
  if (chunked_ && chunk_at_ == std::string::npos) {
    chunk_at_ = out.size();
    out += kChunkPlace;
  } else if (!chunked_ && chunk_at_ == std::string::npos) {
    chunk_at_ = out.size();
  }
  return out;
}

void HttpExchange::flush() {
  if (wire_ == nullptr || ended_ || status_ == 0) return;
  std::string& out = wire_->output();
  if (chunk_at_ != std::string::npos) {
    const size_t head = chunked_ ? kChunkHead : 0;
    size_t bytes = out.size() - chunk_at_ - head;
    body_bytes_ += bytes;
    if (chunked_ && bytes == 0) {
      out.resize(chunk_at_);
    } else if (chunked_) {
      for (size_t digit = 8, rest = bytes; digit-- > 0; rest >>= 4)
        out[chunk_at_ + digit] = "0123456789abcdef"[rest & 15];
      out += "\r\n";
    }
    chunk_at_ = std::string::npos;
  }
  last_sent_ms_ = loop_.now_ms();
  full_ = wire_->unsent() > host_.config->limits->unsent_bytes_max;
  wire_->send();
}

void HttpExchange::end_stream() {
  if (ended_ || status_ == 0) return;
  if (wire_ == nullptr) return finish(false);
  flush();
  if (chunked_ && !head_only_) wire_->output() += "0\r\n\r\n";
  finish(true);
}

void HttpExchange::abort() {
  if (ended_) return;
  keep_alive_ = false;
  if (status_ == 0) status_ = 500;
  finish(false);
}

void HttpExchange::finish(bool complete) {
  ended_ = true;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (host_.finished) {
    host_.finished(
        {*this, route_, status_ == 0 ? 499 : status_, body_bytes_, seconds, complete && wire_ != nullptr, peer_});
  }
  // The callbacks may hold what holds this.
  on_writable = nullptr;
  on_gone = nullptr;
  on_quiet = nullptr;
  if (wire_ == nullptr) return;
  Wire* wire = wire_;
  wire_ = nullptr;
  wire->response_ended(keep_alive_ && complete);
}

void HttpExchange::detach() {
  if (wire_ == nullptr) return;
  wire_ = nullptr;
  if (ended_) return;
  const auto self = shared_from_this();
  if (on_gone) std::exchange(on_gone, nullptr)();
}

void HttpExchange::wrote(size_t unsent) {
  last_sent_ms_ = loop_.now_ms();
  if (!full_ || unsent > host_.config->limits->unsent_bytes_max / 2) return;
  full_ = false;
  const auto self = shared_from_this();
  if (on_writable) on_writable();
}

void HttpExchange::sweep(int64_t now_ms) {
  const double quiet_s = static_cast<double>(now_ms - last_sent_ms_) / 1000;
  if (ended_ || !on_quiet || quiet_s < host_.config->limits->keep_alive_s) return;
  last_sent_ms_ = now_ms;
  const auto self = shared_from_this();
  on_quiet();
}

}  // namespace deepinfer::serve
