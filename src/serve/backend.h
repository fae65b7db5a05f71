// What answers requests: an engine in this process, a fake one in benchmarks, later a cluster.
//
//   std::unique_ptr<Backend> backend = make_engine_backend(std::move(engine));
//   DI_ASSIGN_OR_RETURN(auto stream, backend->submit({.prompt = ids}));
//
// All functions may be called from any thread. submit() never blocks; stats() and add_tenant() may wait for a step of
// the engine, so they are not for I/O threads.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace deepinfer::serve {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Result<std::unique_ptr<engine::Stream>> submit(engine::Request request) = 0;
  virtual engine::RequestLimits limits() const = 0;
  virtual int kv_blocks() const = 0;
  virtual engine::EngineStats stats() = 0;
  // A namespace of the prefix cache; the number for engine::Request::tenant.
  virtual Result<int32_t> add_tenant(const std::string& name) = 0;
};

std::unique_ptr<Backend> make_engine_backend(std::unique_ptr<engine::Engine> engine);

}  // namespace deepinfer::serve
