// The weights of an opened checkpoint, as views in the order that ops/ wants (spec/model.md 13.1 - 13.3).
//
//   ops::ModelWeights w = collect_weights(checkpoint);     // valid as long as the checkpoint
//
// The checkpoint is complete (Checkpoint::open checked it), so this cannot fail.
#pragma once

#include "ops/weights.h"

namespace deepinfer::checkpoint {
class Checkpoint;
}

namespace deepinfer::model {

ops::ModelWeights collect_weights(const checkpoint::Checkpoint& checkpoint);

}  // namespace deepinfer::model
