// Collects the stages of a run under the names of the golden files (fixtures/model/README.md).
//
//   StageRecorder recorder(*model);
//   recorder.start(&sequence, 1);                   // observes the model until stop(); the step gives 1 row of logits
//   sequence.append(...);
//   recorder.stop();
//   recorder.stages().at("layer0.residual")         // values of the step's rows, flattened
//
// One sequence a step; rows = all rows of the step's row set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/sequence.h"

namespace deepinfer::testing {

class StageRecorder {
 public:
  explicit StageRecorder(model::Model& model) : model_(model) {}
  void start(const model::Sequence* sequence, int outputs);
  void stop();
  const std::map<std::string, std::vector<double>>& stages() const { return stages_; }

 private:
  void note(int layer, model::Stage stage, ops::Rows rows);
  void projected(const std::string& name, int layer, int64_t n);
  void global(const std::string& name, int layer);
  void selected(const std::string& name, int layer, int64_t n);
  void routed(const std::string& name, int layer, int64_t n);
  // The first `cols` of each of n rows (all columns if 0).
  std::vector<double> read(ops::Role role, int64_t n, int64_t cols = 0);
  std::vector<double> entry_values(int source, int64_t entry, bool key);

  model::Model& model_;
  const model::Sequence* sequence_ = nullptr;
  int outputs_ = 0;
  std::map<std::string, std::vector<double>> stages_;
};

}  // namespace deepinfer::testing
