// The service on an engine that costs nothing, as a process of its own, for bench_serve.
//
//   Child service(run_service);
//   connect(service.port()); service.cpu_s(); service.shared().pushed_ns;
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench.h"
#include "engine/stream_state.h"
#include "serve/server.h"
#include "serve/service.h"

namespace bench_serve {

using namespace deepinfer;

inline int64_t now_ns() { return static_cast<int64_t>(1e9 * bench::wall_seconds()); }

// What both processes see.
struct Shared {
  std::atomic<int> port{0};
  std::atomic<int64_t> received_ns{0};  // the engine got the last request
  std::atomic<int64_t> pushed_ns{0};    // the last token of a timed request
  std::atomic<bool> forget{false};      // the tokenizer forgets all words after each request
};

inline constexpr int kPacedTokens = 501;  // of requests whose tokens come one in each step of kStep
inline constexpr int kTimedTokens = 502;  // the same, and the time of each token is written down
inline constexpr auto kStep = std::chrono::milliseconds(4);

inline const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  return t;
}

// Gives each stream one token a step, like an engine whose steps take no time, or kStep for paced requests. Requests
// with max_tokens 1 are answered at once.
class FakeBackend final : public serve::Backend {
 public:
  explicit FakeBackend(Shared* shared = nullptr) : shared_(shared), thread_([this] { run(); }) {}
  ~FakeBackend() override {
    ending_ = true;
    thread_.join();
  }

  Result<std::unique_ptr<engine::Stream>> submit(engine::Request request) override {
    if (shared_ != nullptr) {
      shared_->received_ns = now_ns();
      if (shared_->forget) tokenizer().forget_words();
    }
    auto state = std::make_shared<engine::StreamState>(256, 1, mailbox_);
    if (request.max_tokens == 1) {
      push(*state, 300, false);
      push(*state, -1, true);
    } else {
      const std::lock_guard<std::mutex> lock(mutex_);
      new_.push_back(
          {state, request.max_tokens, request.max_tokens >= kPacedTokens, request.max_tokens == kTimedTokens});
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
    bool paced = false, timed = false;
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
        if (l.timed) shared_->pushed_ns = now_ns();
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

  Shared* const shared_;
  std::shared_ptr<engine::Mailbox> mailbox_ = std::make_shared<engine::Mailbox>();
  std::mutex mutex_;
  std::vector<Live> new_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

[[noreturn]] inline void run_service(Shared* shared) {
  serve::ServeConfig config;
  config.listen = {"127.0.0.1:0"};
  auto service = serve::Service::create(config, std::make_unique<FakeBackend>(shared), tokenizer()).value();
  serve::Router router;
  service->add_routes(router);
  auto server = serve::Server::start(config, router, service->hooks()).value();
  const std::string& address = server->addresses()[0];
  shared->port = std::atoi(address.c_str() + address.rfind(':') + 1);
  while (true) ::pause();
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
  Shared& shared() const { return *shared_; }
  double cpu_s() const { return bench::clock_seconds(clock_); }

 private:
  Shared* shared_;
  pid_t pid_ = 0;
  clockid_t clock_ = 0;
};

inline std::string post(const std::string& body) {
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: "
         "application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline constexpr const char* kLine =
    R"({"model":"deepseek-v4.1-flash","messages":[{"role":"user","content":"Hello, who are you?"}])";

}  // namespace bench_serve
