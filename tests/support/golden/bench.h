// A small model with its KV memory, as the golden groups use it (internal to tests/support/golden).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/kv_memory.h"
#include "model/model.h"
#include "model/sequence.h"
#include "tests/support/golden/golden_runs.h"

namespace deepinfer::testing {

struct GoldenRunner::Bench {
  static constexpr int kPages = 48, kSlots = 6;

  Status open(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::unique_ptr<ops::Ops> ops) {
    model::Options o;
    o.limits.rows_max = 256;
    o.limits.outputs_max = 256;
    o.limits.sequences_max = 4;
    o.limits.context_max = 1280;
    o.limits.image_rows_max = 16;
    o.limits.keep_scores = true;
    o.pages = kPages;
    o.slots = kSlots;
    DI_ASSIGN_OR_RETURN(model, model::Model::create(std::move(checkpoint), std::move(ops), o));
    kv = std::make_unique<model::KvAllocator>(kPages, kSlots);
    return {};
  }
  Result<model::Sequence> sequence(int decoder_begin) { return model::Sequence::create(*model, *kv, decoder_begin); }

  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::KvAllocator> kv;
};

}  // namespace deepinfer::testing
