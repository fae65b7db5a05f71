// Bytes of the SSD tier's segment files (internal to kv/; used by ssd_tier.cc and its tests).
//
// A segment is a file of frames, each at a multiple of kIoAlignment: a header of kFrameHeaderBytes, the record, zeros
// up to the alignment. Little endian, as the machines are that this runs on. A header names its place (segment,
// offset), so that bytes of an older life of the disk are never taken for frames. A segment that is full is sealed: an
// index file beside it lists its frames, so that a start does not read the segment. The last segment is read frame by
// frame. A record is erased by zeros over its header. Files of segments that left are written again under another
// number, because a file system writes faster where a file has been written before; what they held names another
// segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {

inline constexpr uint32_t kSsdVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 128;

struct FrameHeader {
  uint64_t sequence = 0;  // rises over all segments
  uint32_t segment = 0;
  uint64_t offset = 0;  // in the segment
  BlockKey key;
  uint64_t space = 0;      // hash of the tenant's namespace
  uint64_t bytes = 0;      // of the record
  int64_t expires_at = 0;  // seconds of Unix time
  uint32_t ttl_s = 0;      // a read lets it live so much longer
};

size_t frame_bytes(size_t record_bytes);  // with header, aligned
void write_frame_header(const FrameHeader& header, std::span<std::byte> to);
// kDataLoss unless it is a whole header of this place.
Result<FrameHeader> read_frame_header(std::span<const std::byte> from, uint32_t segment, uint64_t offset);

std::string segment_name(uint32_t segment);  // "0000002a.kv"
std::string index_name(uint32_t segment);    // "0000002a.idx"
std::string spare_name(uint32_t segment);    // "0000002a.spare": a file to be written again
// The number in a segment's name; false if it is no such name.
bool parse_segment_name(const std::string& name, uint32_t* segment);

std::string encode_index(std::span<const FrameHeader> frames);
Result<std::vector<FrameHeader>> decode_index(std::string_view bytes, uint32_t segment);

}  // namespace deepinfer::kv
