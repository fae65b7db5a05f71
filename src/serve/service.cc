#include "serve/service.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include <openssl/rand.h>

#include "base/file.h"
#include "serve/batch_runner.h"
#include "serve/images/loader.h"
#include "serve/routes.h"

namespace deepinfer::serve {
namespace {

constexpr size_t kSealKeysMax = 64;
constexpr std::string_view kNoKey = "(no key)";  // tenant of those who have none

Result<std::vector<recipe::Sealer::Key>> seal_keys(const std::string& path) {
  std::vector<recipe::Sealer::Key> keys;
  if (path.empty()) {
    keys.emplace_back();
    if (::RAND_bytes(keys[0].data(), static_cast<int>(keys[0].size())) == 1) return keys;
    return Status(Code::kInternal, "The system gives no random bytes for the key that seals reasoning.");
  }
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(path, 1 << 16));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    recipe::Sealer::Key& key = keys.emplace_back();
    bool good = line.size() == 2 * key.size() && keys.size() <= kSealKeysMax;
    for (size_t i = 0; good && i < key.size(); ++i) {
      const auto [stop, error] = std::from_chars(line.data() + 2 * i, line.data() + 2 * i + 2, key[i], 16);
      good = error == std::errc() && stop == line.data() + 2 * i + 2;
    }
    if (!good)
      return make_error(Code::kInvalidArgument,
                        "{} must hold up to {} lines of 64 hexadecimal digits (openssl rand -hex 32).", path,
                        kSealKeysMax);
  }
  if (keys.empty()) return make_error(Code::kInvalidArgument, "{} holds no key (openssl rand -hex 32).", path);
  return keys;
}

}  // namespace

Service::Service(ServeConfig c, std::unique_ptr<Backend> b, text::Tokenizer t, recipe::SpecialIds s,
                 std::unique_ptr<ResponseArchive> archive)
    : config(std::move(c)),
      started(now()),
      backend(std::move(b)),
      tokenizer(std::move(t)),
      specials(s),
      vocabulary(tokenizer),
      encoder(tokenizer, specials, {}),
      responses(config.responses, std::move(archive)),
      ids(config.numbered_ids),
      workers(2, 4096) {
  metrics.begin_tiers(config.kv_tiers, kNoKey);
  request_options.models = {{config.model_name, recipe::Version::kV41}};
  for (const std::string& alias : config.model_aliases)
    request_options.models.push_back({alias, recipe::Version::kV41});
  request_options.accept_any_model = config.accept_any_model;
  const ServePolicies& p = config.policies;
  request_options.default_thinking = p.thinking;
  if (p.deepseek_sampling) request_options.sampling_policy = recipe::SamplingPolicy::kDeepSeek;
  if (p.require_reasoning) request_options.reasoning_behavior = recipe::ReasoningBehavior::kReject;
  request_options.allow_forced_tool_with_thinking = p.forced_tool_with_thinking;
  request_options.messages_prefill = p.messages_prefill;
  request_options.drop_billing_line = p.drop_billing_line;
  request_options.limits.body_bytes_max = config.limits->body_bytes_max;
  request_options.limits.n_max = backend->limits().samples_max;
  request_options.limits.image_bytes_max = config.images.bytes_max;
  images = std::make_unique<ImageLoader>(config.images,
                                         [this](const ImageOutcome& outcome) { metrics.image_read(outcome); });
}

Service::~Service() { stop(); }

Result<std::unique_ptr<Service>> Service::create(ServeConfig config, std::unique_ptr<Backend> backend,
                                                 text::Tokenizer tokenizer) {
  DI_ASSIGN_OR_RETURN(const recipe::SpecialIds specials, recipe::SpecialIds::find(tokenizer, recipe::Version::kV41));
  std::unique_ptr<StateStore> state;
  std::unique_ptr<ResponseArchive> archive;
  if (!config.state_dir.empty()) {
    DI_ASSIGN_OR_RETURN(state, StateStore::open(config.state_dir, config.batches));
    if (config.store_responses) {
      DI_ASSIGN_OR_RETURN(archive, ResponseArchive::open(config.state_dir, config.response_archive));
    }
  }
  std::unique_ptr<Service> self(
      new Service(std::move(config), std::move(backend), std::move(tokenizer), specials, std::move(archive)));
  DI_ASSIGN_OR_RETURN(auto vocabulary, grammar::Vocabulary::from_tokenizer(self->tokenizer));
  self->compiler = std::make_unique<grammar::Compiler>(std::move(vocabulary), self->config.grammar);
  DI_ASSIGN_OR_RETURN(self->gate, Gate::create(self->config, self->metrics));
  DI_ASSIGN_OR_RETURN(std::vector<recipe::Sealer::Key> keys, seal_keys(self->config.seal_keys_file));
  DI_ASSIGN_OR_RETURN(self->sealer, recipe::Sealer::create(std::move(keys), "deepseek-v4.1"));
  self->request_options.sealer = &*self->sealer;
  if (state) {
    self->state = std::move(state);
    self->batches = std::make_unique<BatchRunner>(*self, *self->state);
  }
  return self;
}

void Service::add_routes(Router& router) {
  add_health_routes(router, *this);
  add_metrics_routes(router, *this);
  add_model_routes(router, *this);
  add_generation_routes(router, *this);
  add_response_routes(router, *this);
  add_tokenize_routes(router, *this);
  add_file_routes(router, *this);
  add_batch_routes(router, *this);
  add_openapi_routes(router, *this);
  if (config.page) add_page_routes(router, *this);
  if (batches) batches->start(router);
}

ServerHooks Service::hooks() {
  return {.admit = [this](const std::shared_ptr<Exchange>& x, const Route& route) { return gate->admit(x, route); },
          .finished = [this](const Finished& f) { gate->finished(f); },
          .on_limit = [this](std::string_view limit) { metrics.limit_hit(limit); }};
}

void Service::stop() {
  if (batches) batches->stop();
  images->stop();
  workers.stop();
  responses.stop();
  compiler.reset();
}

std::string Service::metrics_text() {
  metrics.update(backend->stats(), backend->kv_blocks(), [this](uint64_t space) { return tenant_label(space); });
  metrics.set_stored_responses(responses.figures());
  metrics.set_lines_dropped(gate->lines_dropped());
  if (const Server* server = server_) metrics.set_connections(server->connections());
  return metrics.text();
}

std::optional<int32_t> Service::find_tenant(const std::string& scope) const {
  if (scope.empty()) return 0;
  const std::lock_guard<std::mutex> lock(tenants_mutex_);
  const auto at = tenants_.find(scope);
  return at == tenants_.end() ? std::nullopt : std::optional(at->second);
}

Result<int32_t> Service::resolve_tenant(const std::string& scope) {
  if (const auto known = find_tenant(scope)) return *known;
  DI_ASSIGN_OR_RETURN(const int32_t added, backend->add_tenant(scope));
  const std::lock_guard<std::mutex> lock(tenants_mutex_);
  spaces_.emplace(kv::space_of(scope), scope.substr(0, scope.find('\n')));
  return tenants_.emplace(scope, added).first->second;
}

std::string Service::tenant_label(uint64_t space) const {
  if (space == kv::space_of("")) return std::string(kNoKey);
  const std::lock_guard<std::mutex> lock(tenants_mutex_);
  const auto at = spaces_.find(space);
  if (at == spaces_.end()) return std::string(TierMetrics::kOther);
  return at->second.empty() ? std::string(kNoKey) : at->second;
}

int64_t Service::wall_clock() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace deepinfer::serve
