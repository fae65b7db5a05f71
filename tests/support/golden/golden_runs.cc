#include "tests/support/golden/golden_runs.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/support/golden/bench.h"
#include "tests/support/golden/stage_recorder.h"

namespace deepinfer::testing {

using model::Sequence;
using ops::ReferenceMode;
using ops::Role;

GoldenRunner::GoldenRunner(const GoldenFile& golden, std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                           int threads, std::function<void(const GoldenCase&)> report)
    : golden_(golden), checkpoint_(std::move(checkpoint)), threads_(threads), report_(std::move(report)) {}

bool GoldenRunner::ok(const Status& status, const std::string& where) {
  if (!status.ok()) report_({where, false, "ok", status.to_string()});
  return status.ok();
}

void GoldenRunner::check(const std::string& name, std::span<const double> got, Tolerance tolerance) {
  const GoldenTensor* want = golden_.find(name);
  if (want == nullptr) return;
  compared_.insert(name);
  Comparison c = compare(*want, got, tolerance);
  report_({name, c.ok, std::move(c.expected), std::move(c.got)});
}

void GoldenRunner::check(const std::string& name, std::span<const float> got, Tolerance tolerance) {
  check(name, std::vector<double>(got.begin(), got.end()), tolerance);
}

void GoldenRunner::check_true(const std::string& name, bool value, const std::string& expected,
                              const std::string& got) {
  report_({name, value, expected, got});
}

std::vector<int32_t> GoldenRunner::ids(int begin, int end) const {
  const std::vector<double>& all = golden_.find("ids")->values;
  const auto size = static_cast<int>(all.size());
  return {all.begin() + std::clamp(begin, 0, size), all.begin() + std::clamp(end, begin, std::max(begin, size))};
}

bool GoldenRunner::usable() {
  const GoldenTensor* ids = golden_.find("ids");
  const auto n = ids == nullptr ? 0 : static_cast<int>(ids->values.size());
  bool ok = n > golden_.middle + kDecoded && golden_.middle >= kMiddleRows;
  for (const std::vector<int>* list : {&golden_.lengths, &golden_.off_lengths}) {
    for (int length : *list) ok = ok && length >= 1 && length <= n;
  }
  for (int keep : golden_.keep) ok = ok && keep >= 1 && keep <= golden_.middle;
  if (!ok) check_true("ids", false, "prompt tokens for the lengths of the index", fmt::format("{} tokens", n));
  return ok;
}

void GoldenRunner::run_exact() {
  if (!usable()) return;
  compared_.insert("ids");
  rope();
  records();
  Bench b;
  if (!ok(b.open(checkpoint_, ops::make_reference_ops(ReferenceMode::kExact, threads_)), "exact")) return;
  long_run(b, "exact", golden_.lengths, Tolerance::kExact);
  short_run(b, "exact", Tolerance::kExact);
  bounded(b);
  resume(b);
  cached(b);
  image(b);
  rings(b);
}

void GoldenRunner::run_off() {
  if (!usable()) return;
  Bench b;
  if (!ok(b.open(checkpoint_, ops::make_reference_ops(ReferenceMode::kOff, threads_)), "off")) return;
  long_run(b, "off", golden_.off_lengths, Tolerance::kOff);
  short_run(b, "off", Tolerance::kOff);
}

void GoldenRunner::finish() {
  for (const auto& [name, tensor] : golden_.tensors) {
    if (!compared_.contains(name)) report_({name, false, "compared", "no group of this program knows it"});
  }
}

// One long prefill gives the last row of every shorter prompt: rows never see later tokens.
void GoldenRunner::long_run(Bench& b, const std::string& mode, const std::vector<int>& lengths, Tolerance tolerance) {
  Result<Sequence> s = b.sequence(0);
  if (!ok(s.status(), mode)) return;
  const int middle = golden_.middle, last = static_cast<int>(golden_.find("ids")->values.size());
  std::vector<float> logits, part;
  const auto run = [&](int begin, int end) {
    const Status status = s->append(ids(begin, end), end - begin, &part);
    logits.insert(logits.end(), part.begin(), part.end());
    return ok(status, mode + ".last_logits");
  };
  if (!run(0, middle - kMiddleRows)) return;
  StageRecorder recorder(*b.model);
  recorder.start(&s.value(), kMiddleRows);
  const bool ran = run(middle - kMiddleRows, middle);
  recorder.stop();
  if (!ran) return;
  for (const auto& [name, values] : recorder.stages()) check(mode + ".middle." + name, values, tolerance);
  draft(b, s.value(), mode, tolerance);
  if (!run(middle, last)) return;

  const int64_t vocabulary = b.model->config().vocab_size;
  std::vector<float> rows;
  for (int n : lengths) rows.insert(rows.end(), logits.begin() + (n - 1) * vocabulary, logits.begin() + n * vocabulary);
  check(mode + ".last_logits", rows, tolerance);
  if (const GoldenTensor* want = golden_.find(mode + ".last_logits");
      want != nullptr && tolerance == Tolerance::kExact) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto w = want->values.begin() + i * vocabulary;
      const auto g = rows.begin() + i * vocabulary;
      const auto best_want = std::max_element(w, w + vocabulary) - w,
                 best_got = std::max_element(g, g + vocabulary) - g;
      check_true(fmt::format("{}.argmax[{}]", mode, lengths[i]), best_want == best_got, std::to_string(best_want),
                 std::to_string(best_got));
    }
  }
  if (mode == "exact") top(logits);
}

void GoldenRunner::draft(Bench& b, Sequence& s, const std::string& mode, Tolerance tolerance) {
  if (!has(mode + ".draft.logits")) return;
  StageRecorder recorder(*b.model);
  recorder.start(&s, 0);
  const auto drafts = static_cast<int32_t>(b.model->config().dspark_block_size);
  Result<model::Draft> d = s.draft(ids(golden_.middle, golden_.middle + 1)[0], drafts, true);
  recorder.stop();
  if (!ok(d.status(), mode + ".draft")) return;
  for (const auto& [name, values] : recorder.stages()) check(mode + ".draft." + name, values, tolerance);
  check(mode + ".draft.logits", d->logits, tolerance);
  check(mode + ".draft.confidence", d->confidence, tolerance);
  check(mode + ".draft.ids", std::vector<double>(d->tokens.begin(), d->tokens.end()), tolerance);
}

// Largest logits of every position. Which id stands where among equal values is not fixed, so ids are checked by their
// value.
void GoldenRunner::top(std::span<const float> logits) {
  const GoldenTensor *values = golden_.find("exact.top_values"), *top_ids = golden_.find("exact.top_ids");
  if (values == nullptr || top_ids == nullptr) return;
  const int64_t n = values->rows(), k = values->cols(), vocabulary = static_cast<int64_t>(logits.size()) / n;
  std::vector<double> got_values, at_ids;
  std::vector<float> row;
  for (int64_t i = 0; i < n; ++i) {
    const std::span<const float> x = logits.subspan(i * vocabulary, vocabulary);
    row.assign(x.begin(), x.end());
    std::partial_sort(row.begin(), row.begin() + k, row.end(), std::greater<>());
    got_values.insert(got_values.end(), row.begin(), row.begin() + k);
    for (int64_t j = 0; j < k; ++j) at_ids.push_back(x[static_cast<int64_t>(top_ids->values[i * k + j])]);
  }
  check("exact.top_values", got_values, Tolerance::kExact);
  compared_.insert("exact.top_ids");
  Comparison c = compare(*values, at_ids, Tolerance::kExact);
  report_({"exact.top_ids", c.ok, c.expected, c.got});
}

void GoldenRunner::short_run(Bench& b, const std::string& mode, Tolerance tolerance) {
  // The number of rows is that of a stored stage.
  const GoldenTensor* residual = golden_.find(mode + ".short.layer0.residual");
  if (residual == nullptr) return;
  const auto n = static_cast<int>(residual->rows());
  Result<Sequence> s = b.sequence(0);
  if (!ok(s.status(), mode)) return;
  std::vector<float> logits;
  StageRecorder recorder(*b.model);
  recorder.start(&s.value(), n);
  const Status status = s->append(ids(0, n), n, &logits);
  recorder.stop();
  if (!ok(status, mode + ".short")) return;
  for (const auto& [name, values] : recorder.stages()) check(mode + ".short." + name, values, tolerance);
}

}  // namespace deepinfer::testing
