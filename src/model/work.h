// Floating-point operations of a step: what its rows have to compute, however a backend does it (spec/model.md 17.2).
//
//   const WorkCounter counter(config);
//   Work done;
//   for (const StepSequence& s : plan.sequences) done += counter.of(s);
//
// A multiply-add counts twice. Rows below decoder_begin run the encoder half and the decoder's first global KV alone;
// norms, softmax, mHC's mixing and the drafter are left out; rows of a replay count in all layers. Constant time a
// sequence and layer.
#pragma once

#include <cstdint>
#include <vector>

#include "model/step.h"

namespace deepinfer::checkpoint {
struct ModelConfig;
}

namespace deepinfer::model {

struct Work {
  double linear = 0;     // layers, experts and head
  double attention = 0;  // queries times keys, and probabilities times values
  double index = 0;      // scores of index keys
  double total() const { return linear + attention + index; }
  Work& operator+=(const Work& other);
};

class WorkCounter {
 public:
  explicit WorkCounter(const checkpoint::ModelConfig& config);
  Work of(const StepSequence& sequence) const;

 private:
  struct Layer {
    double linear = 0;  // a row
    bool decoder = false, attends_entries = false, scores = false;
    int64_t ratio = 0;
    int64_t scored_max = 0;  // keys of a row
  };
  void add_layer(const Layer& layer, int64_t first, int64_t last, int64_t window_begin, Work* out) const;

  std::vector<Layer> layers_;
  double decoder_kv_ = 0;  // of rows that only leave their global KV there
  double head_ = 0;
  double per_key_ = 0, per_scored_ = 0;
  int64_t window_ = 0, selected_max_ = 0;
};

}  // namespace deepinfer::model
