#include "engine/trace/writers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/trace/step_line.h"

namespace deepinfer::engine {
namespace {

enum Thread : int { kLoop = 1, kDevice = 2 };

}  // namespace

Result<TraceFile> TraceFile::open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return make_error(Code::kIo, "Cannot write {}: {}.", path, std::strerror(errno));
  return TraceFile(path, file);
}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, nullptr)), status_(std::move(other.status_)) {}

TraceFile::~TraceFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void TraceFile::write(std::string_view text) {
  if (file_ == nullptr || !status_.ok()) return;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
    status_ = make_error(Code::kIo, "Cannot write {}: {}.", path_, std::strerror(errno));
  }
}

Status TraceFile::close() {
  if (file_ != nullptr && std::fclose(std::exchange(file_, nullptr)) != 0 && status_.ok()) {
    status_ = make_error(Code::kIo, "Cannot write {}: {}.", path_, std::strerror(errno));
  }
  return status_;
}

Result<std::shared_ptr<StepTrace>> StepTrace::open(const std::string& path) {
  DI_ASSIGN_OR_RETURN(TraceFile file, TraceFile::open(path));
  return std::shared_ptr<StepTrace>(new StepTrace(std::move(file)));
}

void StepTrace::write_header(const ExecutorInfo& info) { file_.write(header_line(info)); }

void StepTrace::on_step(const StepRecord& record) {
  line_.clear();
  append_step_line(trace_step(record), &line_);
  file_.write(line_);
}

Result<std::shared_ptr<ChromeTrace>> ChromeTrace::open(const std::string& path) {
  DI_ASSIGN_OR_RETURN(TraceFile file, TraceFile::open(path));
  return std::shared_ptr<ChromeTrace>(new ChromeTrace(std::move(file)));
}

ChromeTrace::ChromeTrace(TraceFile file) : file_(std::move(file)) {
  file_.write(
      R"([{"name":"process_name","ph":"M","pid":1,"args":{"name":"deepinfer engine"}},
{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"loop: plan, stream, commit"}},
{"name":"thread_name","ph":"M","pid":1,"tid":2,"args":{"name":"device: forward, sample"}})");
}

void ChromeTrace::span(std::string_view name, int thread, double begin, double end, std::string_view arguments) {
  write(fmt::format(
      ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.1f},\"dur\":{:.1f},\"args\":{{{}}}}}", name,
      thread, begin * 1e6, std::max(0.0, end - begin) * 1e6, arguments));
}

void ChromeTrace::on_step(const StepRecord& r) {
  const model::StepPlan& p = r.plan.step;
  int prefill = 0, decode = 0;
  for (const model::StepSequence& s : p.sequences) (s.kind == model::RowKind::kPrefill ? prefill : decode) += s.count;
  const std::string what =
      fmt::format("\"step\":{},\"sequences\":{},\"prefill_rows\":{},\"decode_rows\":{},\"copies\":{},\"samples\":{}",
                  p.step, p.sequences.size(), prefill, decode, r.plan.before.size(), r.plan.samples.size());
  span("plan", kLoop, r.at.begin, r.at.planned, what);
  span("forward", kDevice, r.at.started, r.at.ready, what);
  span("sample", kDevice, r.at.ready, r.at.sampled, what);
  span("stream", kLoop, r.at.sampled, r.at.streamed, what);
  write(fmt::format(
      ",\n{{\"name\":\"rows\",\"ph\":\"C\",\"pid\":1,\"ts\":{:.1f},\"args\":{{\"prefill\":{},\"decode\":{}}}}}",
      r.at.started * 1e6, prefill, decode));
}

void ChromeTrace::on_commit(double begin, double end) {
  span("commit", kLoop, begin, end);
  const std::lock_guard<std::mutex> lock(mutex_);
  last_s_ = end;
}

void ChromeTrace::write_tiers(std::span<const kv::TierCount> counts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const kv::TierCount& c : counts) {
    file_.write(fmt::format(
        ",\n{{\"name\":\"KV {} {} {:016x}\",\"ph\":\"C\",\"pid\":1,\"ts\":{:.1f},\"args\":{{\"asked\":{},\"found\":{},"
        "\"written\":{}}}}}",
        c.tier, kv::traffic_name(c.traffic), c.space, last_s_ * 1e6, c.gets, c.hits, c.puts));
  }
}

void ChromeTrace::write(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_.write(text);
}

Status ChromeTrace::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_.write("]\n");
  return file_.close();
}

}  // namespace deepinfer::engine
