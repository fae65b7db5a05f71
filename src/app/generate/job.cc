#include "app/generate/job.h"

#include <algorithm>
#include <chrono>

#include "base/line_file.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;
using recipe::Json;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

recipe::FinishReason api_reason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kMaxTokens:
      return recipe::FinishReason::kLength;
    case engine::FinishReason::kContextFull:
      return recipe::FinishReason::kContextFull;
    case engine::FinishReason::kKvFull:
      return recipe::FinishReason::kOutOfCapacity;
    default:
      return recipe::FinishReason::kStop;
  }
}

}  // namespace

struct Job::Item {
  int64_t number = 0;
  std::string digest;
  Line line;
  Status error;
  std::unique_ptr<engine::Stream> stream;
  std::unique_ptr<recipe::ApiStream> answer;
  std::vector<recipe::TopLogprob> top;
  std::string unused;  // frames: there are none, the answer is built whole
  bool begun = false, finished = false;
  std::vector<uint8_t> cut;  // answers that a stop text has ended

  std::string to_json() const;
};

std::string Job::Item::to_json() const {
  std::string out = fmt::format(R"({{"line":{},"digest":"{}")", number, digest);
  if (line.batch) out += fmt::format(R"(,"id":"batch_req_{}")", number);
  out += line.batch ? ",\"custom_id\":" : ",\"id\":";
  recipe::append_compact_json(out, line.id);
  if (error.ok()) {
    const std::string body = answer->body();
    if (line.batch) {
      out += fmt::format(R"(,"response":{{"status_code":{},"request_id":"{}","body":{}}},"error":null}})",
                         answer->http_status(), line.answer.id, body);
    } else {
      out += fmt::format(R"(,"response":{},"error":null}})", body);
    }
  } else {
    Json e = Json::object();
    e.set("code", std::string(code_name(error.code())));
    e.set("message", error.message());
    out += ",\"response\":null,\"error\":" + recipe::to_compact_json(e) + "}";
  }
  return out + "\n";
}

Job::Job(engine::Engine& engine, LineReader& reader, const recipe::OutputVocabulary& vocabulary, OutputFile& output,
         JobOptions options)
    : engine_(engine), reader_(reader), vocabulary_(vocabulary), output_(output), options_(options) {}

Job::~Job() {
  for (const std::unique_ptr<Item>& item : items_) {
    if (!item->stream) continue;
    item->stream->cancel();
    for (engine::Event e; item->stream->next(&e);) {  // its notifications use this object
    }
  }
}

Status Job::add(std::string_view text, int64_t number) {
  const std::string digest = line_digest(text);
  DI_ASSIGN_OR_RETURN(const bool done, output_.has(number, digest));
  if (done) {
    ++result_.skipped;
    return Status();
  }
  auto item = std::make_unique<Item>();
  item->number = number;
  item->digest = digest;
  item->error = reader_.read(text, number, &item->line);
  if (item->error.ok()) start(*item);
  item->finished = !item->error.ok();
  items_.push_back(std::move(item));
  return Status();
}

void Job::start(Item& item) {
  Result<std::unique_ptr<recipe::ApiStream>> answer = recipe::ApiStream::create(item.line.answer, &vocabulary_);
  item.error = answer.status();
  if (!answer.ok()) return;
  item.answer = std::move(answer).value();
  item.cut.assign(static_cast<size_t>(item.line.request.n), 0);
  Result<std::unique_ptr<engine::Stream>> stream = engine_.submit(std::move(item.line.request));
  item.error = stream.status();
  if (!stream.ok()) return;
  item.stream = std::move(stream).value();
  item.stream->on_events([this] {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      events_ = true;
    }
    changed_.notify_one();
  });
}

bool Job::read_events(Item& item) {
  bool any = false;
  for (engine::Event e; item.stream->try_next(&e);) {
    any = true;
    if (!item.begun)
      item.answer->begin({.prompt_tokens = e.usage.prompt_tokens, .cached_tokens = e.usage.cached_tokens}, item.unused);
    item.begun = true;
    const auto sample = static_cast<size_t>(e.sample);
    if (e.token >= 0 && item.cut[sample] == 0) {
      item.top.clear();
      for (const engine::TokenLogprob& t : e.top) item.top.push_back({t.token, t.logprob});
      const recipe::TokenLogprob token{.id = e.token, .logprob = e.logprob.logprob, .top = item.top};
      item.answer->push(e.sample, {&token, 1}, item.unused);
      ++result_.output_tokens;
      if (item.answer->stopped(e.sample)) {
        item.cut[sample] = 1;
        item.answer->finish(e.sample, recipe::FinishReason::kStop, item.unused);
        if (std::ranges::find(item.cut, 0) == item.cut.end()) item.stream->cancel();
      }
    }
    if (!e.finished) continue;
    result_.cached_tokens += e.sample == 0 ? e.usage.cached_tokens : 0;
    result_.prompt_tokens += e.sample == 0 ? e.usage.prompt_tokens : 0;
    if (item.cut[sample] != 0) continue;
    if (!e.error.ok()) item.error = e.error;
    item.cut[sample] = 1;
    item.answer->finish(e.sample, api_reason(e.reason), item.unused);
    if (e.reason == engine::FinishReason::kCancelled && item.error.ok())
      item.error = Status(Code::kCancelled, "Cancelled.");
  }
  item.finished = item.stream->done();
  return any;
}

Status Job::write_finished(bool* wrote) {
  for (auto it = items_.begin(); it != items_.end();) {
    Item& item = **it;
    if (!item.finished) {
      if (options_.in_order) return Status();
      ++it;
      continue;
    }
    DI_RETURN_IF_ERROR(output_.append(item.to_json()));
    ++(item.error.ok() ? result_.answered : result_.failed);
    *wrote = true;
    it = items_.erase(it);
  }
  return Status();
}

Result<JobResult> Job::run(const std::string& path, const OnProgress& on_progress, const std::atomic<bool>* stop) {
  DI_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, LineReader::kLineBytesMax));
  std::string text;
  int64_t number = 0;
  bool more = true;
  while (more || !items_.empty()) {
    if (stop->load()) return Status(Code::kCancelled, "Stopped.");
    while (more && static_cast<int>(items_.size()) < options_.in_work_max) {
      more = file.next(&text);
      if (!more) break;
      ++number;
      if (!is_blank(text)) DI_RETURN_IF_ERROR(add(text, number));
    }
    bool any = false;
    for (const std::unique_ptr<Item>& item : items_) {
      if (item->stream && !item->finished) any |= read_events(*item);
    }
    DI_RETURN_IF_ERROR(write_finished(&any));
    on_progress(result_, result_.answered + result_.failed + result_.skipped);
    if (any || items_.empty()) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, 200ms, [this] { return events_; });
    events_ = false;
  }
  DI_RETURN_IF_ERROR(file.status());
  return result_;
}

Result<int64_t> count_lines(const std::string& path) {
  DI_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, LineReader::kLineBytesMax));
  int64_t lines = 0;
  for (std::string text; file.next(&text);) lines += !is_blank(text);
  DI_RETURN_IF_ERROR(file.status());
  return lines;
}

}  // namespace deepinfer::app
