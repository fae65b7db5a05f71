// The service's own cost, with an engine that costs nothing: requests and events a second of server CPU time, and the
// times that the service adds to a request (serve/times.h). ./bench.sh serve
//
// Server and clients are two processes; the server's CPU time is read from its clock, the fake engine's thread
// included. bench_serve --hold serves with that engine until Enter, for wrk and the like. Ceiling: a bare epoll loop
// that answers fixed bytes without looking at the request, with the same clients.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "bench/serve/fake.h"
#include "bench/serve/times.h"

namespace {

using namespace bench_serve;

// The bare loop: one read, one write of fixed bytes; to a request for a stream a head, then an event every kStep.
class BareLoop {
 public:
  BareLoop(Shared* shared, std::string answer) : answer_(std::move(answer)), poller_(::epoll_create1(0)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 1024) != 0)
      ::_exit(1);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    ticks_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    const timespec step = {.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kStep).count()};
    const itimerspec every = {.it_interval = step, .it_value = step};
    ::timerfd_settime(ticks_, 0, &every, nullptr);
    watch(listener_);
    shared->port = ntohs(address.sin_port);
  }

  [[noreturn]] void run() {
    while (true) {
      epoll_event events[128];
      const int n = ::epoll_wait(poller_, events, 128, -1);
      for (int i = 0; i < n; ++i) {
        if (events[i].data.fd == listener_) {
          accept();
        } else if (events[i].data.fd == ticks_) {
          tick();
        } else {
          answer(events[i].data.fd);
        }
      }
    }
  }

 private:
  void watch(int fd) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(poller_, EPOLL_CTL_ADD, fd, &event);
  }

  void accept() {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK);
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(fd);
  }

  void answer(int fd) {
    const ssize_t n = ::recv(fd, bytes_, sizeof bytes_, 0);
    if (n <= 0) {
      streams_.erase(fd);
      ::close(fd);
    } else if (std::string_view(bytes_, static_cast<size_t>(n)).find("\"stream\":true") == std::string_view::npos) {
      [[maybe_unused]] const ssize_t sent = ::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    } else {
      if (streams_.empty()) watch(ticks_);
      streams_[fd] = kPacedTokens;
    }
  }

  void tick() {
    uint64_t times = 0;
    if (::read(ticks_, &times, sizeof times) != sizeof times) return;
    for (auto at = streams_.begin(); at != streams_.end();) {
      const std::string& text = --at->second == 0 ? last_ : event_;
      [[maybe_unused]] const ssize_t sent = ::send(at->first, text.data(), text.size(), MSG_NOSIGNAL);
      at = at->second == 0 ? streams_.erase(at) : std::next(at);
    }
    if (streams_.empty()) ::epoll_ctl(poller_, EPOLL_CTL_DEL, ticks_, nullptr);
  }

  const std::string answer_;
  const std::string event_ = "12e\r\ndata: " + std::string(294, 'x') + "\n\n\r\n", last_ = event_ + "0\r\n\r\n";
  int poller_, listener_ = -1, ticks_ = -1;
  std::map<int, int> streams_;  // socket -> events to come
  char bytes_[16384];
};

// Keeps `connections` busy with one request each for `seconds`; counts occurrences of `mark` in what comes back. A
// response is over when its last bytes are `end`.
struct Load {
  std::string request, mark, end;
  int connections = 64;
};

int64_t drive(int port, const Load& load, double seconds) {
  struct Connection {
    int fd;
    std::string tail;
  };
  const int poller = ::epoll_create1(0);
  std::vector<Connection> all;
  for (int i = 0; i < load.connections; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 0;
    epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    all.push_back({fd, {}});
    [[maybe_unused]] const ssize_t n = ::send(fd, load.request.data(), load.request.size(), MSG_NOSIGNAL);
  }
  int64_t count = 0;
  std::string bytes(1 << 18, '\0');
  const double until = bench::wall_seconds() + seconds;
  while (bench::wall_seconds() < until) {
    epoll_event events[128];
    const int n = ::epoll_wait(poller, events, 128, 100);
    for (int i = 0; i < n; ++i) {
      Connection& c = all[events[i].data.u32];
      const ssize_t got = ::recv(c.fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) return 0;
      const size_t kept = c.tail.size();
      c.tail.append(bytes, 0, static_cast<size_t>(got));
      for (size_t at = kept > load.mark.size() ? kept - load.mark.size() + 1 : 0;
           (at = c.tail.find(load.mark, at)) != std::string::npos; ++at)
        ++count;
      if (c.tail.ends_with(load.end)) {
        c.tail.clear();
        [[maybe_unused]] const ssize_t sent = ::send(c.fd, load.request.data(), load.request.size(), MSG_NOSIGNAL);
      } else if (c.tail.size() > 4096) {
        c.tail.erase(0, c.tail.size() - 1024);
      }
    }
  }
  for (const Connection& c : all) ::close(c.fd);
  ::close(poller);
  return count;
}

double per_cpu_second(const Child& server, const Load& load, double seconds) {
  drive(server.port(), load, 0.2);
  const double before = server.cpu_s();
  const int64_t count = drive(server.port(), load, seconds);
  return static_cast<double>(count) / (server.cpu_s() - before);
}

void bench_wire(const bench::Options& options) {
  const double seconds = options.quick ? 0.3 : 2;
  const int rounds = options.quick ? 1 : 5;
  const Load health{"GET /health HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n",
                    "{\"status\"", "}"};
  const Load chat{post(std::string(kLine) + ",\"max_tokens\":1}"), "\"finish_reason\"", "}"};
  const Load events{post(std::string(kLine) + ",\"max_tokens\":500,\"stream\":true}"), "data: ", "0\r\n\r\n"};
  const std::string answer =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}";
  const Load paced{post(std::string(kLine) + ",\"max_tokens\":" + std::to_string(kPacedTokens) + ",\"stream\":true}"),
                   "data: ", "0\r\n\r\n", 256};
  std::vector<double> h, c, e, p, bare, bare_paced;
  {
    Child service(run_service), loop([&](Shared* s) { BareLoop(s, answer).run(); });
    for (int i = 0; i < rounds; ++i) {
      bare.push_back(per_cpu_second(loop, health, seconds));
      h.push_back(per_cpu_second(service, health, seconds));
      c.push_back(per_cpu_second(service, chat, seconds));
      e.push_back(per_cpu_second(service, events, seconds));
      bare_paced.push_back(per_cpu_second(loop, paced, seconds));
      p.push_back(per_cpu_second(service, paced, seconds));
    }
  }
  const double ceiling = bench::median(bare);
  const char* what = "physical: a bare epoll loop that reads and writes fixed bytes";
  bench::report({.bench = "serve",
                 .name = "health",
                 .value = bench::median(h),
                 .unit = "requests/s per core",
                 .ceiling = ceiling,
                 .ceiling_is = what,
                 .goal = 50'000});
  bench::report({.bench = "serve",
                 .name = "chat_line",
                 .value = bench::median(c),
                 .unit = "requests/s per core",
                 .ceiling = ceiling,
                 .ceiling_is = what,
                 .goal = 20'000});
  // One event of each of 256 streams a step, so a wake-up a step and a write an event.
  bench::report({.bench = "serve",
                 .name = "sse_events_paced",
                 .value = bench::median(p),
                 .unit = "events/s per core",
                 .ceiling = bench::median(bare_paced),
                 .ceiling_is = "physical: a bare loop that writes fixed bytes to as many sockets as often",
                 .goal = 50'000});
  bench::report(
      {.bench = "serve", .name = "sse_events", .value = bench::median(e), .unit = "events/s per core", .goal = 50'000});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  ::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string_view(argv[1]) == "--hold") {
    const Child service(run_service);
    std::printf("http://127.0.0.1:%d\n", service.port());
    std::fflush(stdout);
    std::getchar();
    return 0;
  }
  bench_wire(options);
  bench_times(options);
}
