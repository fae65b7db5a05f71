#include "serve/backend.h"

namespace deepinfer::serve {
namespace {

class EngineBackend final : public Backend {
 public:
  explicit EngineBackend(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  Result<std::unique_ptr<engine::Stream>> submit(engine::Request request) override {
    return engine_->submit(std::move(request));
  }
  engine::RequestLimits limits() const override { return engine_->limits(); }
  int kv_blocks() const override { return engine_->info().blocks; }
  engine::EngineStats stats() override { return engine_->stats(); }
  Result<int32_t> add_tenant(const std::string& name) override { return engine_->add_tenant(name, 1); }

 private:
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace

std::unique_ptr<Backend> make_engine_backend(std::unique_ptr<engine::Engine> engine) {
  return std::make_unique<EngineBackend>(std::move(engine));
}

}  // namespace deepinfer::serve
