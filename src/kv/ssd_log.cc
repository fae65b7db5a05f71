#include "kv/ssd_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kIndexBytesMax = 1ull << 30;
constexpr size_t kScanBytes = 8u << 20;
constexpr size_t kSparesMax = 1;

bool has_segment(fs::path index) { return fs::exists(index.replace_extension("kv")); }

// Whether so little of a full segment's file is unused that it is not worth giving back.
bool fills_its_file(const SsdSegment& s, uint64_t segment_bytes) { return s.end >= segment_bytes / 16 * 15; }

}  // namespace

SsdSegment::~SsdSegment() {
  if (fd >= 0) ::close(fd);
}

SsdLog::SsdLog(std::string dir, const SsdTierOptions& options) : dir_(std::move(dir)), options_(options) {}

SsdLog::~SsdLog() {
  if (open_ && open_->writing == 0 && !open_->frames.empty()) {
    open_->full = true;
    seal_if_done(open_);
  }
  seal_now();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

int SsdLog::open_file(const std::string& path, int flags) const {
  int fd = options_.direct ? ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600) : -1;
  if (fd < 0 && (!options_.direct || errno == EINVAL)) fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  return fd;
}

Result<std::unique_ptr<SsdLog>> SsdLog::open(const std::string& dir, const SsdTierOptions& options) {
  if (options.segment_bytes < 4 * kIoAlignment || options.bytes_max < 4 * options.segment_bytes) {
    return make_error(Code::kInvalidArgument,
                      "The SSD cache {} may use {} bytes, but needs at least four segments of {} bytes.", dir,
                      options.bytes_max, options.segment_bytes);
  }
  std::unique_ptr<SsdLog> log(new SsdLog(dir, options));
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return make_error(Code::kIo, "The folder {} of the SSD cache cannot be made: {}.", dir, error.message());
  DI_RETURN_IF_ERROR(log->lock());
  DI_RETURN_IF_ERROR(log->recover());
  return log;
}

Status SsdLog::lock() {
  const std::string path = dir_ + "/lock";
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return make_error(Code::kIo, "{} cannot be opened: {}.", path, std::strerror(errno));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return Status();
  return make_error(Code::kFailedPrecondition,
                    "The SSD cache {} is in use by another process; give this one a folder of its own.", dir_);
}

Status SsdLog::recover() {
  std::error_code error;
  std::vector<uint32_t> ids;
  for (const auto& entry : fs::directory_iterator(dir_, error)) {
    uint32_t id = 0;
    const fs::path& path = entry.path();
    if (parse_segment_name(path.filename().string(), &id)) {
      ids.push_back(id);
    } else if (path.extension() == ".spare" || (path.extension() == ".idx" && !has_segment(path))) {
      ::unlink(path.c_str());  // left by an end in the middle of a change
    }
  }
  if (error) return make_error(Code::kIo, "The SSD cache {} cannot be read: {}.", dir_, error.message());
  std::vector<std::pair<FrameHeader, std::shared_ptr<SsdSegment>>> frames;
  for (const uint32_t id : ids) {
    next_segment_ = std::max(next_segment_, id + 1);
    auto segment = std::make_shared<SsdSegment>();
    segment->id = id;
    segment->fd = open_file(dir_ + "/" + segment_name(id), O_RDWR);
    if (segment->fd < 0) {
      return make_error(Code::kIo, "{}/{} cannot be opened: {}.", dir_, segment_name(id), std::strerror(errno));
    }
    struct stat st = {};
    if (::fstat(segment->fd, &st) == 0) segment->end = static_cast<uint64_t>(st.st_size);
    const Result<std::string> index = read_file(dir_ + "/" + index_name(id), kIndexBytesMax);
    Result<std::vector<FrameHeader>> found =
        index.ok() ? decode_index(index.value(), id) : Result<std::vector<FrameHeader>>(index.status());
    segment->sealed = found.ok();
    if (!found.ok()) found = scan(*segment);
    if (!segment->sealed) {
      segment->end = 0;
      for (const FrameHeader& h : found.value()) segment->end = std::max(segment->end, h.offset + frame_bytes(h.bytes));
    }
    segment->full = true;
    segments_[id] = segment;
    for (const FrameHeader& h : found.value()) {
      if (h.offset + frame_bytes(h.bytes) <= segment->end) frames.emplace_back(h, segment);
    }
    segment->frames = std::move(found).value();
  }
  std::ranges::sort(frames, {}, [](const auto& f) { return f.first.sequence; });
  for (const auto& [header, segment] : frames) {
    next_sequence_ = std::max(next_sequence_, header.sequence + 1);
    insert(segment, header);
  }
  for (const auto& [id, segment] : segments_) {
    if (!segment->sealed) seal_if_done(segment);
  }
  seal_now();
  stats.recovered = static_cast<int64_t>(entries_.size());
  return Status();
}

// Frames of a segment that was not sealed. Writes end in any order, so there may be holes.
std::vector<FrameHeader> SsdLog::scan(SsdSegment& segment) {
  std::vector<FrameHeader> out;
  AlignedBuffer buffer(kScanBytes);
  for (uint64_t at = 0; at + kIoAlignment <= segment.end;) {
    const ssize_t n = ::pread(segment.fd, buffer.data(), kScanBytes, static_cast<off_t>(at));
    if (n < static_cast<ssize_t>(kIoAlignment)) break;
    const std::span<const std::byte> window(buffer.data(), static_cast<size_t>(n));
    uint64_t next = at;
    while (next + kIoAlignment <= at + window.size()) {
      const std::span<const std::byte> rest = window.subspan(next - at);
      const Result<FrameHeader> h = read_frame_header(rest, segment.id, next);
      if (!h.ok()) {
        next += kIoAlignment;
        continue;
      }
      const size_t frame = frame_bytes(h->bytes);
      if (frame > rest.size() && next != at) break;  // read on from here
      if (kFrameHeaderBytes + h->bytes <= rest.size() &&
          record_is_whole(rest.subspan(kFrameHeaderBytes, h->bytes))) {
        out.push_back(h.value());
        next += frame;
      } else {
        ++stats.torn;
        next += kIoAlignment;
      }
    }
    at = next;
  }
  return out;
}

void SsdLog::insert(const std::shared_ptr<SsdSegment>& segment, const FrameHeader& header) {
  if (const auto old = entries_.find(header.key); old != entries_.end()) {
    wipe(*old->second.segment, old->second.frame);
    drop(old);
  }
  entries_[header.key] = {.segment = segment, .frame = header};
  segment->live_bytes += frame_bytes(header.bytes);
  segment->last_expiry = std::max(segment->last_expiry, header.expires_at);
  stats.bytes += header.bytes;
  space_bytes_[header.space] += header.bytes;
}

void SsdLog::wipe(SsdSegment& segment, const FrameHeader& header) {
  if (segment.leaving) return;
  ++segment.version;
  if (segment.sealed) {
    ::unlink((dir_ + "/" + index_name(segment.id)).c_str());
    segment.sealed = false;  // expire() writes the index again
  }
  const ssize_t n = ::pwrite(segment.fd, zeros_.data(), kIoAlignment, static_cast<off_t>(header.offset));
  stats.errors += n != static_cast<ssize_t>(kIoAlignment);
}

std::vector<FrameHeader> SsdLog::live_frames(const std::shared_ptr<SsdSegment>& segment) const {
  std::vector<FrameHeader> out;
  for (const FrameHeader& h : segment->frames) {
    const auto at = entries_.find(h.key);
    if (at != entries_.end() && at->second.segment == segment && at->second.frame.offset == h.offset) out.push_back(h);
  }
  return out;
}

void SsdLog::drop(std::unordered_map<BlockKey, SsdEntry, BlockKeyHash>::iterator at) {
  const SsdEntry& e = at->second;
  const uint64_t frame = frame_bytes(e.frame.bytes);
  e.segment->live_bytes -= frame;
  if (e.used) e.segment->used_bytes -= frame;
  stats.bytes -= e.frame.bytes;
  if (uint64_t& own = space_bytes_[e.frame.space] -= e.frame.bytes; own == 0) space_bytes_.erase(e.frame.space);
  entries_.erase(at);
}

Result<int> SsdLog::make_file(const std::string& path) {
  bool reused = false;
  if (!spares_.empty()) {
    reused = ::rename(spares_.back().c_str(), path.c_str()) == 0;
    spares_.pop_back();
  }
  const int fd = open_file(path, O_RDWR | O_CREAT | (reused ? 0 : O_TRUNC));
  if (fd < 0) return make_error(Code::kResourceExhausted, "{} cannot be made: {}.", path, std::strerror(errno));
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(options_.segment_bytes));
  if (error == 0) return fd;
  ::close(fd);
  ::unlink(path.c_str());
  return make_error(Code::kResourceExhausted, "{} cannot get its {} bytes: {}.", path, options_.segment_bytes,
                    std::strerror(error));
}

Result<std::shared_ptr<SsdSegment>> SsdLog::new_segment() {
  auto segment = std::make_shared<SsdSegment>();
  segment->id = next_segment_;
  DI_ASSIGN_OR_RETURN(segment->fd, make_file(dir_ + "/" + segment_name(segment->id)));
  ++next_segment_;
  segments_[segment->id] = segment;
  return segment;
}

bool SsdLog::over_share(const FrameHeader& header) const {
  const auto own = space_bytes_.find(header.space);
  return options_.space_bytes_max > 0 &&
         (own == space_bytes_.end() ? 0 : own->second) + header.bytes > options_.space_bytes_max;
}

Result<SsdLog::Place> SsdLog::append(FrameHeader* header) {
  const uint64_t bytes = frame_bytes(header->bytes);
  if (bytes > options_.segment_bytes) {
    return make_error(Code::kResourceExhausted, "a record of {} bytes does not fit into a segment of {}",
                      header->bytes, options_.segment_bytes);
  }
  if (open_ && open_->end + bytes > options_.segment_bytes) {
    open_->full = true;
    seal_if_done(open_);
    open_.reset();
  }
  if (!open_) {
    DI_ASSIGN_OR_RETURN(open_, new_segment());
  }
  const Place place{.segment = open_, .offset = open_->end};
  header->sequence = next_sequence_++;
  header->segment = open_->id;
  header->offset = place.offset;
  open_->end += bytes;
  ++open_->writing;
  ++writing_;
  return place;
}

void SsdLog::written(const Place& place, const FrameHeader& header) {
  --place.segment->writing;
  --writing_;
  place.segment->frames.push_back(header);
  bool wanted = true;
  if (const auto newer = entries_.find(header.key); newer != entries_.end())
    wanted = newer->second.frame.sequence < header.sequence;
  for (const uint64_t space : {uint64_t{0}, header.space}) {
    if (const auto erased = erased_before_.find(space); erased != erased_before_.end())
      wanted = wanted && header.sequence >= erased->second;
  }
  if (const auto erased = key_erased_before_.find(header.key); erased != key_erased_before_.end())
    wanted = wanted && header.sequence >= erased->second;
  if (writing_ == 0) key_erased_before_.clear();
  if (wanted) {
    insert(place.segment, header);
  } else {
    wipe(*place.segment, header);
  }
  seal_if_done(place.segment);
}

void SsdLog::not_written(const Place& place) {
  --place.segment->writing;
  if (--writing_ == 0) key_erased_before_.clear();
  seal_if_done(place.segment);
}

void SsdLog::seal_if_done(const std::shared_ptr<SsdSegment>& segment) {
  if (!segment->full || segment->sealed || segment->sealing || segment->writing > 0 || segment->leaving) return;
  segment->sealing = true;
  seals_.push_back(segment);
}

SsdLog::Seal SsdLog::take_seal() {
  Seal seal{.segment = std::move(seals_.front())};
  seals_.pop_front();
  const SsdSegment& s = *seal.segment;
  if (!fills_its_file(s, options_.segment_bytes)) (void)!::ftruncate(s.fd, static_cast<off_t>(s.end));
  seal.path = dir_ + "/" + index_name(s.id);
  seal.index = encode_index(live_frames(seal.segment));
  seal.version = s.version;
  return seal;
}

bool SsdLog::Seal::write() const {
  ::fdatasync(segment->fd);
  return write_file_atomically(path, index).ok();
}

// A segment whose index could not be written, or has changed meanwhile, stays unsealed: expire() tries again, and the
// next start reads it frame by frame.
void SsdLog::sealed(const Seal& seal, bool ok) {
  SsdSegment& s = *seal.segment;
  s.sealing = false;
  s.sealed = ok && !s.leaving && s.version == seal.version;
  if (!s.sealed) ::unlink(seal.path.c_str());
}

void SsdLog::seal_now() {
  while (has_seals()) {
    const Seal seal = take_seal();
    sealed(seal, seal.write());
  }
}

bool SsdLog::contains(const BlockKey& key, int64_t now) const {
  const auto at = entries_.find(key);
  return at != entries_.end() && at->second.frame.expires_at > now;
}

const SsdEntry* SsdLog::find(const BlockKey& key, int64_t now) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return nullptr;
  SsdEntry& e = at->second;
  if (e.frame.expires_at <= now) {
    ++stats.expired;
    drop(at);
    return nullptr;
  }
  e.frame.expires_at = std::max(e.frame.expires_at, now + e.frame.ttl_s);
  e.segment->last_expiry = std::max(e.segment->last_expiry, e.frame.expires_at);
  if (!e.used) {
    e.used = true;
    e.segment->used_bytes += frame_bytes(e.frame.bytes);
  }
  return &e;
}

void SsdLog::erase(const BlockKey& key) {
  if (writing_ > 0) key_erased_before_[key] = next_sequence_;
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  wipe(*at->second.segment, at->second.frame);
  drop(at);
}

void SsdLog::erase_space(uint64_t space) {
  erased_before_[space] = next_sequence_;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    const SsdEntry& e = at->second;
    if (space == 0 || e.frame.space == space) {
      wipe(*e.segment, e.frame);
      drop(at);
    }
    at = next;
  }
}

uint64_t SsdLog::segment_bytes() const {
  uint64_t total = 0;
  for (const auto& [id, s] : segments_) {
    if (s->leaving) continue;
    const bool whole = s == open_ || fills_its_file(*s, options_.segment_bytes);
    total += whole ? std::max(s->end, options_.segment_bytes) : s->end;
  }
  return total;
}

std::shared_ptr<SsdSegment> SsdLog::choose_victim(int64_t now, std::vector<SsdEntry>* keep) {
  keep->clear();
  if (segment_bytes() + 2 * options_.segment_bytes <= options_.bytes_max) return nullptr;
  std::vector<std::shared_ptr<SsdSegment>> full;  // the oldest first
  for (const auto& [id, s] : segments_) {
    if (s != open_ && !s->leaving && !s->sealing && s->writing == 0) full.push_back(s);
  }
  if (full.empty()) return nullptr;
  // Of the older half, so that what is new has had its time to be read, and what was popular once goes in the end.
  full.resize((full.size() + 1) / 2);
  const std::shared_ptr<SsdSegment> victim = *std::ranges::min_element(full, {}, &SsdSegment::used_bytes);
  victim->leaving = true;
  for (const FrameHeader& h : live_frames(victim)) {
    const SsdEntry& e = entries_.at(h.key);
    if (e.used && e.frame.expires_at > now) keep->push_back(e);
  }
  std::ranges::sort(*keep, std::greater<>(), [](const SsdEntry& e) { return e.frame.expires_at; });
  uint64_t bytes = 0;
  for (size_t i = 0; i < keep->size(); ++i) {
    bytes += frame_bytes((*keep)[i].frame.bytes);
    if (bytes <= options_.segment_bytes / 2) continue;
    keep->resize(i);
    break;
  }
  return victim;
}

void SsdLog::remove(const std::shared_ptr<SsdSegment>& segment, int64_t now) {
  for (const FrameHeader& h : live_frames(segment)) {
    ++(segment->last_expiry <= now ? stats.expired : stats.evicted);
    drop(entries_.find(h.key));
  }
  segment->leaving = true;
  // The index goes first: a segment without one is read frame by frame.
  ::unlink((dir_ + "/" + index_name(segment->id)).c_str());
  const std::string path = dir_ + "/" + segment_name(segment->id), spare = dir_ + "/" + spare_name(segment->id);
  if (spares_.size() < kSparesMax && ::rename(path.c_str(), spare.c_str()) == 0) {
    spares_.push_back(spare);
  } else {
    ::unlink(path.c_str());
  }
  segments_.erase(segment->id);
}

void SsdLog::expire(int64_t now) {
  std::vector<std::shared_ptr<SsdSegment>> dead;
  for (const auto& [id, s] : segments_) {
    const bool still = s != open_ && !s->leaving && !s->sealing && s->writing == 0;
    if (still && (s->live_bytes == 0 || s->last_expiry <= now)) dead.push_back(s);
  }
  for (const std::shared_ptr<SsdSegment>& s : dead) remove(s, now);
  for (const auto& [id, s] : segments_) seal_if_done(s);
}

}  // namespace deepinfer::kv
