#include "checkpoint/store/row_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "checkpoint/nan_scan.h"

namespace deepinfer::checkpoint {
namespace {

constexpr size_t kFrames = 256;  // parts on their way at once

uint64_t page_of(uint64_t offset) { return offset / kIoAlignment * kIoAlignment; }

}  // namespace

Result<std::unique_ptr<RowReader>> RowReader::create(std::vector<Table> tables, DirectReader* reader) {
  std::unique_ptr<RowReader> r(new RowReader(reader));
  try {
    for (Table& t : tables) {
      State s{.table = t, .stride = t.codes.bytes + t.scales.bytes};
      s.sets = std::max<int64_t>(1, static_cast<int64_t>(t.cache_bytes / (kWays * (s.stride + sizeof(int32_t) + 1))));
      s.tags.assign(static_cast<size_t>(s.sets * kWays), kNone);
      s.places.resize(s.tags.size());
      for (size_t i = 0; i < s.places.size(); ++i) s.places[i] = static_cast<uint8_t>(i % kWays);
      s.data.resize(s.tags.size() * s.stride);
      r->frame_bytes_ = std::max(r->frame_bytes_, io_aligned(t.codes.bytes) + kIoAlignment);
      r->tables_.push_back(std::move(s));
    }
    r->memory_.resize(kFrames * r->frame_bytes_);
  } catch (const std::bad_alloc&) {
    return make_error(Code::kResourceExhausted, "no memory for the cache of table rows; give less to --ram");
  }
  r->frames_.resize(kFrames);
  for (size_t i = 0; i < kFrames; ++i) r->free_.push_back(static_cast<uint32_t>(i));
  return r;
}

// Moves the way of `id` to the front of its set.
bool RowReader::cached(State& s, int32_t id, std::byte* out) {
  const size_t set = static_cast<size_t>(id % s.sets) * kWays;
  for (size_t w = 0; w < kWays; ++w) {
    if (s.tags[set + w] != id) continue;
    std::rotate(s.tags.begin() + set, s.tags.begin() + set + w, s.tags.begin() + set + w + 1);
    std::rotate(s.places.begin() + set, s.places.begin() + set + w, s.places.begin() + set + w + 1);
    std::memcpy(out, s.data.data() + (set + s.places[set]) * s.stride, s.stride);
    return true;
  }
  return false;
}

void RowReader::keep(State& s, int32_t id, const std::byte* row) {
  const size_t set = static_cast<size_t>(id % s.sets) * kWays;
  std::rotate(s.tags.begin() + set, s.tags.begin() + set + kWays - 1, s.tags.begin() + set + kWays);
  std::rotate(s.places.begin() + set, s.places.begin() + set + kWays - 1, s.places.begin() + set + kWays);
  s.tags[set] = id;
  std::memcpy(s.data.data() + (set + s.places[set]) * s.stride, row, s.stride);
}

void RowReader::request(int table, std::span<const int32_t> rows) {
  std::unique_lock lock(mutex_);
  State& s = tables_[static_cast<size_t>(table)];
  done_.wait(lock, [&s] { return s.pending == 0; });  // of a step that was given up
  const size_t n = rows.size();
  s.ids.assign(rows.begin(), rows.end());
  s.rows.resize(std::max(s.rows.size(), n * s.stride));
  s.first.resize(n);
  s.parts_left.assign(n, 0);
  s.queue.clear();
  s.queue_at = 0;
  order_.clear();
  for (size_t i = 0; i < n; ++i) order_.emplace_back(rows[i], static_cast<int32_t>(i));
  std::sort(order_.begin(), order_.end());
  int32_t first = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto [id, place] = order_[i];
    const bool again = i > 0 && order_[i - 1].first == id;
    if (!again) first = place;
    s.first[static_cast<size_t>(place)] = first;
    ++stats_.lookups;
    if (again) {
      ++stats_.hits;
    } else if (cached(s, id, s.rows.data() + static_cast<size_t>(place) * s.stride)) {
      ++stats_.hits;
    } else {
      s.queue.push_back(place);
    }
  }
  s.pending = static_cast<int64_t>(s.queue.size());
  stats_.reads += s.queue.size();
  issue(table);
}

void RowReader::read_part(int table, int32_t place, bool scale) {
  const State& s = tables_[static_cast<size_t>(table)];
  const Part& part = scale ? s.table.scales : s.table.codes;
  const uint64_t offset = part.offset + static_cast<uint64_t>(s.ids[static_cast<size_t>(place)]) * part.bytes;
  const uint64_t begin = page_of(offset), bytes = io_aligned(offset + part.bytes) - begin;
  const uint32_t at = free_.back();
  free_.pop_back();
  frames_[at] = {table, place, static_cast<uint32_t>(offset - begin), scale};
  const DirectReader::Piece piece{
      part.file, begin, {memory_.data() + at * frame_bytes_, bytes}, offset + part.bytes - begin};
  reader_->read(DirectReader::Class::kNeeded, {&piece, 1}, at, &RowReader::on_piece, this);
}

void RowReader::issue(int table) {
  State& s = tables_[static_cast<size_t>(table)];
  const bool scales = s.table.scales.bytes > 0;
  while (s.queue_at < s.queue.size() && free_.size() >= 2) {
    const int32_t place = s.queue[s.queue_at++];
    s.parts_left[static_cast<size_t>(place)] = scales ? 2 : 1;
    read_part(table, place, false);
    if (scales) read_part(table, place, true);
  }
}

void RowReader::on_piece(void* self, uint64_t owner, const Status& status) {
  static_cast<RowReader*>(self)->piece_done(static_cast<size_t>(owner), status);
}

void RowReader::piece_done(size_t frame, const Status& status) {
  const std::lock_guard lock(mutex_);
  const Frame f = frames_[frame];
  State& s = tables_[static_cast<size_t>(f.table)];
  const Part& part = f.scale ? s.table.scales : s.table.codes;
  std::byte* row = s.rows.data() + static_cast<size_t>(f.place) * s.stride;
  std::byte* to = row + (f.scale ? s.table.codes.bytes : 0);
  constexpr uint8_t kFailed = 0x80;
  uint8_t& left = s.parts_left[static_cast<size_t>(f.place)];
  std::memcpy(to, memory_.data() + frame * frame_bytes_ + f.skip, part.bytes);
  const bool nan = status.ok() && has_nan(to, part.bytes, part.dtype);
  if (nan || !status.ok()) {
    left |= kFailed;
    if (error_.ok()) {
      error_ =
          !nan ? status
               : make_error(Code::kDataLoss, "Row {} of a table holds NaN: the weights are damaged. Fetch them again.",
                            s.ids[static_cast<size_t>(f.place)]);
    }
    ++stats_.failures;
  }
  free_.push_back(static_cast<uint32_t>(frame));
  --left;
  if ((left & ~kFailed) == 0) {
    if (left == 0) {
      keep(s, s.ids[static_cast<size_t>(f.place)], row);
    } else {
      std::memset(row, 0, s.stride);
    }
    --s.pending;
  }
  for (size_t t = 0; t < tables_.size(); ++t) issue(static_cast<int>(t));
  if (s.pending == 0) done_.notify_all();
}

// Copies what was read once to the other places of the same id.
void RowReader::share(State& s) {
  for (size_t i = 0; i < s.first.size(); ++i) {
    const auto from = static_cast<size_t>(s.first[i]);
    if (from != i) std::memcpy(s.rows.data() + i * s.stride, s.rows.data() + from * s.stride, s.stride);
    s.first[i] = static_cast<int32_t>(i);
  }
}

const std::byte* RowReader::wait(int table) {
  std::unique_lock lock(mutex_);
  State& s = tables_[static_cast<size_t>(table)];
  if (s.pending > 0) {
    const auto begin = std::chrono::steady_clock::now();
    done_.wait(lock, [&s] { return s.pending == 0; });
    stats_.wait_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  share(s);
  return s.rows.data();
}

Status RowReader::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, Status());
}

RowStats RowReader::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace deepinfer::checkpoint
