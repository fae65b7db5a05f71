// Routed experts in memory: as many as fit, the others read from the SSD when a step needs them.
//
//   cache.begin(layer, ids);                             // all that are missing are being read from here on
//   for (auto some = cache.next(); !some.empty(); some = cache.next())
//     for (const Arrived& a : some) run(a.expert, a.at); // those in memory first; `at` is valid until the next call
//   DI_RETURN_IF_ERROR(cache.take_error());              // an expert that could not be read came with failed = true
//
// Which expert leaves. Each has a count of its uses in which a use `half_life` steps ago counts one half (LRFU: H long
// is frequency, H short recency); counts outlive the expert's stay. What a step needs is always read, into the slot of
// the lowest count; what is only expected is read if its count is above that of the one it would displace.
// What is expected: what expect() names for a layer ahead (a backend may guess by the layer's router), and, when a
// layer begins, the choices of the step before for the layers behind it; both while the disk has nothing better to do,
// the latter last.
// A guess that turns out wrong (by a later expect() or when its layer begins) is read no further. Either way of
// guessing stops for a while where fewer than a quarter of its reads were used. A step may need more experts than there
// are slots: they are read as slots become free.
//
// One thread calls begin(), next(), waits(), outstanding(), expect(), take_error(); stats() any. begin() ends what
// next() has not finished. The reader has to be destroyed first.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/huge_memory.h"
#include "base/status.h"
#include "checkpoint/store/direct_reader.h"
#include "checkpoint/store/store_stats.h"

namespace deepinfer::checkpoint {

// Addresses of an expert's parts, in the order of kParts.
struct ExpertAddress {
  static constexpr int kParts = 6;  // w1, its scales, w3, its scales, w2, its scales
  std::array<const std::byte*, kParts> part = {};
};

class ExpertCache {
 public:
  struct Place {  // of a part on disk
    int file = 0;
    uint64_t offset = 0, bytes = 0;
  };
  using Places = std::array<Place, ExpertAddress::kParts>;
  struct Options {
    int64_t slots = 0;
    uint64_t slot_bytes = 0;
    double half_life = 128;  // steps
    bool expect = true;      // read ahead what is expected
  };
  struct Arrived {
    int32_t expert = 0;
    bool failed = false;
    ExpertAddress at;
  };

  // places[layer][expert]; at least one.
  static Result<std::unique_ptr<ExpertCache>> create(const Options& options, std::vector<std::vector<Places>> places,
                                                     DirectReader* reader);
  ~ExpertCache();

  void begin(int layer, std::span<const int32_t> experts);
  std::span<const Arrived> next();
  // Experts that `layer` will probably need, the surest first; it begins within the next few begin(). Replaces what was
  // said of the layer before. The first `sure` are read as soon as nothing needed is left to read, the others when
  // nothing else is.
  void expect(int layer, std::span<const int32_t> experts, size_t sure = SIZE_MAX);
  bool waits() const;       // next() would
  int outstanding() const;  // experts  // that next() has not given out yet
  Status take_error();
  // Fills free slots in the order of the layers, first experts first, as wanted reads. Does not wait.
  void warm_up();
  // Until nothing is being read (tests, benchmarks).
  void settle();
  ExpertStats stats() const;

 private:
  enum class State : uint8_t { kFree, kReading, kReady };
  enum class Guess : uint8_t { kNone, kRouter, kStepBefore };
  struct Judge {  // of one way to guess
    int64_t reads = 0, used = 0;
    int64_t judged_reads = 0, judged_used = 0;  // when it was last judged; `reads` may fall below: reads taken back
    uint64_t pause_until = 0;                    // in layers run
  };
  struct Slot {
    int32_t expert = -1;  // number over all layers
    State state = State::kFree;
    bool needed = false;         // by the layer in work
    Guess guess = Guess::kNone;  // why it was read ahead; none once it was used
    uint64_t guessed_at = 0;     // in layers run
    bool warm = false;           // read to fill the cache
    bool failed = false;
    bool dropped = false;  // a wrong guess: free once its pieces in flight have ended
    int32_t all_pieces = 0, pieces = 0;  // in all, and still being read
  };
  ExpertCache(const Options& options, DirectReader* reader) : options_(options), reader_(reader) {}

  static void on_piece(void* self, uint64_t owner, const Status& status);
  void piece_done(int32_t slot, const Status& status);
  int32_t take_slot(double count);
  void release_given();
  void free_slot(int32_t slot);
  void end_guess(int32_t slot);
  void drop_guesses(int layer, std::span<const int32_t> but);
  void check_scales(int32_t slot);
  void warm_some();
  void read(int32_t slot, int32_t expert, DirectReader::Class priority);
  void issue();
  void expect_next();
  void read_ahead(int layer, std::span<const int32_t> experts, size_t sure, Guess guess);
  bool guessing(Guess guess);
  bool kept_for_guess(const Slot& s) const;
  void touch(int32_t expert);
  double now() const { return static_cast<double>(stats_.layers_run) / static_cast<double>(begin_.size() - 1); }
  ExpertAddress address(int32_t slot) const;
  std::byte* memory(int32_t slot) const {
    return memory_.as<std::byte>() + static_cast<size_t>(slot) * options_.slot_bytes;
  }

  const Options options_;
  DirectReader* const reader_;
  HugeMemory memory_;
  std::vector<Places> places_;  // of all experts
  std::vector<int32_t> begin_;  // first number of each layer, and the end

  mutable std::mutex mutex_;
  std::condition_variable arrived_changed_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;     // slots
  std::vector<int32_t> slot_of_;  // a number each; -1: not in memory
  std::vector<double> count_;     // log2 of the count, plus now / half life when it was formed
  std::vector<int32_t> missing_;  // needed, without a slot yet; the last comes first
  std::vector<int32_t> ready_;    // slots that next() gives out
  std::vector<int32_t> given_;    // and has given out
  std::vector<Arrived> out_;
  int layer_ = 0;                           // in work
  int working_ = 0;                         // slots that it has: being read, ready or given out
  int outstanding_ = 0;                     // needed, not given out yet
  int reading_ = 0;                         // slots
  std::vector<std::vector<int32_t>> last_;  // choices of each layer in the step before
  std::vector<DirectReader::Piece> pieces_;
  int64_t warm_at_ = 0;
  int warm_reading_ = 0;
  bool warming_ = false;
  std::vector<int32_t> guesses_;  // slots that were read ahead and not used yet
  std::array<Judge, 3> judges_;  // by Guess
  Status error_, failure_;       // of what was given out; the last of any read
  uint64_t expert_bytes_ = 0;
  ExpertStats stats_;
};

}  // namespace deepinfer::checkpoint
