#include "serve/batch_runner.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>

#include "serve/batch_exchange.h"
#include "serve/batch_input.h"
#include "serve/host.h"
#include "serve/loop_thread.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kBatchPriority = -4;  // a sixteenth of an interactive request's share
constexpr std::chrono::seconds kTick{1};

bool is_busy(int status) { return status == 429 || status == 503 || status == 529; }

std::string result_line(std::string_view id, std::string_view custom_id, const Exchange& x, BatchAnswer& answer) {
  // A line break in JSON is white space.
  std::erase_if(answer.body, [](char c) { return c == '\n' || c == '\r'; });
  std::string out = fmt::format("{{\"id\":\"{}\",\"custom_id\":", id);
  recipe::append_json_string(out, custom_id);
  out += fmt::format(",\"response\":{{\"status_code\":{},\"request_id\":\"{}\",\"body\":", answer.status, x.request_id);
  return out.append(answer.body).append("},\"error\":null}");
}

}  // namespace

struct BatchRunner::Impl {
  struct Work {
    BatchLine line;
    std::shared_ptr<BatchExchange> exchange;  // null: it has its result, which is not stored yet
    Clock::time_point begin;
  };
  struct Active {
    StoredBatch batch;
    int64_t cursor = 0;                 // lines up to this one were begun
    bool all_begun = false;
    std::vector<BatchLine> again;       // that the service was too busy for
    std::map<int64_t, Work> in_work;    // by number
  };

  Impl(Service& s, StateStore& st) : service(s), store(st) {}

  void tick();
  void pump();
  Status reload();
  Status validate(StoredBatch& batch);
  bool ends(Active& a);
  Status end(Active& a, const char* status);
  Status expire_lines(Active& a);
  bool begin_line(Active& a);
  void run(Active& a, BatchLine line);
  void done(const std::string& batch, int64_t number, BatchAnswer answer);
  void save(Active& a, Work& work);
  void cancel_work(Active& a);
  int in_work() const;
  Active* find(std::string_view id);

  Service& service;
  StateStore& store;
  const Router* router = nullptr;
  LoopThread loop;
  asio::steady_timer timer{loop.context()};
  std::vector<std::unique_ptr<Active>> active;  // oldest first
  size_t turn = 0;
  bool started = false, stopping = false, changed = true;
  bool paused = false;  // until the next tick: the service is busy, or the store cannot be written
};

int BatchRunner::Impl::in_work() const {
  size_t count = 0;
  for (const auto& a : active) count += a->in_work.size();
  return static_cast<int>(count);
}

BatchRunner::Impl::Active* BatchRunner::Impl::find(std::string_view id) {
  const auto at = std::ranges::find_if(active, [&](const auto& a) { return a->batch.id == id; });
  return at == active.end() ? nullptr : at->get();
}

void BatchRunner::Impl::tick() {
  if (stopping) return;
  paused = false;
  for (const auto& a : active) {
    for (auto& [number, work] : std::map<int64_t, Work>(a->in_work)) {
      if (work.exchange == nullptr) save(*a, a->in_work.at(number));
    }
  }
  pump();
  timer.expires_after(kTick);
  timer.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) tick();
  });
}

Status BatchRunner::Impl::validate(StoredBatch& batch) {
  Result<std::string> content = store.content(batch.input_file, batch.owner);
  if (content.status().code() == Code::kNotFound) {
    return store.fail_batch(batch.id, batch_errors("file_not_found", "The input file was deleted.", "input_file_id"),
                            service.now());
  }
  DI_RETURN_IF_ERROR(content.status());
  std::vector<BatchLine> lines;
  const std::string errors = read_batch_input(content.value(), batch.endpoint, store.limits(), service.ids, lines);
  if (!errors.empty()) return store.fail_batch(batch.id, errors, service.now());
  return store.start_batch(batch.id, lines, service.now());
}

// The store's batches into `active`; new ones are read first.
Status BatchRunner::Impl::reload() {
  DI_ASSIGN_OR_RETURN(std::vector<StoredBatch> batches, store.open_batches());
  for (StoredBatch& b : batches) {
    if (b.status == "validating") {
      DI_RETURN_IF_ERROR(validate(b));
      DI_ASSIGN_OR_RETURN(b, store.batch(b.id, b.owner));
      if (b.status == "failed") continue;
    }
    if (Active* a = find(b.id)) {
      a->batch = std::move(b);
    } else {
      active.push_back(std::make_unique<Active>());
      active.back()->batch = std::move(b);
    }
  }
  changed = false;
  return Status();
}

void BatchRunner::Impl::cancel_work(Active& a) {
  for (auto& [number, work] : a.in_work) {
    if (work.exchange) work.exchange->cancel();
  }
  a.in_work.clear();
  a.again.clear();
}

Status BatchRunner::Impl::expire_lines(Active& a) {
  for (int64_t above = 0;;) {
    DI_ASSIGN_OR_RETURN(std::optional<BatchLine> line, store.next_line(a.batch.id, above));
    if (!line) return Status();
    above = line->number;
    line->state = LineState::kFailed;
    line->result = failed_line(service.ids.next("batch_req_"), line->custom_id, "batch_expired",
                               "The batch's completion window was over before this request was carried out.");
    DI_RETURN_IF_ERROR(store.finish_line(a.batch.id, *line));
  }
}

Status BatchRunner::Impl::end(Active& a, const char* status) {
  return store.end_batch(a.batch, {.status = status,
                                   .output_file = service.ids.next("file-"),
                                   .error_file = service.ids.next("file-"),
                                   .now = service.now()});
}

// True: it has ended, and is no longer active.
bool BatchRunner::Impl::ends(Active& a) {
  const bool cancelled = a.batch.status == "cancelling", expired = service.now() >= a.batch.expires;
  if (cancelled || expired) cancel_work(a);
  if (!cancelled && !expired && !(a.all_begun && a.in_work.empty() && a.again.empty())) return false;
  Status ended = cancelled || !expired ? Status() : expire_lines(a);
  if (ended.ok()) ended = end(a, cancelled ? "cancelled" : expired ? "expired" : "completed");
  if (!ended.ok()) paused = true;
  return ended.ok();
}

// False: this batch has no line to begin.
bool BatchRunner::Impl::begin_line(Active& a) {
  if (a.batch.status == "cancelling") return false;
  if (!a.again.empty()) {
    BatchLine line = std::move(a.again.back());
    a.again.pop_back();
    run(a, std::move(line));
    return true;
  }
  if (a.all_begun) return false;
  Result<std::optional<BatchLine>> next = store.next_line(a.batch.id, a.cursor);
  if (!next.ok()) {
    paused = true;
    return false;
  }
  if (!next.value()) {
    a.all_begun = true;
    return false;
  }
  a.cursor = next.value()->number;
  run(a, std::move(*next.value()));
  return true;
}

void BatchRunner::Impl::run(Active& a, BatchLine line) {
  const int64_t number = line.number;
  auto x = std::make_shared<BatchExchange>(
      loop, a.batch.endpoint, line.body,
      [this, id = a.batch.id, number](BatchAnswer answer) { done(id, number, std::move(answer)); });
  const RouteMatch match = router->find("POST", a.batch.endpoint);
  x->request_id = service.ids.next("req_");
  x->key_name = a.batch.owner;
  x->priority = kBatchPriority;
  a.in_work[number] = {.line = std::move(line), .exchange = x, .begin = Clock::now()};
  if (match.route == nullptr) return respond_error(*x, 404, "This service has no such route.");
  x->protocol = match.route->protocol;
  try {
    match.route->handler(x);
  } catch (const std::exception& e) {
    respond_error(*x, 500, fmt::format("The service failed: {}.", e.what()), "internal_error");
  }
}

void BatchRunner::Impl::done(const std::string& batch, int64_t number, BatchAnswer answer) {
  Active* a = find(batch);
  if (stopping || a == nullptr || !a->in_work.contains(number)) return;
  Work& work = a->in_work.at(number);
  const std::shared_ptr<BatchExchange> x = std::exchange(work.exchange, nullptr);
  const double seconds = std::chrono::duration<double>(Clock::now() - work.begin).count();
  service.gate->finished({.exchange = *x,
                          .route = router->find("POST", a->batch.endpoint).route,
                          .status = answer.status,
                          .body_bytes = answer.body.size(),
                          .seconds = seconds,
                          .complete = answer.complete,
                          .peer = "batch"});
  if (is_busy(answer.status) || !answer.complete) {
    a->again.push_back(std::move(work.line));
    a->in_work.erase(number);
    paused = true;
    return;
  }
  BatchLine& line = work.line;
  const std::string id = service.ids.next("batch_req_");
  line.state = answer.status == 200 ? LineState::kCompleted : LineState::kFailed;
  line.result = result_line(id, line.custom_id, *x, answer);
  const int64_t bytes_max = store.limits().batch_output_bytes_max;
  if (a->batch.result_bytes + static_cast<int64_t>(line.result.size()) > bytes_max) {
    line.state = LineState::kFailed;
    line.result = failed_line(
        id, line.custom_id, "output_too_large",
        fmt::format("The results of the batch have more than batch_output_bytes_max, {} bytes.", bytes_max));
  }
  save(*a, work);
  pump();
}

// Afterwards `work` is gone, unless the store could not be written.
void BatchRunner::Impl::save(Active& a, Work& work) {
  if (!store.finish_line(a.batch.id, work.line).ok()) {
    paused = true;
    return;
  }
  a.batch.result_bytes += static_cast<int64_t>(work.line.result.size());
  a.in_work.erase(work.line.number);
}

void BatchRunner::Impl::pump() {
  if (stopping || paused || service.draining) return;
  if (changed && !reload().ok()) {
    paused = true;
    return;
  }
  const size_t ended = std::erase_if(active, [&](const auto& a) { return ends(*a); });
  size_t idle = 0;
  while (!paused && idle < active.size() && in_work() < store.limits().batch_lines_in_work_max) {
    idle = begin_line(*active[turn++ % active.size()]) ? 0 : idle + 1;
  }
  const bool more =
      std::ranges::any_of(active, [](const auto& a) { return a->all_begun && a->in_work.empty() && a->again.empty(); });
  if (ended > 0 || more) loop.post([this] { pump(); });
}

BatchRunner::BatchRunner(Service& service, StateStore& store) : impl_(std::make_unique<Impl>(service, store)) {}
BatchRunner::~BatchRunner() { stop(); }

void BatchRunner::start(const Router& router) {
  impl_->router = &router;
  impl_->started = true;
  impl_->loop.start();
  impl_->loop.post([impl = impl_.get()] { impl->tick(); });
}

void BatchRunner::wake() {
  impl_->loop.post([impl = impl_.get()] {
    impl->changed = true;
    impl->pump();
  });
}

void BatchRunner::stop() {
  if (!std::exchange(impl_->started, false)) return;
  std::promise<void> stopped;
  impl_->loop.post([&] {
    impl_->stopping = true;
    impl_->timer.cancel();
    for (const auto& a : impl_->active) impl_->cancel_work(*a);
    stopped.set_value();
  });
  stopped.get_future().wait();
  impl_->loop.stop();
}

}  // namespace deepinfer::serve
