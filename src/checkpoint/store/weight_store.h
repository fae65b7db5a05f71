// The weights of a checkpoint within a budget of memory: what every token needs is resident, routed experts and table
// rows come from the SSD as steps need them. Nothing of it stays in the page cache, and nothing is read through the
// checkpoint's mapping any more, so that memory stays at the budget whatever the checkpoint's size.
//
//   DI_ASSIGN_OR_RETURN(std::shared_ptr<WeightStore> store, WeightStore::open(checkpoint, {.ram_bytes = 2ull << 30}));
//   const std::byte* data = store->find("layers.0.attn.wkv.weight");       // resident, else nullptr
//   store->experts().begin(layer, ids);                                    // checkpoint/store/expert_cache.h
//   if (store->engram_table(0) >= 0) store->rows().request(..);            // checkpoint/store/row_reader.h
//
// Layers of the expert cache: backbone 0..n-1, then the drafter's stages.
// Errors: those of plan_store and, at any later time, kIo and kDataLoss of reads, which take_error() gives once a step;
// the answers that needed them must not be used. A file that is cut or cannot be read never ends the program.
// One thread uses a store, stats() may be called by any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/huge_memory.h"
#include "base/status.h"
#include "checkpoint/store/direct_reader.h"
#include "checkpoint/store/expert_cache.h"
#include "checkpoint/store/row_reader.h"
#include "checkpoint/store/store_plan.h"
#include "checkpoint/store/store_stats.h"

namespace deepinfer::checkpoint {

class Checkpoint;
struct TensorSpec;

class WeightStore {
 public:
  struct Options {
    uint64_t ram_bytes = 0;  // for weights
    int depth = 64;          // reads in flight
    bool warm_up = true;     // fill the cache from the start on
    bool expect = true;      // read ahead what the step before chose
    DirectReader::MakeQueue make_queue;
  };
  static Result<std::shared_ptr<WeightStore>> open(const Checkpoint& checkpoint, const Options& options);

  const StorePlan& plan() const { return plan_; }
  const std::byte* find(std::string_view name) const;
  ExpertCache& experts() { return *experts_; }
  RowReader& rows() { return *rows_; }
  // Tables of rows(); -1: resident.
  int embedding_table() const { return embedding_table_; }
  int engram_table(size_t engram) const { return engram_tables_[engram]; }
  Status take_error();
  StoreStats stats() const;

 private:
  WeightStore() = default;
  Status place_experts(const Checkpoint& checkpoint, const Options& options);
  Status place_rows(const Checkpoint& checkpoint);
  Status load_resident(const Checkpoint& checkpoint);
  RowReader::Table row_table(const Checkpoint& checkpoint, const TensorSpec& spec) const;
  bool resident(const TensorSpec& spec) const;

  StorePlan plan_;
  std::vector<int> files_;  // numbers of the reader, by file of the checkpoint
  HugeMemory memory_;
  std::unordered_map<std::string, const std::byte*> resident_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  int embedding_table_ = -1;
  std::vector<int> engram_tables_;
  double load_s_ = 0;
  std::unique_ptr<ExpertCache> experts_;
  std::unique_ptr<RowReader> rows_;
  std::unique_ptr<DirectReader> reader_;  // last: it ends before what it reads into
};

}  // namespace deepinfer::checkpoint
