#include "engine/trace/step_line.h"

#include <charconv>

#include "engine/logprobs.h"
#include "kv/record.h"
#include "ops/cpu/sampler.h"
#include "recipe/json.h"

namespace deepinfer::engine {
namespace {

using recipe::Json;
using sched::MemoryOp;

constexpr int64_t kVersion = 1;

template <class T>
Json list_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& v : values) list.as_array().emplace_back(static_cast<int64_t>(v));
  return list;
}

Json row_of(std::initializer_list<int64_t> values) {
  Json row = Json::array();
  for (int64_t v : values) row.as_array().emplace_back(v);
  return row;
}

// Reads members and numbers of a line; the first that does not fit is the error.
class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}
  const Status& status() const { return status_; }

  const Json* list(std::string_view name) {
    const Json* value = root_.find(name);
    if (value == nullptr || !value->is_array()) {
      fail(name);
      return nullptr;
    }
    return value;
  }
  template <class T>
  void integers(std::string_view name, std::vector<T>* out) {
    const Json* value = list(name);
    if (value == nullptr) return;
    for (const Json& item : value->as_array()) out->push_back(static_cast<T>(integer(item, name)));
  }
  template <class T>
  void integer(std::string_view name, T* out) {
    const Json* value = root_.find(name);
    if (value == nullptr) return fail(name);
    *out = static_cast<T>(integer(*value, name));
  }
  void text(std::string_view name, std::string* out) {
    const Json* value = root_.find(name);
    if (value == nullptr || !value->is_string()) return fail(name);
    *out = value->as_string();
  }
  void numbers(std::string_view name, std::vector<double>* out) {
    const Json* value = list(name);
    if (value == nullptr) return;
    for (const Json& item : value->as_array()) {
      if (!item.is_number()) return fail(name);
      out->push_back(item.as_double());
    }
  }
  // Rows of exactly `width` whole numbers.
  template <class Take>
  void rows(std::string_view name, size_t width, const Take& take) {
    const Json* value = list(name);
    if (value == nullptr) return;
    std::vector<int64_t> row;
    for (const Json& item : value->as_array()) {
      if (!item.is_array() || item.as_array().size() != width) return fail(name);
      row.clear();
      for (const Json& cell : item.as_array()) row.push_back(integer(cell, name));
      take(row);
    }
  }
  int64_t integer(const Json& value, std::string_view name) {
    const std::optional<int64_t> n = value.to_int64();
    if (!n) fail(name);
    return n.value_or(0);
  }
  void fail(std::string_view name) {
    if (status_.ok()) status_ = make_error(Code::kInvalidArgument, "\"{}\" is missing or not what a trace has", name);
  }

 private:
  const Json& root_;
  Status status_;
};

Result<Json> parse_line(std::string_view line) {
  DI_ASSIGN_OR_RETURN(Json root, recipe::parse_json(line, {.bytes_max = kStepLineBytesMax, .values_max = 100'000'000}));
  if (!root.is_object()) return Status(Code::kInvalidArgument, "it is no JSON object");
  return root;
}

// Ranges of tokens and blocks lie in their lists; counts are not negative.
bool is_consistent(const model::StepPlan& p) {
  const auto inside = [](int64_t first, int64_t count, size_t size) {
    return first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(size);
  };
  for (const model::StepSequence& s : p.sequences) {
    if (!inside(s.first_token, s.count, p.tokens.size()) || !inside(s.first_block, s.block_count, p.blocks.size())) {
      return false;
    }
    if (s.outputs < 0 || s.outputs > s.count) return false;
  }
  return true;
}

}  // namespace

TracedStep trace_step(const StepRecord& record) {
  TracedStep step{.plan = record.plan, .result = record.result, .at = record.at};
  digest_logits(record.logits, &step);
  return step;
}

void digest_logits(std::span<const float> logits, TracedStep* step) {
  size_t rows = 0;
  for (const model::StepSequence& s : step->plan.step.sequences) rows += static_cast<size_t>(s.outputs);
  step->digests.clear();
  step->likeliest.clear();
  step->logprobs.assign(step->plan.samples.size(), 0);
  if (rows == 0 || logits.size() % rows != 0) return;
  const size_t vocab = logits.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    const std::span<const float> row = logits.subspan(i * vocab, vocab);
    step->digests.push_back(kv::kv_checksum(std::as_bytes(row)));
    step->likeliest.push_back(ops::Sampler::likeliest(row));
  }
  for (size_t i = 0; i < step->plan.samples.size() && i < step->result.samples.size(); ++i) {
    const std::vector<int32_t>& tokens = step->result.samples[i].tokens;
    // Behind drafts the last token is that of the row behind the last one that was accepted.
    const size_t row = static_cast<size_t>(step->plan.samples[i].logits_row) + tokens.size() - 1;
    if (tokens.empty() || row >= rows || tokens.back() < 0 || static_cast<size_t>(tokens.back()) >= vocab) continue;
    step->logprobs[i] = LogSoftmax(logits.subspan(row * vocab, vocab)).of(tokens.back());
  }
}

std::string header_line(const ExecutorInfo& i) {
  Json h = Json::object();
  h.set("deepinfer_step_trace", kVersion);
  h.set("checkpoint", i.checkpoint);
  h.set("numeric_class", i.numeric_class);
  if (!i.placement.empty()) h.set("placement", i.placement);
  h.set("layout", i.layout);
  h.set("kv_dtype", i.kv_dtype);
  h.set("vocab_size", i.vocab_size);
  h.set("context_max", i.context_max);
  h.set("rows_max", i.rows_max);
  h.set("sequences_max", i.sequences_max);
  h.set("outputs_max", i.outputs_max);
  h.set("blocks", i.blocks);
  h.set("slots", i.slots);
  h.set("windows_bytes", static_cast<int64_t>(i.windows_bytes));
  return recipe::to_compact_json(h) + "\n";
}

Result<ExecutorInfo> parse_header_line(std::string_view line) {
  Result<Json> root = parse_line(line);
  if (!root.ok() || root->find("deepinfer_step_trace") == nullptr) {
    return Status(Code::kInvalidArgument, "The file is no step trace: its first line is not the header of one.");
  }
  Reader r(root.value());
  ExecutorInfo i;
  int64_t version = 0;
  r.integer("deepinfer_step_trace", &version);
  r.text("checkpoint", &i.checkpoint);
  r.text("numeric_class", &i.numeric_class);
  r.text("layout", &i.layout);
  r.text("kv_dtype", &i.kv_dtype);
  r.integer("vocab_size", &i.vocab_size);
  r.integer("context_max", &i.context_max);
  r.integer("rows_max", &i.rows_max);
  r.integer("sequences_max", &i.sequences_max);
  r.integer("outputs_max", &i.outputs_max);
  r.integer("blocks", &i.blocks);
  r.integer("slots", &i.slots);
  r.integer("windows_bytes", &i.windows_bytes);
  DI_RETURN_IF_ERROR(r.status());
  if (version != kVersion) {
    return make_error(Code::kUnsupported, "The trace has version {}; this program reads version {}.", version,
                      kVersion);
  }
  return i;
}

void append_step_line(const TracedStep& step, std::string* out) {
  const model::StepPlan& p = step.plan.step;
  Json line = Json::object();
  line.set("step", p.step);
  Json sequences = Json::array(), before = Json::array(), samples = Json::array(), drawn = Json::array();
  for (const model::StepSequence& s : p.sequences) {
    sequences.as_array().push_back(
        row_of({s.id, s.slot, s.first_position, s.count, static_cast<int64_t>(s.kind), s.decoder_begin, s.window_begin,
                s.cached, s.outputs, s.first_token, s.first_block, s.block_count}));
  }
  for (const MemoryOp& op : step.plan.before) {
    before.as_array().push_back(row_of({static_cast<int64_t>(op.kind), op.from, op.to, op.host, op.border, op.offset}));
  }
  for (const sched::SampleRow& s : step.plan.samples) {
    samples.as_array().push_back(row_of({s.id, s.logits_row, s.rows, s.position, s.sample}));
  }
  std::vector<int32_t> stops;
  for (const sched::SampleResult& s : step.result.samples) {
    drawn.as_array().push_back(list_of(s.tokens));
    stops.push_back(s.stop);
  }
  line.set("sequences", std::move(sequences));
  line.set("tokens", list_of(p.tokens));
  line.set("history", list_of(p.history));
  line.set("blocks", list_of(p.blocks));
  if (!p.image_rows.empty()) line.set("image_rows", list_of(p.image_rows));
  line.set("before", std::move(before));
  line.set("samples", std::move(samples));
  line.set("drawn", std::move(drawn));
  line.set("stop", list_of(stops));
  line.set("failed", list_of(step.result.failed));
  Json digests = Json::array(), logprobs = Json::array(), at = Json::array();
  for (uint64_t d : step.digests) digests.as_array().emplace_back(fmt::format("{:016x}", d));
  for (double x : step.logprobs) logprobs.as_array().emplace_back(x);
  for (double x : {step.at.begin, step.at.planned, step.at.started, step.at.ready, step.at.sampled, step.at.streamed}) {
    at.as_array().emplace_back(x);
  }
  line.set("logits", std::move(digests));
  line.set("likeliest", list_of(step.likeliest));
  line.set("logprobs", std::move(logprobs));
  line.set("at", std::move(at));
  recipe::append_compact_json(*out, line);
  *out += '\n';
}

Result<TracedStep> parse_step_line(std::string_view text) {
  DI_ASSIGN_OR_RETURN(const Json root, parse_line(text));
  TracedStep step;
  Reader r(root);
  model::StepPlan& p = step.plan.step;
  r.integer("step", &p.step);
  r.rows("sequences", 12, [&](const std::vector<int64_t>& v) {
    model::StepSequence s;
    s.id = v[0];
    int32_t* const fields[] = {&s.slot,          &s.first_position, &s.count,      nullptr,
                               &s.decoder_begin, &s.window_begin,   &s.cached,     &s.outputs,
                               &s.first_token,   &s.first_block,    &s.block_count};
    for (size_t i = 0; i < std::size(fields); ++i) {
      if (fields[i] != nullptr) *fields[i] = static_cast<int32_t>(v[i + 1]);
    }
    if (v[4] < 0 || v[4] > static_cast<int64_t>(model::RowKind::kVerify)) r.fail("sequences");
    s.kind = static_cast<model::RowKind>(v[4]);
    p.sequences.push_back(s);
  });
  r.integers("tokens", &p.tokens);
  r.integers("history", &p.history);
  r.integers("blocks", &p.blocks);
  if (root.find("image_rows") != nullptr) r.integers("image_rows", &p.image_rows);
  r.rows("before", 6, [&](const std::vector<int64_t>& v) {
    if (v[0] < 0 || v[0] > static_cast<int64_t>(MemoryOp::Kind::kSeal)) r.fail("before");
    step.plan.before.push_back({static_cast<MemoryOp::Kind>(v[0]), static_cast<int32_t>(v[1]),
                                static_cast<int32_t>(v[2]), static_cast<int32_t>(v[3]), static_cast<int32_t>(v[4]),
                                v[5]});
  });
  r.rows("samples", 5, [&](const std::vector<int64_t>& v) {
    step.plan.samples.push_back({.id = v[0],
                                 .logits_row = static_cast<int32_t>(v[1]),
                                 .rows = static_cast<int32_t>(v[2]),
                                 .position = static_cast<int32_t>(v[3]),
                                 .sample = static_cast<uint32_t>(v[4])});
  });
  std::vector<int32_t> stops;
  r.integers("stop", &stops);
  if (const Json* drawn = r.list("drawn")) {
    for (const Json& tokens : drawn->as_array()) {
      sched::SampleResult& s = step.result.samples.emplace_back();
      if (!tokens.is_array()) r.fail("drawn");
      for (size_t i = 0; tokens.is_array() && i < tokens.as_array().size(); ++i) {
        s.tokens.push_back(static_cast<int32_t>(r.integer(tokens.as_array()[i], "drawn")));
      }
      if (step.result.samples.size() <= stops.size()) s.stop = stops[step.result.samples.size() - 1] != 0;
    }
  }
  r.integers("failed", &step.result.failed);
  r.integers("likeliest", &step.likeliest);
  r.numbers("logprobs", &step.logprobs);
  std::vector<double> at;
  r.numbers("at", &at);
  if (at.size() == 6) step.at = {at[0], at[1], at[2], at[3], at[4], at[5]};
  if (const Json* digests = r.list("logits")) {
    for (const Json& d : digests->as_array()) {
      uint64_t value = 0;
      if (!d.is_string() ||
          std::from_chars(d.as_string().data(), d.as_string().data() + d.as_string().size(), value, 16).ec !=
              std::errc()) {
        r.fail("logits");
      }
      step.digests.push_back(value);
    }
  }
  DI_RETURN_IF_ERROR(r.status());
  if (!is_consistent(p))
    return Status(Code::kInvalidArgument, "its sequences name tokens or blocks that it does not hold");
  return step;
}

}  // namespace deepinfer::engine
