// A blocking HTTP/1.1 client for tests: one connection to 127.0.0.1 or a Unix socket.
//
//   HttpClient client(port);
//   HttpReply reply = client.request("POST", "/v1/chat/completions", body);       // keeps the connection
//   client.send("GET /health HTTP/1.1\r\n");  ...                                  // anything else
//
// Chunked bodies are joined. A reply with status 0 means that the connection ended or was silent for too long. A test
// that is stopped for a while (SIGSTOP ends calls that have a time limit) goes on where it was.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace deepinfer::testing {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(int port, int timeout_s = 60) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<sockaddr*>(&address), sizeof address, timeout_s);
  }
  explicit HttpClient(const std::string& unix_path, int timeout_s = 60) {
    socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, unix_path.c_str(), sizeof address.sun_path - 1);
    connect(reinterpret_cast<sockaddr*>(&address), sizeof address, timeout_s);
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  bool connected() const { return connected_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // More of what the server sends; empty at the end or after the time.
  std::string read_some(size_t bytes = 16384) {
    if (!buffer_.empty()) return std::exchange(buffer_, {});
    std::string out(bytes, '\0');
    const ssize_t n = receive(out.data(), out.size());
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }

  HttpReply request(std::string_view method, std::string_view path, std::string_view body = {},
                    std::string_view headers = {}) {
    std::string text =
        std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers);
    if (!body.empty())
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    send(text + "\r\n" + std::string(body));
    return reply(method == "HEAD");
  }

  HttpReply reply(bool head_only = false) {
    HttpReply r;
    std::string head;
    if (!read_until("\r\n\r\n", &head)) return r;
    size_t line = head.find("\r\n");
    const int status = std::atoi(head.c_str() + 9);
    while (line != std::string::npos && line + 2 < head.size()) {
      const size_t begin = line + 2, end = std::min(head.find("\r\n", begin), head.size()),
                   colon = head.find(": ", begin);
      if (colon != std::string::npos && colon < end) {
        std::string name = head.substr(begin, colon - begin);
        for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        r.headers[name] = head.substr(colon + 2, end - colon - 2);
      }
      line = head.find("\r\n", begin);
    }
    if (status == 100) return reply(head_only);
    if (!head_only && status != 204 && status != 304 && !read_body(&r)) return HttpReply();
    r.status = status;
    return r;
  }

 private:
  void connect(const sockaddr* address, socklen_t size, int timeout_s) {
    const timeval timeout = {timeout_s, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    connected_ = ::connect(socket_, address, size) == 0;
  }

  ssize_t receive(char* bytes, size_t size) {
    ssize_t n = 0;
    do {
      n = ::recv(socket_, bytes, size, 0);
    } while (n < 0 && errno == EINTR);
    return n;
  }

  bool fill() {
    char bytes[16384];
    const ssize_t n = receive(bytes, sizeof bytes);
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  bool read_until(std::string_view mark, std::string* out) {
    size_t at;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!fill()) return false;
    }
    *out = buffer_.substr(0, at);
    buffer_.erase(0, at + mark.size());
    return true;
  }

  bool read_bytes(size_t bytes, std::string* out) {
    while (buffer_.size() < bytes) {
      if (!fill()) return false;
    }
    out->append(buffer_, 0, bytes);
    buffer_.erase(0, bytes);
    return true;
  }

  bool read_body(HttpReply* r) {
    if (const auto length = r->headers.find("content-length"); length != r->headers.end()) {
      return read_bytes(static_cast<size_t>(std::atoll(length->second.c_str())), &r->body);
    }
    if (!r->headers.contains("transfer-encoding")) {
      while (fill()) {
      }
      r->body = std::exchange(buffer_, {});
      return true;
    }
    while (true) {
      std::string size, end;
      if (!read_until("\r\n", &size)) return false;
      const size_t bytes = std::strtoull(size.c_str(), nullptr, 16);
      if (bytes > 0 && !read_bytes(bytes, &r->body)) return false;
      if (!read_until("\r\n", &end)) return false;
      if (bytes == 0) return true;
    }
  }

  int socket_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace deepinfer::testing
