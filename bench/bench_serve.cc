// The service's own cost, with an engine that costs nothing: requests and events a second of server CPU time, and the
// time between a request's bytes and the engine. ./bench.sh serve
//
// Server and clients are two processes; the server's CPU time is read from its clock, the fake engine's thread included.
// Ceiling: a bare epoll loop that answers fixed bytes without looking at the request, with the same clients.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "bench/bench.h"
#include "engine/stream_state.h"
#include "serve/prepare.h"
#include "serve/server.h"
#include "serve/service.h"

namespace {

using namespace deepinfer;

// What both processes see.
struct Shared {
  std::atomic<int> port{0};
};

constexpr int kPacedTokens = 501;  // of requests whose tokens come one in each step of kStep
constexpr auto kStep = std::chrono::milliseconds(4);

// Gives each stream one token a step, like an engine whose steps take no time, or kStep for paced requests. Requests
// with max_tokens 1 are answered at once.
class FakeBackend final : public serve::Backend {
 public:
  FakeBackend() : thread_([this] { run(); }) {}
  ~FakeBackend() override {
    ending_ = true;
    thread_.join();
  }

  Result<std::unique_ptr<engine::Stream>> submit(engine::Request request) override {
    auto state = std::make_shared<engine::StreamState>(256, 1, mailbox_);
    if (request.max_tokens == 1) {
      push(*state, 300, false);
      push(*state, -1, true);
    } else {
      const std::lock_guard<std::mutex> lock(mutex_);
      new_.push_back({state, request.max_tokens, request.max_tokens == kPacedTokens});
    }
    return std::make_unique<engine::Stream>(std::move(state));
  }
  engine::RequestLimits limits() const override {
    engine::RequestLimits l;
    l.vocab_size = 8192;
    l.context_max = 1 << 20;
    l.has_text = true;
    return l;
  }
  int kv_blocks() const override { return 1; }
  engine::EngineStats stats() override { return {}; }
  Result<int32_t> add_tenant(const std::string&) override { return 1; }

 private:
  struct Live {
    std::shared_ptr<engine::StreamState> state;
    int left = 0;
    bool paced = false;
  };

  static void push(engine::StreamState& s, int32_t token, bool finished) {
    engine::Event& e = s.queue.slot();
    e.token = token;
    e.finished = finished;
    e.reason = engine::FinishReason::kMaxTokens;
    e.usage.prompt_tokens = 10;
    s.queue.push();
  }

  void run() {
    std::vector<Live> live;
    while (!ending_) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        live.insert(live.end(), new_.begin(), new_.end());
        new_.clear();
      }
      bool any = false, paced = false;
      for (Live& l : live) {
        paced |= l.paced;
        if (l.state->queue.free_slots() < 2) continue;
        any = true;
        push(*l.state, 300 + l.left % 500, false);
        if (--l.left == 0) push(*l.state, -1, true);
        l.state->added();
      }
      std::erase_if(live, [](const Live& l) { return l.left == 0 || l.state->cancelled; });
      if (paced) {
        std::this_thread::sleep_for(kStep);
      } else if (!any) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }

  std::shared_ptr<engine::Mailbox> mailbox_ = std::make_shared<engine::Mailbox>();
  std::mutex mutex_;
  std::vector<Live> new_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  return t;
}

[[noreturn]] void run_service(Shared* shared) {
  serve::ServeConfig config;
  config.listen = {"127.0.0.1:0"};
  auto service = serve::Service::create(config, std::make_unique<FakeBackend>(), tokenizer()).value();
  serve::Router router;
  service->add_routes(router);
  auto server = serve::Server::start(config, router, service->hooks()).value();
  const std::string& address = server->addresses()[0];
  shared->port = std::atoi(address.c_str() + address.rfind(':') + 1);
  while (true) ::pause();
}

// The bare loop: one read, one write of fixed bytes.
[[noreturn]] void run_bare(Shared* shared, const std::string& answer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 1024) != 0) ::_exit(1);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const int poller = ::epoll_create1(0);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = listener}};
  ::epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  shared->port = ntohs(address.sin_port);
  char bytes[16384];
  while (true) {
    epoll_event events[128];
    const int n = ::epoll_wait(poller, events, 128, -1);
    for (int i = 0; i < n; ++i) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
        const int one = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        event.data.fd = fd;
        ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
      } else if (::recv(fd, bytes, sizeof bytes, 0) <= 0) {
        ::close(fd);
      } else {
        [[maybe_unused]] const ssize_t sent = ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
    }
  }
}

class Child {
 public:
  explicit Child(const std::function<void(Shared*)>& run) {
    shared_ = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
    pid_ = ::fork();
    if (pid_ == 0) run(shared_);
    while (shared_->port == 0) ::usleep(1000);
    ::clock_getcpuclockid(pid_, &clock_);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int port() const { return shared_->port; }
  double cpu_s() const { return bench::clock_seconds(clock_); }

 private:
  Shared* shared_;
  pid_t pid_ = 0;
  clockid_t clock_ = 0;
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
      for (size_t at = kept > load.mark.size() ? kept - load.mark.size() + 1 : 0; (at = c.tail.find(load.mark, at)) != std::string::npos; ++at) ++count;
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

std::string post(const std::string& body) {
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\n"
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

constexpr const char* kLine = R"({"model":"deepseek-v4.1-flash","messages":[{"role":"user","content":"Hello, who are you?"}])";

void bench_wire(const bench::Options& options) {
  const double seconds = options.quick ? 0.3 : 2;
  const int rounds = options.quick ? 1 : 5;
  const Load health{"GET /health HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", "{\"status\"", "}"};
  const Load chat{post(std::string(kLine) + ",\"max_tokens\":1}"), "\"finish_reason\"", "}"};
  const Load events{post(std::string(kLine) + ",\"max_tokens\":500,\"stream\":true}"), "data: ", "0\r\n\r\n"};
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}";
  const Load paced{post(std::string(kLine) + ",\"max_tokens\":" + std::to_string(kPacedTokens) + ",\"stream\":true}"), "data: ", "0\r\n\r\n", 256};
  std::vector<double> h, c, e, p, bare;
  {
    Child service(run_service), loop([&](Shared* s) { run_bare(s, answer); });
    for (int i = 0; i < rounds; ++i) {
      bare.push_back(per_cpu_second(loop, health, seconds));
      h.push_back(per_cpu_second(service, health, seconds));
      c.push_back(per_cpu_second(service, chat, seconds));
      e.push_back(per_cpu_second(service, events, seconds));
      p.push_back(per_cpu_second(service, paced, seconds));
    }
  }
  const double ceiling = bench::median(bare);
  const char* what = "physical: a bare epoll loop that reads and writes fixed bytes";
  bench::report({.bench = "serve", .name = "health", .value = bench::median(h), .unit = "requests/s per core", .ceiling = ceiling, .ceiling_is = what, .goal = 50'000});
  bench::report({.bench = "serve", .name = "chat_line", .value = bench::median(c), .unit = "requests/s per core", .ceiling = ceiling, .ceiling_is = what, .goal = 20'000});
  // One event of each of 256 streams a step, so a wake-up a step and a write an event.
  bench::report({.bench = "serve", .name = "sse_events_paced", .value = bench::median(p), .unit = "events/s per core", .ceiling = ceiling, .ceiling_is = what, .goal = 50'000});
  bench::report({.bench = "serve", .name = "sse_events", .value = bench::median(e), .unit = "events/s per core", .goal = 50'000});
}

// From the bytes of a body to the engine's request, for a conversation of 32k tokens: every turn adds one message, so
// that the turn before is in the prompt cache; cold: the same in a new scope each time.
void bench_front(const bench::Options& options) {
  serve::ServeConfig config;
  const auto service = serve::Service::create(config, std::make_unique<FakeBackend>(), tokenizer()).value();
  std::string messages;
  const auto add = [&](const char* role, int turn) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "The little train number " + std::to_string(turn * 40 + i) + " went up the hill and saw a fox. ";
    messages += (messages.empty() ? "" : ",") + std::string(R"({"role":")") + role + R"(","content":")" + text + "\"}";
  };
  size_t tokens = 0;
  const auto prepare_s = [&](const std::string& body, const std::string& scope) {
    serve::Prepared p;
    const double begin = bench::thread_cpu_seconds();
    if (serve::prepare(*service, recipe::Protocol::kChat, body, scope, p)) std::abort();
    const double s = bench::thread_cpu_seconds() - begin;
    tokens = p.engine.prompt.size();
    return s;
  };
  const auto body = [&] { return R"({"model":"deepseek-v4.1-flash","max_tokens":100,"messages":[)" + messages + "]}"; };
  add("user", 0);
  int turn = 0;
  while (tokens < 32'000) {
    add("assistant", ++turn);
    add("user", ++turn);
    prepare_s(body(), "warm");
  }
  std::vector<double> warm, cold;
  const std::string before = messages;
  for (int i = 0; i < (options.quick ? 5 : 200); ++i) {
    messages = before + R"(,{"role":"assistant","content":"Yes )" + std::to_string(i) + R"("},{"role":"user","content":"And number )" + std::to_string(i) + "?\"}";
    warm.push_back(1e6 * prepare_s(body(), "warm"));
  }
  for (int i = 0; i < (options.quick ? 2 : 40); ++i) {
    tokenizer().forget_words();
    cold.push_back(1e6 * prepare_s(body(), "cold" + std::to_string(i)));
  }
  std::vector<double> line;
  const std::string one = std::string(kLine) + "}";
  for (int i = 0; i < (options.quick ? 50 : 5000); ++i) line.push_back(1e6 * prepare_s(one, ""));
  const auto report = [](const char* name, double value, double goal) {
    bench::report({.bench = "serve", .name = name, .value = value, .unit = "us", .goal = goal, .higher_is_better = false});
  };
  report("front_line_p50", bench::median(line), 200);
  report("front_32k_cached_p50", bench::median(warm), 200);
  report("front_32k_cached_p99", bench::quantile(warm, 0.99), 1000);
  report("front_32k_cold_p99", bench::quantile(cold, 0.99), 6000);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  ::signal(SIGPIPE, SIG_IGN);
  bench_wire(options);
  bench_front(options);
}
