// The service on the bundled model in this process, on a free port: fixed clock, numbered ids, one seed, the plain
// backend, so that every byte of a response is the same everywhere.
//
//   ServedModel served({.configure = [](ServeConfig& c) { c.keys_file = path; }});
//   HttpClient client(served.port());
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "ops/cpu/cpu_ops.h"
#include "serve/server.h"
#include "serve/service.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

struct ServedOptions {
  std::function<void(serve::ServeConfig&)> configure = {};
  serve::ServeLimits limits = {};
  int context = 2048, sequences = 8;
  int waiting_max = 64;
};

class ServedModel {
 public:
  explicit ServedModel(ServedOptions o = {}) {
    static const auto checkpoint =
        std::make_shared<const checkpoint::Checkpoint>(checkpoint::Checkpoint::open("models/tiny").value());
    static const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
    auto executor = engine::ModelExecutor::create(
        checkpoint, ops::make_plain_ops(1), {.context_max = o.context, .sequences_max = o.sequences, .rows_max = 128});
    engine::EngineOptions options;
    options.end_tokens = {static_cast<int32_t>(checkpoint->config().eos_token_id)};
    options.seed = 1;
    options.waiting_max = o.waiting_max;
    config_.listen = {"127.0.0.1:0"};
    config_.clock = [] { return int64_t{1'700'000'000}; };
    config_.numbered_ids = true;
    config_.limits.replace(o.limits);
    if (o.configure) o.configure(config_);
    auto engine = engine::Engine::create(std::move(executor).value(), tokenizer, options).value();
    engine_ = engine.get();
    service_ = serve::Service::create(config_, serve::make_engine_backend(std::move(engine)), tokenizer).value();
    service_->add_routes(router_);
    auto server = serve::Server::start(config_, router_, service_->hooks());
    if (!server.ok()) ADD_FAILURE() << server.status().message();
    server_ = std::move(server).value();
    service_->set_server(server_.get());
  }
  ~ServedModel() {
    server_->stop();
    service_->set_server(nullptr);
    service_->stop();
    server_.reset();
  }

  int port() const { return std::atoi(address().c_str() + address().rfind(':') + 1); }
  const std::string& address(size_t i = 0) const { return server_->addresses()[i]; }
  serve::Service& service() { return *service_; }
  serve::Server& server() { return *server_; }
  engine::Engine& engine() { return *engine_; }

  // Waits until nothing runs; then the block pool must be whole.
  Status settle() {
    for (int i = 0; i < 1000 && engine_->stats().live > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return engine_->check_accounting();
  }

 private:
  serve::ServeConfig config_;
  serve::Router router_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::Server> server_;
};

}  // namespace deepinfer::testing
