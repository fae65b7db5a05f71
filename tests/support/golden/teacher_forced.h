// Judges a backend stage by stage: every stage is fed its right input and its output is compared with the right output,
// so that one early difference does not grow (spec/model.md 4.10).
//
//   TeacherForced forced(golden, *model, *oracle);   // both: at least 64 rows, 1 slot, 1 page, keep_scores
//   DI_RETURN_IF_ERROR(forced.run());
//   for (const auto& [stage, s] : forced.stages()) print(stage, s.values, s.different, s.far, s.worst);
//
// Right values are those of group exact.short of a golden file and, for what is not stored (q, the streams inside a
// layer, coefficients), those of `oracle`, a model on the reference backend that runs every stage on the same inputs.
// The stages attention_out and engram_out hold a rounding inside (z, and Engram's key and value), which no input can
// force.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/support/golden/golden_file.h"

namespace deepinfer::testing {

struct StageDifference {
  int64_t values = 0;
  int64_t different = 0;  // not the stored value (codes: another code)
  int64_t far = 0;        // more than two steps of bf16 away; codes: more than 1/3 of the row's largest magnitude
  double worst = 0;       // largest difference over the row's largest magnitude

  void add(const StageDifference& o);
};

class TeacherForced {
 public:
  TeacherForced(const GoldenFile& golden, model::Model& model, model::Model& oracle);
  Status run();
  const std::map<std::string, StageDifference>& stages() const { return stages_; }

 private:
  const GoldenTensor* stored(int layer, const std::string& stage) const;
  static std::vector<double> read(ops::Ops& ops, ops::Role role, int64_t rows, int64_t cols = 0);
  std::vector<double> read(ops::Role role, int64_t rows, int64_t cols = 0) { return read(ops_, role, rows, cols); }
  // To both backends; rows_ rows; shorter rows keep their other columns.
  void put(ops::Role role, std::span<const double> values);
  // Runs a stage on both backends.
  template <class F>
  void each(F stage) {
    stage(ops_);
    stage(oracle_);
  }
  void compare(const std::string& stage, const GoldenTensor* want, std::span<const double> got, bool codes = false);
  // A role that is not stored: compared with the oracle's, which is then given to the backend. wide: values never
  // rounded.
  void compare_with_oracle(const std::string& stage, ops::Role role, bool wide = false);

  Status begin();
  void run_layer(int layer);
  void run_attention(ops::At at);
  void run_global(ops::At at);
  void run_select(ops::At at);
  void run_moe(ops::At at);
  void run_end();
  void store_entries(int source, const GoldenTensor& entries, const GoldenTensor& keys);
  std::vector<double> window_values();

  const GoldenFile& golden_;
  model::Model& model_;
  ops::Ops& ops_;
  ops::Ops& oracle_;
  std::byte* oracle_pages_;
  int rows_ = 0;
  std::map<std::string, StageDifference> stages_;
};

}  // namespace deepinfer::testing
