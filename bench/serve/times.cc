#include "bench/serve/times.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/serve/fake.h"
#include "serve/prepare.h"

namespace bench_serve {
namespace {

constexpr size_t kTokens = 32'000;

// A conversation of so many tokens, then the same with one more short turn each time, so that all but the end is known.
class Conversation {
 public:
  Conversation() {
    for (int turn = 0; turn < 50; ++turn) add(turn % 2 == 0 ? "user" : "assistant", turn);
  }
  std::string body(int i, std::string_view more) const {
    const std::string n = std::to_string(i);
    return R"({"model":"deepseek-v4.1-flash","messages":[)" + messages_ + R"(,{"role":"assistant","content":"Yes )" +
           n + R"("},{"role":"user","content":"And number )" + n + "?\"}]" + std::string(more) + "}";
  }

 private:
  void add(const char* role, int turn) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += "The little train number " + std::to_string(turn * 40 + i) + " went up the hill and saw a fox. ";
    }
    messages_ +=
        (messages_.empty() ? "" : ",") + std::string(R"({"role":")") + role + R"(","content":")" + text + "\"}";
  }
  std::string messages_;
};

void report(const char* name, double value, double goal, double ceiling = 0) {
  bench::Line line{
      .bench = "serve", .name = name, .value = value, .unit = "us", .goal = goal, .higher_is_better = false};
  if (ceiling > 0) {
    line.ceiling = ceiling;
    line.ceiling_is = "a bare loop: two threads that read, hand over and write the same bytes without looking at them";
  }
  bench::report(line);
}

// CPU time of the thread that reads, renders and tokenizes.
void bench_prepare(const bench::Options& options, const Conversation& conversation) {
  serve::ServeConfig config;
  const auto service = serve::Service::create(config, std::make_unique<FakeBackend>(), tokenizer()).value();
  const auto prepare_us = [&](const std::string& body, const std::string& scope, size_t tokens_min) {
    serve::Prepared p;
    const double begin = bench::thread_cpu_seconds();
    if (serve::prepare(*service, recipe::Protocol::kChat, body, scope, p)) std::abort();
    const double us = 1e6 * (bench::thread_cpu_seconds() - begin);
    if (p.engine.prompt.size() < tokens_min) std::abort();
    return us;
  };
  std::vector<double> warm, cold, line;
  prepare_us(conversation.body(0, ""), "warm", kTokens);
  for (int i = 1; i < (options.quick ? 6 : 200); ++i)
    warm.push_back(prepare_us(conversation.body(i, ""), "warm", kTokens));
  for (int i = 0; i < (options.quick ? 2 : 40); ++i) {
    tokenizer().forget_words();
    cold.push_back(prepare_us(conversation.body(i, ""), "cold" + std::to_string(i), kTokens));
  }
  const std::string one = std::string(kLine) + "}";
  for (int i = 0; i < (options.quick ? 50 : 5000); ++i) line.push_back(prepare_us(one, "", 1));
  report("front_line_p50", bench::median(line), 200);
  report("front_32k_cached_p50", bench::median(warm), 200);
  report("front_32k_cached_p99", bench::quantile(warm, 0.99), 1000);
  report("front_32k_cold_p99", bench::quantile(cold, 0.99), 6000);
}

int listen_somewhere(Shared* shared) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 16) != 0) ::_exit(1);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  shared->port = ntohs(address.sin_port);
  return listener;
}

void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) std::abort();
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Bytes of the message whose head is complete in `text`; 0: it is not.
size_t message_bytes(std::string_view text) {
  const size_t head = text.find("\r\n\r\n");
  const size_t length = text.find("Content-Length: ");
  if (head == std::string_view::npos || length > head) return 0;
  return head + 4 + static_cast<size_t>(std::atoll(text.data() + length + 16));
}

void receive_message(int fd, std::string& text) {
  text.clear();
  char bytes[1 << 16];
  while (true) {
    const size_t all = message_bytes(text);
    if (all > 0 && text.size() >= all) return;
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) std::abort();
    text.append(bytes, static_cast<size_t>(n));
  }
}

// What no service can do without: the bytes are read; a thread gives a sign for each token, and another writes 300
// bytes.
[[noreturn]] void run_bare_times(Shared* shared) {
  const int listener = listen_somewhere(shared);
  const int sign = ::eventfd(0, 0);
  const std::string token = "data: " + std::string(292, 'x') + "\n\n";
  std::string request;
  for (int fd; (fd = ::accept(listener, nullptr, nullptr)) >= 0; ::close(fd)) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char first = 0;
    while (::recv(fd, &first, 1, MSG_PEEK) == 1) {
      receive_message(fd, request);
      shared->received_ns = now_ns();
      if (request.find("\"stream\":true") == std::string::npos) {
        send_all(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        continue;
      }
      std::thread engine([&] {
        const uint64_t add = 1;
        for (int i = 0; i < kTimedTokens; ++i) {
          std::this_thread::sleep_for(kStep);
          shared->pushed_ns = now_ns();
          if (::write(sign, &add, sizeof add) != sizeof add) ::_exit(1);
        }
      });
      for (uint64_t done = 0, n = 0; done < kTimedTokens; done += n) {
        if (::read(sign, &n, sizeof n) != sizeof n) ::_exit(1);
        send_all(fd, token);
      }
      engine.join();
      send_all(fd, "0\r\n\r\n");
    }
  }
  ::_exit(0);
}

class Client {
 public:
  explicit Client(const Child& server) : shared_(server.shared()) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Client() { ::close(fd_); }

  // Microseconds from the first byte sent to the engine.
  double arrival_us(const std::string& request) {
    const int64_t begin = now_ns();
    send_all(fd_, request);
    receive_message(fd_, text_);
    if (!text_.starts_with("HTTP/1.1 200")) std::abort();
    return 1e-3 * static_cast<double>(shared_.received_ns - begin);
  }

  // Microseconds from each token to its bytes here, of tokens that came alone.
  std::vector<double> token_us(const std::string& request) {
    std::vector<double> out;
    send_all(fd_, request);
    char bytes[1 << 16];
    for (text_.clear(); !text_.ends_with("\r\n0\r\n\r\n") && !text_.ends_with("\n\n0\r\n\r\n");) {
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      const int64_t now = now_ns();
      if (n <= 0) std::abort();
      const std::string_view piece(bytes, static_cast<size_t>(n));
      text_ += piece;
      const size_t event = piece.find("data: ");
      const bool alone = event != std::string_view::npos && piece.find("data: ", event + 1) == std::string_view::npos;
      if (alone) out.push_back(1e-3 * static_cast<double>(now - shared_.pushed_ns));
    }
    return out;
  }

 private:
  const Shared& shared_;
  int fd_ = -1;
  std::string text_;
};

// Wall time over sockets: a bare loop's and the service's in turns.
void bench_sockets(const bench::Options& options, const Conversation& conversation) {
  const Child bare(run_bare_times), service(run_service);
  Client to_bare(bare), to_service(service);
  std::vector<double> warm, cold, bare_in, out, bare_out;
  to_service.arrival_us(post(conversation.body(0, ",\"max_tokens\":1")));
  for (int i = 1; i < (options.quick ? 6 : 300); ++i) {
    const std::string request = post(conversation.body(i, ",\"max_tokens\":1"));
    bare_in.push_back(to_bare.arrival_us(request));
    warm.push_back(to_service.arrival_us(request));
  }
  const std::string stream =
      post(std::string(kLine) + ",\"stream\":true,\"max_tokens\":" + std::to_string(kTimedTokens) + "}");
  for (int i = 0; i < (options.quick ? 1 : 4); ++i) {
    for (const auto& [client, all] : {std::pair{&to_bare, &bare_out}, {&to_service, &out}}) {
      const std::vector<double> more = client->token_us(stream);
      if (more.size() < kTimedTokens / 2) std::abort();
      all->insert(all->end(), more.begin(), more.end());
    }
  }
  service.shared().forget = true;
  for (int i = 0; i < (options.quick ? 2 : 60); ++i) {
    const std::string user = ",\"max_tokens\":1,\"user\":\"" + std::to_string(i) + "\"";
    cold.push_back(to_service.arrival_us(post(conversation.body(1000 + i, user))));
  }
  const double in_p50 = bench::median(bare_in), in_p99 = bench::quantile(bare_in, 0.99);
  report("arrival_32k_cached_p50", bench::median(warm), 200, in_p50);
  report("arrival_32k_cached_p99", bench::quantile(warm, 0.99), 1000, in_p99);
  report("arrival_32k_cold_p99", bench::quantile(cold, 0.99), 6000, in_p99);
  report("token_out_p50", bench::median(out), 200, bench::median(bare_out));
  report("token_out_p99", bench::quantile(out, 0.99), 1000, bench::quantile(bare_out, 0.99));
}

}  // namespace

void bench_times(const bench::Options& options) {
  const Conversation conversation;
  bench_sockets(options, conversation);
  bench_prepare(options, conversation);
}

}  // namespace bench_serve
