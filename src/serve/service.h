// What all routes share: the model's tokenizer and vocabulary, the engine, limits, clock and ids.
//
//   DI_ASSIGN_OR_RETURN(auto service, Service::create(config, std::move(backend), tokenizer));
//   Router router;
//   service->add_routes(router);
//   DI_ASSIGN_OR_RETURN(auto server, Server::start(config, router, service->hooks()));
//
// Routes stand in serve/routes/*.cc; each file adds its own (serve/routes.h). Thread-safe where not said otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/workers.h"
#include "grammar/compiler.h"
#include "recipe/output_vocabulary.h"
#include "recipe/request.h"
#include "recipe/sealed.h"
#include "recipe/tokenize.h"
#include "serve/backend.h"
#include "serve/config.h"
#include "serve/gate.h"
#include "serve/ids.h"
#include "serve/response_store.h"
#include "serve/router.h"
#include "serve/server.h"
#include "serve/service_metrics.h"
#include "text/tokenizer.h"

namespace deepinfer::serve {

class BatchRunner;
class ImageLoader;

class Service {
 public:
  static Result<std::unique_ptr<Service>> create(ServeConfig config, std::unique_ptr<Backend> backend,
                                                 text::Tokenizer tokenizer);
  ~Service();

  void add_routes(Router& router);
  ServerHooks hooks();
  // Of the server that runs the routes, for /metrics.
  void set_server(const Server* server) { server_ = server; }
  // The metrics page; waits for a step of the engine.
  std::string metrics_text();
  // Ends workers and compiles, which answer to the server's loops: after Server::stop, before its end.
  void stop();

  // The engine's number for a user's part of the cache, if it is known already; else resolve_tenant on a worker.
  std::optional<int32_t> find_tenant(const std::string& scope) const;
  Result<int32_t> resolve_tenant(const std::string& scope);
  // Whose part of the KV cache a space (kv/tier.h) is, for metrics: the name of the API key, of all its users.
  std::string tenant_label(uint64_t space) const;

  int64_t now() const { return config.clock ? config.clock() : wall_clock(); }

  const ServeConfig config;
  const int64_t started;  // seconds since 1970
  const std::unique_ptr<Backend> backend;
  const text::Tokenizer tokenizer;
  const recipe::SpecialIds specials;
  const recipe::OutputVocabulary vocabulary;
  const recipe::PromptEncoder encoder;
  recipe::RequestOptions request_options;
  std::optional<recipe::Sealer> sealer;
  std::unique_ptr<grammar::Compiler> compiler;
  ResponseStore responses;
  IdSource ids;
  ServiceMetrics metrics;
  std::unique_ptr<Gate> gate;
  std::atomic<int> generations{0};
  std::atomic<bool> draining{false};
  Workers workers;
  std::unique_ptr<ImageLoader> images;
  std::unique_ptr<StateStore> state;     // null without a state folder
  std::unique_ptr<BatchRunner> batches;  // as state

 private:
  Service(ServeConfig config, std::unique_ptr<Backend> backend, text::Tokenizer tokenizer, recipe::SpecialIds specials,
          std::unique_ptr<ResponseArchive> archive);
  static int64_t wall_clock();

  std::atomic<const Server*> server_{nullptr};
  mutable std::mutex tenants_mutex_;
  std::unordered_map<std::string, int32_t> tenants_;
  std::unordered_map<uint64_t, std::string> spaces_;  // kv::space_of(scope) -> name of the key
};

}  // namespace deepinfer::serve
