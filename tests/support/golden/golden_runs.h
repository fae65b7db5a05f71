// Runs the groups of a golden file (fixtures/model/README.md) against a model on a backend with double sums.
//
//   GoldenRunner runner(golden, checkpoint, threads, [](const GoldenCase& c) { EXPECT_TRUE(c.ok) << c.name << ... });
//   runner.run_exact();
//   runner.run_off();
//   runner.finish();                // tensors of the file that no group compared are failures
//
// Each stored tensor is one case, under its own name; rules that the README states in words are cases of their own.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/sequence.h"
#include "tests/support/golden/golden_file.h"

namespace deepinfer::checkpoint {
class Checkpoint;
}

namespace deepinfer::testing {

struct GoldenCase {
  std::string name;
  bool ok = false;
  std::string expected, got;
};

class GoldenRunner {
 public:
  GoldenRunner(const GoldenFile& golden, std::shared_ptr<const checkpoint::Checkpoint> checkpoint, int threads,
               std::function<void(const GoldenCase&)> report);

  void run_exact();  // all groups of mode exact and the RoPE tables
  void run_off();
  void finish();

 private:
  static constexpr int kMiddleRows = 8;  // rows of group `middle`
  static constexpr int kDecoded = 4;     // decode steps behind a prompt in several groups
  struct Bench;                          // a model with its KV allocator

  // Whether ids, lengths and KEEP fit each other (reported if not).
  bool usable();
  // False after an error (reported as a failed case).
  bool ok(const Status& status, const std::string& where);
  void check(const std::string& name, std::span<const double> got, Tolerance tolerance);
  void check(const std::string& name, std::span<const float> got, Tolerance tolerance);
  void check_true(const std::string& name, bool value, const std::string& expected, const std::string& got);
  bool has(const std::string& name) const { return golden_.find(name) != nullptr; }
  std::vector<int32_t> ids(int begin, int end) const;

  void long_run(Bench& b, const std::string& mode, const std::vector<int>& lengths, Tolerance tolerance);
  void draft(Bench& b, model::Sequence& s, const std::string& mode, Tolerance tolerance);
  void short_run(Bench& b, const std::string& mode, Tolerance tolerance);
  void top(std::span<const float> logits);
  void bounded(Bench& b);
  void resume(Bench& b);
  void cached(Bench& b);
  void image(Bench& b);
  void rings(Bench& b);
  void records();
  void rope();

  const GoldenFile& golden_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  int threads_;
  std::function<void(const GoldenCase&)> report_;
  std::set<std::string> compared_;
};

}  // namespace deepinfer::testing
