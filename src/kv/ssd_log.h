// The segments of an SSD tier and the index over them (internal to kv/): where records lie, what is alive, which
// segment goes. Files are opened, sealed and removed here; reads and writes of frames are kv/ssd_tier.cc's.
//
//   DI_ASSIGN_OR_RETURN(auto log, SsdLog::open(dir, options));       // reads what an earlier process left
//   DI_ASSIGN_OR_RETURN(SsdLog::Place at, log->append(header));      // place for a frame; write it there, then
//   log->written(at, header);                                        // now it is found
//
// The owner holds a lock around all calls but open().
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/io_queue.h"
#include "kv/ssd_format.h"
#include "kv/ssd_tier.h"

namespace deepinfer::kv {

struct SsdSegment {
  ~SsdSegment();
  uint32_t id = 0;
  int fd = -1;
  uint64_t end = 0;             // where the next frame goes
  std::vector<FrameHeader> frames;  // written ones, erased ones included
  int writing = 0;              // frames on their way
  uint64_t live_bytes = 0, used_bytes = 0;
  int64_t last_expiry = 0;
  bool full = false, sealed = false, leaving = false;
  bool sealing = false;    // its index is being written
  uint64_t version = 0;    // rises when one of its records is erased
};

struct SsdEntry {
  std::shared_ptr<SsdSegment> segment;
  FrameHeader frame;
  bool used = false;
};

class SsdLog {
 public:
  struct Place {
    std::shared_ptr<SsdSegment> segment;
    uint64_t offset = 0;
  };
  // The index of a full segment, to be written to disk without the lock, since that waits for the device.
  struct Seal {
    std::shared_ptr<SsdSegment> segment;
    std::string path, index;
    uint64_t version = 0;
    bool write() const;
  };

  static Result<std::unique_ptr<SsdLog>> open(const std::string& dir, const SsdTierOptions& options);
  ~SsdLog();

  // Whether the record would be more than its tenant may have.
  bool over_share(const FrameHeader& header) const;
  // Fills in the header's place and sequence. kResourceExhausted: no space on the device.
  Result<Place> append(FrameHeader* header);
  void written(const Place& place, const FrameHeader& header);
  void not_written(const Place& place);
  // Null if it is not there or has passed its time. Counts as used and lives longer.
  const SsdEntry* find(const BlockKey& key, int64_t now);
  bool contains(const BlockKey& key, int64_t now) const;
  void erase(const BlockKey& key);
  // All records of a space so far, those on their way included; 0: of every space.
  void erase_space(uint64_t space);

  // The segment that should leave now, or null; it is marked. Its records that are worth keeping come first in `keep`,
  // at most half of a segment.
  std::shared_ptr<SsdSegment> choose_victim(int64_t now, std::vector<SsdEntry>* keep);
  void remove(const std::shared_ptr<SsdSegment>& segment, int64_t now);
  // Removes segments without anything alive, and seals again those that records were erased of.
  void expire(int64_t now);

  bool has_seals() const { return !seals_.empty(); }
  Seal take_seal();
  void sealed(const Seal& seal, bool ok);

  uint64_t segment_bytes() const;
  int segment_count() const { return static_cast<int>(segments_.size()); }
  const std::unordered_map<BlockKey, SsdEntry, BlockKeyHash>& entries() const { return entries_; }
  SsdStats stats;

 private:
  SsdLog(std::string dir, const SsdTierOptions& options);
  Status lock();
  Status recover();
  std::vector<FrameHeader> scan(SsdSegment& segment);
  Result<std::shared_ptr<SsdSegment>> new_segment();
  Result<int> make_file(const std::string& path);
  void seal_if_done(const std::shared_ptr<SsdSegment>& segment);
  void seal_now();
  void drop(std::unordered_map<BlockKey, SsdEntry, BlockKeyHash>::iterator at);
  void insert(const std::shared_ptr<SsdSegment>& segment, const FrameHeader& header);
  // So that no later start finds the frame again.
  void wipe(SsdSegment& segment, const FrameHeader& header);
  std::vector<FrameHeader> live_frames(const std::shared_ptr<SsdSegment>& segment) const;
  int open_file(const std::string& path, int flags) const;

  const std::string dir_;
  const SsdTierOptions options_;
  int lock_fd_ = -1;
  uint32_t next_segment_ = 1;
  uint64_t next_sequence_ = 1;
  std::map<uint32_t, std::shared_ptr<SsdSegment>> segments_;
  std::shared_ptr<SsdSegment> open_;
  std::unordered_map<BlockKey, SsdEntry, BlockKeyHash> entries_;
  std::unordered_map<uint64_t, uint64_t> erased_before_;  // space -> sequence
  std::unordered_map<BlockKey, uint64_t, BlockKeyHash> key_erased_before_;  // while frames are on their way
  int writing_ = 0;                                                         // frames on their way
  std::unordered_map<uint64_t, uint64_t> space_bytes_;    // of live records; looked up, never walked
  std::deque<std::shared_ptr<SsdSegment>> seals_;
  std::vector<std::string> spares_;  // files of segments that left, to be written again
  AlignedBuffer zeros_{kIoAlignment};
};

}  // namespace deepinfer::kv
