#include "serve/service_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <vector>

#include "serve/host.h"
#include "serve/images/loader.h"

namespace deepinfer::serve {
namespace {

using observe::Labels;

const std::vector<double> kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,    5,     10,   30,    60,   300, 600};
const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                           0.1,   0.15,   0.2,   0.3,  0.5,  1,    2.5};
const std::vector<double> kTokens = {16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

std::string_view api_name(recipe::Protocol protocol) {
  switch (protocol) {
    case recipe::Protocol::kChat: return "chat";
    case recipe::Protocol::kResponses: return "responses";
    case recipe::Protocol::kMessages: return "messages";
    case recipe::Protocol::kCompletions: return "completions";
  }
  return "";
}

constexpr std::string_view kVerified = "deepinfer_draft_rows_total", kAccepted = "deepinfer_draft_accepted_total";

int count_open_files() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count - 3;  // ., .., and the folder itself
}

}  // namespace

ServiceMetrics::ServiceMetrics()
    : connections_(metrics_.gauge("deepinfer_connections", "Open client connections.")),
      running_(metrics_.gauge("deepinfer_requests_running", "Answers that the engine is working on.")),
      waiting_(metrics_.gauge("deepinfer_requests_waiting", "Answers that wait for the engine.")),
      kv_usage_(metrics_.gauge("deepinfer_kv_usage_ratio", "Share of the KV blocks that running answers hold.")),
      slots_free_(metrics_.gauge("deepinfer_sequence_slots_free", "Sequences that could run beside those that do.")),
      stored_(metrics_.gauge("deepinfer_stored_responses", "Responses in memory that can be continued or fetched.")),
      stored_bytes_(metrics_.gauge("deepinfer_stored_responses_bytes", "Memory that stored responses count with.")),
      saved_(metrics_.gauge("deepinfer_saved_responses", "Responses in the state folder.")),
      saved_bytes_(metrics_.gauge("deepinfer_saved_responses_bytes", "Bytes of responses in the state folder.")),
      prompt_tokens_(metrics_.counter("deepinfer_prompt_tokens_total", "Prompt tokens of answered requests.")),
      cached_tokens_(
          metrics_.counter("deepinfer_cached_prompt_tokens_total", "Prompt tokens found in the prefix cache.")),
      generated_tokens_(metrics_.counter("deepinfer_generated_tokens_total", "Tokens generated for requests.")),
      lines_dropped_(
          metrics_.counter("deepinfer_log_lines_dropped_total", "Lines that the access log could not take.")),
      unsaved_(metrics_.counter("deepinfer_unsaved_responses_total",
                                "Responses that could not be written to the state folder.")),
      steps_(metrics_.counter("deepinfer_engine_steps_total", "Steps of the engine.")),
      failed_steps_(metrics_.counter("deepinfer_engine_failed_steps_total", "Steps that failed.")),
      output_tokens_(metrics_.counter("deepinfer_engine_output_tokens_total",
                                      "Tokens of answers, step by step, also of answers that have not ended.")),
      prefill_rows_(metrics_.counter("deepinfer_engine_prefill_rows_total", "Prompt rows run by the model.")),
      decode_rows_(metrics_.counter("deepinfer_engine_decode_rows_total", "Decode rows run by the model.")),
      preemptions_(metrics_.counter("deepinfer_engine_preemptions_total", "Answers put aside for want of KV memory.")),
      turns_(metrics_.counter("deepinfer_engine_answer_steps_total",
                              "Steps of single answers; output tokens over these are the tokens a step.")),
      drafted_(metrics_.counter("deepinfer_draft_tokens_total", "Tokens guessed ahead for verification.")),
      draft_rows_saved_(
          metrics_.counter("deepinfer_draft_rows_saved_total", "Guessed tokens that were not worth a row of a step.")),
      draft_seconds_(metrics_.counter("deepinfer_draft_seconds_total", "Time of the model's drafter.")),
      first_token_(metrics_.histogram("deepinfer_time_to_first_token_seconds",
                                      "From the engine's receipt of a request to its first token.", kSeconds)),
      output_token_(metrics_.histogram("deepinfer_time_per_output_token_seconds",
                                       "Mean time between the tokens of an answer, the first one aside.",
                                       kTokenSeconds)),
      prompt_size_(metrics_.histogram("deepinfer_request_prompt_tokens", "Prompt tokens of a request.", kTokens)),
      answer_size_(
          metrics_.histogram("deepinfer_request_generated_tokens", "Tokens generated for a request.", kTokens)),
      cpu_seconds_(metrics_.gauge("deepinfer_process_cpu_seconds", "CPU time of the process, user and system.")),
      resident_bytes_(metrics_.gauge("process_resident_memory_bytes", "Resident memory of the process.")),
      start_time_(metrics_.gauge("process_start_time_seconds", "Start of the process since 1970.")),
      open_files_(metrics_.gauge("process_open_fds", "Open file descriptors of the process.")) {
  start_time_.set(static_cast<double>(std::time(nullptr)));
  by_place(kVerified, 0);
  by_place(kAccepted, 0);
}

void ServiceMetrics::finished(const Finished& f) {
  const std::string_view name = f.route == nullptr ? "none" : f.route->name;
  const ExchangeFigures& figures = f.exchange.figures;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    RouteMetrics& r = routes_[name];
    if (r.seconds == nullptr) {
      r.seconds =
          &metrics_.histogram("deepinfer_http_request_seconds", "From a request's headers to the end of its response.",
                              kSeconds, {{"route", std::string(name)}});
    }
    observe::Counter*& count = r.by_status[f.status];
    if (count == nullptr) {
      count = &metrics_.counter("deepinfer_http_requests_total", "Responses by route and status.",
                                {{"route", std::string(name)}, {"code", std::to_string(f.status)}});
    }
    count->add();
    r.seconds->record(f.seconds);
  }
  if (f.status >= 400 && f.status != 499) {
    metrics_.counter("deepinfer_errors_total", "Responses with an error, by API and status.",
                     {{"api", std::string(api_name(f.exchange.protocol))}, {"code", std::to_string(f.status)}})
        .add();
  }
  if (figures.prompt_tokens == 0) return;
  prompt_tokens_.add(static_cast<double>(figures.prompt_tokens));
  cached_tokens_.add(static_cast<double>(figures.cached_tokens));
  generated_tokens_.add(static_cast<double>(figures.output_tokens));
  first_token_.record(figures.first_token_s);
  prompt_size_.record(static_cast<double>(figures.prompt_tokens));
  answer_size_.record(static_cast<double>(figures.output_tokens));
  if (figures.output_tokens > 1) {
    output_token_.record(figures.output_s / static_cast<double>(figures.output_tokens - 1));
  }
}

void ServiceMetrics::limit_hit(std::string_view limit) {
  metrics_
      .counter("deepinfer_limits_hit_total", "Requests refused or ended by a limit, by its name.",
               {{"limit", std::string(limit)}})
      .add();
}

void ServiceMetrics::image_read(const ImageOutcome& o) {
  metrics_
      .counter("deepinfer_images_total", "Images of requests, by where they came from and what was wrong with them.",
               {{"source", o.fetched ? "url" : "inline"}, {"result", std::string(o.code)}})
      .add();
  if (!o.limit.empty()) limit_hit(o.limit);
}

void ServiceMetrics::set_stored_responses(const ResponseStore::Figures& f) {
  stored_.set(static_cast<double>(f.count));
  stored_bytes_.set(static_cast<double>(f.bytes));
  saved_.set(static_cast<double>(f.archive.responses));
  saved_bytes_.set(static_cast<double>(f.archive.bytes));
  unsaved_.raise_to(static_cast<double>(f.unsaved));
}

void ServiceMetrics::update(const engine::EngineStats& stats, int blocks,
                            const std::function<std::string(uint64_t space)>& tenant) {
  const std::lock_guard<std::mutex> lock(update_mutex_);
  const sched::SchedulerStats& s = stats.scheduler;
  running_.set(s.running);
  waiting_.set(s.waiting);
  slots_free_.set(s.slots_free);
  if (blocks > 0) kv_usage_.set(1.0 - static_cast<double>(s.blocks_free + s.blocks_evictable) / blocks);
  steps_.raise_to(static_cast<double>(stats.steps));
  failed_steps_.raise_to(static_cast<double>(stats.failed_steps));
  output_tokens_.raise_to(static_cast<double>(stats.output_tokens));
  prefill_rows_.raise_to(static_cast<double>(s.prefill_rows));
  decode_rows_.raise_to(static_cast<double>(s.decode_rows));
  preemptions_.raise_to(static_cast<double>(s.spilled + s.recomputed));
  if (stats.weights) update_weights(*stats.weights);
  update_drafts(stats.drafts);
  tiers_.update(stats.tier_counts, tenant);
  if (!stats.tier_counts.empty()) update_loads(s);
  update_process();
}

// Only where there are lower tiers.
void ServiceMetrics::update_loads(const sched::SchedulerStats& s) {
  const auto raise = [this](const char* name, const char* help, int64_t value) {
    metrics_.counter(name, help).raise_to(static_cast<double>(value));
  };
  raise("deepinfer_kv_loads_total", "Prompts that asked lower tiers for blocks.", s.tier_loads);
  raise("deepinfer_kv_loads_late_total", "Of those, waits that ended before all blocks had come.", s.tier_loads_late);
  raise("deepinfer_kv_loads_beside_total", "Of those, steps that began before their last blocks had come.",
        s.loads_beside);
  raise("deepinfer_kv_loads_thrown_total", "Of these steps, those thrown away since a block did not come.",
        s.loads_thrown);
  raise("deepinfer_kv_loads_declined_total",
        "Prompts that did not ask, since computing takes less time by what both have taken lately.",
        s.tier_loads_declined);
  raise("deepinfer_kv_blocks_declined_total", "Their blocks.", s.tier_blocks_declined);
  raise("deepinfer_kv_snapshots_written_total", "Window snapshots given to lower tiers (--snapshot-ssd).",
        s.snapshots_put);
  raise("deepinfer_kv_snapshots_loaded_total", "Window snapshots that came from there.", s.snapshots_loaded);
}

// Made with the first figures: a service whose weights are all in memory has none of them.
void ServiceMetrics::update_weights(const checkpoint::StoreStats& s) {
  const auto raise = [this](const char* name, const char* help, double value) {
    metrics_.counter(name, help).raise_to(value);
  };
  const auto set = [this](const char* name, const char* help, double value) { metrics_.gauge(name, help).set(value); };
  set("deepinfer_weights_resident_bytes", "Weights that are always in memory.", static_cast<double>(s.resident_bytes));
  set("deepinfer_expert_cache_slots", "Experts that fit into memory.", static_cast<double>(s.experts.slots));
  set("deepinfer_expert_cache_used", "Experts in memory.", static_cast<double>(s.experts.slots_used));
  raise("deepinfer_expert_uses_total", "Experts that steps needed, once a layer and step.",
        static_cast<double>(s.experts.uses));
  raise("deepinfer_expert_hits_total", "Those that were in memory.", static_cast<double>(s.experts.hits));
  raise("deepinfer_expert_reads_total", "Those that were read from the SSD while the step waited or ran others.",
        static_cast<double>(s.experts.reads));
  raise("deepinfer_expert_expected_reads_total", "Experts read before a step needed them.",
        static_cast<double>(s.experts.expected_reads));
  raise("deepinfer_expert_expected_used_total", "Those of them that a step then needed.",
        static_cast<double>(s.experts.expected_used));
  raise("deepinfer_expert_warm_reads_total", "Experts read to fill the cache after the start.",
        static_cast<double>(s.experts.warm_reads));
  raise("deepinfer_table_rows_total",
        "Rows of Engram tables and of the embedding that steps needed from the SSD or its cache.",
        static_cast<double>(s.rows.lookups));
  raise("deepinfer_table_row_hits_total", "Those that were in memory.", static_cast<double>(s.rows.hits));
  raise("deepinfer_weight_read_bytes_total", "Bytes of weights read from the SSD.", static_cast<double>(s.bytes_read));
  raise("deepinfer_weight_wait_seconds_total", "Time that steps stood still for weights.",
        s.experts.wait_s + s.rows.wait_s);
  raise("deepinfer_weight_read_failures_total", "Experts and rows that could not be read.",
        static_cast<double>(s.experts.failures + s.rows.failures));
}

observe::Counter& ServiceMetrics::by_place(std::string_view name, size_t place) {
  return metrics_.counter(
      std::string(name),
      name == kVerified ? "Guessed tokens that a step verified, by place in the guess, those before it being right."
                        : "Guessed tokens that were right, by place in the guess.",
      {{"place", std::to_string(place + 1)}});
}

void ServiceMetrics::update_drafts(const engine::DraftStats& d) {
  turns_.raise_to(static_cast<double>(d.turns));
  drafted_.raise_to(static_cast<double>(d.drafted));
  draft_rows_saved_.raise_to(static_cast<double>(d.saved_rows));
  draft_seconds_.raise_to(d.draft_s);
  for (size_t i = 0; i < d.verified.size() && d.verified[i] > 0; ++i) {
    by_place(kVerified, i).raise_to(static_cast<double>(d.verified[i]));
    by_place(kAccepted, i).raise_to(static_cast<double>(d.accepted[i]));
  }
}

void ServiceMetrics::update_process() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  cpu_seconds_.set(seconds(usage.ru_utime) + seconds(usage.ru_stime));
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    long pages = 0, resident = 0;
    if (std::fscanf(file, "%ld %ld", &pages, &resident) == 2)
      resident_bytes_.set(static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    std::fclose(file);
  }
  open_files_.set(count_open_files());
}

}  // namespace deepinfer::serve
