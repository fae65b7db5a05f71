// The weights of an opened checkpoint, as views in the order that ops/ wants (spec/model.md 13.1 - 13.3).
//
//   ops::ModelWeights w = collect_weights(checkpoint, store);     // valid as long as checkpoint and store
//
// With a store (null: none) resident tensors are the store's copies and everything else has no address.
//
// The checkpoint is complete (Checkpoint::open checked it), so this cannot fail.
#pragma once

#include <memory>

#include "ops/weights.h"

namespace deepinfer::checkpoint {
class Checkpoint;
class WeightStore;
}

namespace deepinfer::model {

ops::ModelWeights collect_weights(const checkpoint::Checkpoint& checkpoint,
                                  std::shared_ptr<checkpoint::WeightStore> store);

}  // namespace deepinfer::model
