// Rows of tables that stay on the SSD: Engram tables and the token embedding.
//
//   reader.request(table, ids);                          // reads begin; all of a step at once
//   const std::byte* rows = reader.wait(table);          // row i of the request at rows + i * reader.stride(table)
//   DI_RETURN_IF_ERROR(reader.take_error());             // rows that could not be read are zeros
//
// A row is its codes and, behind them, its scales. What was read stays in a small cache (4 rows a set, least recently
// used leaves). Equal ids of a request are read once. One request a table at a time; the memory that wait() gives is
// valid until the table's next request. One thread calls; stats() any. The DirectReader has to be destroyed first.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/io_queue.h"
#include "base/status.h"
#include "checkpoint/store/direct_reader.h"
#include "checkpoint/store/store_stats.h"
#include "numeric/dtype.h"

namespace deepinfer::checkpoint {

class RowReader {
 public:
  struct Part {  // row r: `bytes` bytes at offset + r * bytes
    int file = 0;
    uint64_t offset = 0, bytes = 0;
    numeric::DType dtype = numeric::DType::kU8;  // of what is checked for NaN
  };
  struct Table {
    Part codes, scales;  // scales.bytes 0: none
    int64_t rows = 0;
    uint64_t cache_bytes = 0;
  };
  static Result<std::unique_ptr<RowReader>> create(std::vector<Table> tables, DirectReader* reader);

  void request(int table, std::span<const int32_t> rows);
  const std::byte* wait(int table);
  size_t stride(int table) const { return tables_[static_cast<size_t>(table)].stride; }
  Status take_error();
  RowStats stats() const;

 private:
  static constexpr int kWays = 4;
  static constexpr int32_t kNone = -1;

  struct State {
    Table table;
    size_t stride = 0;
    // The cache.
    int64_t sets = 0;
    std::vector<int32_t> tags;    // [sets, kWays], most recently used first
    std::vector<uint8_t> places;  // [sets, kWays] which of the set's rows a tag means
    std::vector<std::byte> data;  // [sets, kWays, stride]
    // The request in work.
    std::vector<std::byte> rows;      // [n, stride]
    std::vector<int32_t> ids;         // [n]
    std::vector<int32_t> first;       // [n] the place of an equal id before it, or itself
    std::vector<uint8_t> parts_left;  // [n] of rows being read
    std::vector<int32_t> queue;       // places to read
    size_t queue_at = 0;
    int64_t pending = 0;
  };
  struct Frame {  // a part on its way
    int table = 0;
    int32_t place = 0;
    uint32_t skip = 0;  // of its first page
    bool scale = false;
  };
  explicit RowReader(DirectReader* reader) : reader_(reader) {}

  static void on_piece(void* self, uint64_t owner, const Status& status);
  void piece_done(size_t frame, const Status& status);
  void issue(int table);
  void read_part(int table, int32_t place, bool scale);
  bool cached(State& s, int32_t id, std::byte* out);
  void keep(State& s, int32_t id, const std::byte* row);
  void share(State& s);

  DirectReader* const reader_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::vector<State> tables_;
  AlignedBuffer memory_;
  size_t frame_bytes_ = 0;
  std::vector<Frame> frames_;
  std::vector<uint32_t> free_;
  std::vector<std::pair<int32_t, int32_t>> order_;  // ids of a request with their places
  Status error_;
  RowStats stats_;
};

}  // namespace deepinfer::checkpoint
