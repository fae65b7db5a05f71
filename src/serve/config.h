// What the HTTP service is told: where it listens, whom it serves, and every limit with its name.
//
//   ServeConfig config;
//   config.listen = {"127.0.0.1:8000", "unix:/run/deepinfer.sock"};
//   config.limits.replace({.body_bytes_max = 8 << 20});         // also while the service runs
//
// Plain data; Server::start (serve/server.h) checks it. Times are in seconds, sizes in bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "serve/images/options.h"
#include "serve/response_store.h"
#include "serve/state_store.h"

namespace deepinfer::serve {

struct ServeLimits {
  size_t header_bytes_max = 32 << 10;          // request line and headers; more gives 431
  size_t body_bytes_max = 48 << 20;            // more gives 413
  size_t bodies_bytes_max = size_t{1} << 30;   // of all requests that are being read; more gives 503
  int connections_max = 10'000;                // open at once; further ones wait to be accepted
  int requests_max = 4'096;                    // generations in work or waiting; more gives 503
  size_t unsent_bytes_max = 256 << 10;         // of one stream before its answer is paused
  double header_timeout_s = 10;                // from the first byte of a request to the end of its headers
  double body_timeout_s = 20;                  // for a body, beside the time that its bytes take at body_rate_min
  double body_rate_min = 16 << 10;             // bytes a second
  double idle_timeout_s = 75;                  // between requests of a connection
  double write_timeout_s = 60;                 // without the client taking a byte
  double request_timeout_s = 600;              // of a generation, queueing included; 0: none
  double keep_alive_s = 10;                    // between signs of life while a response has nothing to send
  double drain_timeout_s = 30;                 // for responses in work when the service ends
};

// The limits in force; copies share them. Reading costs one atomic load; what was replaced lives on for its readers.
class LiveLimits {
 public:
  LiveLimits() : state_(std::make_shared<State>()) { replace({}); }
  const ServeLimits& operator*() const { return *state_->current.load(std::memory_order_acquire); }
  const ServeLimits* operator->() const { return &**this; }
  void replace(const ServeLimits& limits) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->all.push_back(std::make_unique<const ServeLimits>(limits));
    state_->current.store(state_->all.back().get(), std::memory_order_release);
  }

 private:
  struct State {
    std::mutex mutex;
    std::vector<std::unique_ptr<const ServeLimits>> all;
    std::atomic<const ServeLimits*> current{nullptr};
  };
  std::shared_ptr<State> state_;
};

struct TlsConfig {
  std::string certificate;  // PEM file with the chain; empty: no TLS
  std::string key;          // PEM file
};

// How requests are read where the APIs leave room (spec/protocol.md); the defaults serve clients of all three.
struct ServePolicies {
  bool thinking = true;                    // where a request says nothing
  bool deepseek_sampling = false;          // the sampling table of DeepSeek's service instead of what requests ask for
  bool forced_tool_with_thinking = false;  // accept a required tool choice while thinking
  bool separate_usage = false;             // stream_options.include_usage: on a chunk of its own, as OpenAI does
  bool messages_prefill = false;           // continue a trailing assistant message in Messages
  bool drop_billing_line = true;           // the volatile first line of coding agents' system prompts
  bool require_reasoning = false;          // 400 where history lacks the reasoning of a turn with tool calls
};

struct ServeConfig {
  std::vector<std::string> listen = {"127.0.0.1:8000"};  // HOST:PORT, [V6]:PORT (port 0: any free one), unix:PATH
  TlsConfig tls;                                         // of all TCP listeners
  int io_threads = 1;
  bool bundled_model = false;                      // the small one beside the program; the page then says what it is
  std::string model_name = "deepseek-v4.1-flash";  // as /v1/models lists it
  std::vector<std::string> model_aliases;          // further names that requests may use
  bool accept_any_model = false;                   // every name is taken for the model
  std::string keys_file;                           // API keys (serve/keys.h); empty: none are needed
  std::vector<std::string> cors_origins;           // "*" for all; empty: no CORS headers
  bool store_responses = true;                     // previous_response_id and GET /v1/responses
  ResponseStore::Options responses;
  ResponseArchive::Options response_archive;             // with state_dir
  // folder of files, batches and stored responses; empty: no files and batches
  std::string state_dir;
  BatchLimits batches;
  ImageOptions images;                                   // what may be read for a request, and from where
  bool page = true;                                // the chat page at /
  grammar::Compiler::Options grammar;              // compiles of schemas, patterns and grammars
  std::string access_log;                          // file, "-" for standard error, empty for none
  LiveLimits limits;
  ServePolicies policies;
  // keys of encrypted reasoning, 64 hexadecimal digits a line, the first seals; empty: random
  std::string seal_keys_file;

  std::vector<std::string> kv_tiers;  // names of the tiers below device memory, for metrics

  // For tests: a fixed clock (seconds since 1970) and numbered instead of random ids.
  std::function<int64_t()> clock;
  bool numbered_ids = false;
};

}  // namespace deepinfer::serve
