// The service's metrics, made once. Names, units and labels: docs/serving.md.
//
//   ServiceMetrics metrics;
//   metrics.finished(finished);                   // from the server's hook
//   metrics.update(backend stats, blocks, tenant);        // before text(), from a worker
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "observe/metrics.h"
#include "serve/response_store.h"
#include "serve/tier_metrics.h"

namespace deepinfer::serve {

struct Finished;
struct ImageOutcome;

class ServiceMetrics {
 public:
  ServiceMetrics();

  void finished(const Finished& f);
  // Names of the tiers of KV below device memory, and of the tenant who shows none.
  void begin_tiers(std::span<const std::string> names, std::string_view tenant) { tiers_.begin(names, tenant); }
  void limit_hit(std::string_view limit);
  void image_read(const ImageOutcome& outcome);
  // `tenant` names the space of a part of the KV cache.
  void update(const engine::EngineStats& stats, int blocks, const std::function<std::string(uint64_t space)>& tenant);
  void set_connections(int open) { connections_.set(open); }
  void set_stored_responses(const ResponseStore::Figures& figures);
  void set_lines_dropped(uint64_t lines) { lines_dropped_.raise_to(static_cast<double>(lines)); }
  std::string text() const { return metrics_.text(); }

 private:
  struct RouteMetrics {
    std::unordered_map<int, observe::Counter*> by_status;
    observe::Histogram* seconds = nullptr;
  };
  void update_process();
  void update_weights(const checkpoint::StoreStats& stats);
  void update_loads(const sched::SchedulerStats& stats);
  void update_drafts(const engine::DraftStats& stats);
  observe::Counter& by_place(std::string_view name, size_t place);

  observe::Metrics metrics_;
  observe::Gauge &connections_, &running_, &waiting_, &kv_usage_, &slots_free_, &stored_, &stored_bytes_, &saved_,
      &saved_bytes_;
  observe::Counter &prompt_tokens_, &cached_tokens_, &generated_tokens_, &lines_dropped_, &unsaved_;
  observe::Counter &steps_, &failed_steps_, &output_tokens_, &prefill_rows_, &decode_rows_, &preemptions_;
  observe::Counter &turns_, &drafted_, &draft_rows_saved_, &draft_seconds_;
  observe::Histogram &first_token_, &output_token_, &prompt_size_, &answer_size_;
  observe::Gauge &cpu_seconds_, &resident_bytes_, &start_time_, &open_files_;
  std::mutex update_mutex_;
  TierMetrics tiers_{metrics_};
  std::mutex mutex_;
  std::unordered_map<std::string_view, RouteMetrics> routes_;  // by the routes' own names, which live as long as they
};

}  // namespace deepinfer::serve
