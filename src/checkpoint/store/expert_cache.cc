#include "checkpoint/store/expert_cache.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/affinity.h"
#include "checkpoint/nan_scan.h"

namespace deepinfer::checkpoint {
namespace {

// Of one read: a disk that needs 64 reads of 128 KiB at once is as fast with 16 of these, for a quarter of the calls.
constexpr uint64_t kPieceBytes = 512 << 10;
constexpr uint64_t kGapBytes = kIoAlignment;  // read along between two parts rather than begun anew
constexpr int kWorking = 8;  // experts of a layer that are read or run at a time, whatever they displace
constexpr int kLayersAhead = 2;
constexpr size_t kExpectedChoices = 64;  // of a layer; a step that chose more was no decode step
constexpr int64_t kJudgedReads = 24;
constexpr uint64_t kPauseSteps = 256;
constexpr int kWarmReads = 4;  // experts at a time

// Where the parts of an expert lie in its slot: parts that adjoin on disk are one run.
struct Layout {
  struct Run {
    int file = 0;
    uint64_t begin = 0, end = 0;  // bytes wanted; reads are of whole pages around them
    uint64_t at = 0;              // of page `begin` in the slot
  };
  std::array<Run, ExpertAddress::kParts> runs;
  int count = 0;
  std::array<uint64_t, ExpertAddress::kParts> part = {};  // offset in the slot
};

uint64_t page_of(uint64_t offset) { return offset / kIoAlignment * kIoAlignment; }

Layout lay_out(const ExpertCache::Places& places) {
  std::array<int, ExpertAddress::kParts> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(places[a].file, places[a].offset) < std::pair(places[b].file, places[b].offset);
  });
  Layout l;
  for (int i : order) {
    const ExpertCache::Place& p = places[i];
    Layout::Run* run = l.count > 0 ? &l.runs[l.count - 1] : nullptr;
    if (run == nullptr || run->file != p.file || p.offset > run->end + kGapBytes) {
      const uint64_t at = run == nullptr ? 0 : run->at + io_aligned(run->end) - page_of(run->begin);
      run = &l.runs[l.count++];
      *run = {p.file, p.offset, p.offset, at};
    }
    l.part[i] = run->at + p.offset - page_of(run->begin);
    run->end = std::max(run->end, p.offset + p.bytes);
  }
  return l;
}

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

Result<std::unique_ptr<ExpertCache>> ExpertCache::create(const Options& options,
                                                         std::vector<std::vector<Places>> places,
                                                         DirectReader* reader) {
  std::unique_ptr<ExpertCache> c(new ExpertCache(options, reader));
  DI_ASSIGN_OR_RETURN(c->memory_, HugeMemory::allocate(static_cast<size_t>(options.slots) * options.slot_bytes));
  interleave(c->memory_.as<void>(), c->memory_.bytes());
  c->begin_.push_back(0);
  for (const std::vector<Places>& layer : places) {
    c->places_.insert(c->places_.end(), layer.begin(), layer.end());
    c->begin_.push_back(static_cast<int32_t>(c->places_.size()));
  }
  for (const Place& p : c->places_.front()) c->expert_bytes_ += p.bytes;
  c->last_.resize(places.size());
  c->slots_.resize(static_cast<size_t>(options.slots));
  for (int64_t s = options.slots; s-- > 0;) c->free_.push_back(static_cast<int32_t>(s));
  c->guesses_.reserve(c->slots_.size());
  c->slot_of_.assign(c->places_.size(), -1);
  c->count_.assign(c->places_.size(), -std::numeric_limits<double>::infinity());
  c->stats_.slots = options.slots;
  c->stats_.experts = static_cast<int64_t>(c->places_.size());
  return c;
}

ExpertCache::~ExpertCache() = default;

void ExpertCache::touch(int32_t expert) {
  const double t = now() / options_.half_life;
  count_[expert] = t + std::log2(1 + std::exp2(count_[expert] - t));
}

ExpertAddress ExpertCache::address(int32_t slot) const {
  const Layout l = lay_out(places_[slots_[slot].expert]);
  ExpertAddress a;
  for (int i = 0; i < ExpertAddress::kParts; ++i) a.part[i] = memory(slot) + l.part[i];
  return a;
}

void ExpertCache::free_slot(int32_t slot) {
  if (slots_[slot].expert >= 0) slot_of_[slots_[slot].expert] = -1;
  end_guess(slot);
  slots_[slot] = {};
  free_.push_back(slot);
}

void ExpertCache::end_guess(int32_t slot) {
  if (slots_[slot].guess == Guess::kNone) return;
  slots_[slot].guess = Guess::kNone;
  std::erase(guesses_, slot);
}

// Guesses of a layer that are not named are read no further; those that are there stay as any expert does.
void ExpertCache::drop_guesses(int layer, std::span<const int32_t> but) {
  for (size_t i = guesses_.size(); i-- > 0;) {
    const int32_t slot = guesses_[i];
    Slot& s = slots_[slot];
    const int32_t expert = s.expert - begin_[layer];
    if (expert < 0 || s.expert >= begin_[layer + 1] || std::find(but.begin(), but.end(), expert) != but.end()) continue;
    Judge& judge = judges_[static_cast<size_t>(s.guess)];
    end_guess(slot);
    if (s.state != State::kReading) continue;
    const auto cancelled = static_cast<int32_t>(reader_->cancel(static_cast<uint64_t>(slot), this));
    if (cancelled == s.all_pieces) --judge.reads;
    s.pieces -= cancelled;
    slot_of_[s.expert] = -1;
    s.expert = -1;
    s.dropped = true;
    if (s.pieces > 0) continue;
    --reading_;
    free_slot(slot);
    arrived_changed_.notify_all();
  }
}

// A free slot, or that of the least counted expert which is not needed, if its count is below `count`; else -1.
int32_t ExpertCache::take_slot(double count) {
  if (free_.empty()) {
    int32_t worst = -1;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = slots_[s];
      if (slot.state != State::kReady || slot.needed || kept_for_guess(slot)) continue;
      if (count_[slot.expert] >= count) continue;
      count = count_[slot.expert];
      worst = static_cast<int32_t>(s);
    }
    if (worst < 0) return -1;
    free_slot(worst);
  }
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void ExpertCache::read(int32_t slot, int32_t expert, DirectReader::Class priority) {
  const Layout l = lay_out(places_[expert]);
  pieces_.clear();
  for (int r = 0; r < l.count; ++r) {
    const Layout::Run& run = l.runs[r];
    const uint64_t first = page_of(run.begin), last = io_aligned(run.end);
    for (uint64_t at = first; at < last; at += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, last - at);
      pieces_.push_back({run.file, at, {memory(slot) + run.at + (at - first), bytes}, std::min(bytes, run.end - at)});
    }
  }
  Slot& s = slots_[slot];
  s.expert = expert;
  s.state = State::kReading;
  s.all_pieces = s.pieces = static_cast<int32_t>(pieces_.size());
  slot_of_[expert] = slot;
  ++reading_;
  reader_->read(priority, pieces_, static_cast<uint64_t>(slot), &ExpertCache::on_piece, this);
}

void ExpertCache::on_piece(void* self, uint64_t owner, const Status& status) {
  static_cast<ExpertCache*>(self)->piece_done(static_cast<int32_t>(owner), status);
}

void ExpertCache::piece_done(int32_t slot, const Status& status) {
  const std::lock_guard lock(mutex_);
  Slot& s = slots_[slot];
  if (!status.ok() && !s.dropped) {
    s.failed = true;
    failure_ = status;
  }
  if (--s.pieces > 0) return;
  --reading_;
  if (s.warm) --warm_reading_;
  if (!s.dropped) check_scales(slot);
  if (s.failed) ++stats_.failures;
  s.state = State::kReady;
  if (s.dropped) {
    free_slot(slot);
  } else if (s.needed) {
    ready_.push_back(slot);
  } else if (s.failed) {
    free_slot(slot);
  }
  issue();
  warm_some();
  arrived_changed_.notify_all();
}

// NaN in an expert's scales (FP4 codes have none) makes it as good as unreadable.
void ExpertCache::check_scales(int32_t slot) {
  Slot& s = slots_[slot];
  if (s.failed) return;
  const ExpertAddress a = address(slot);
  const Places& places = places_[s.expert];
  for (size_t i = 1; i < ExpertAddress::kParts; i += 2) {
    if (!has_nan(a.part[i], places[i].bytes, numeric::DType::kF8E8M0)) continue;
    const auto layer = std::upper_bound(begin_.begin(), begin_.end(), s.expert) - begin_.begin() - 1;
    failure_ = make_error(Code::kDataLoss,
                          "The scales of expert {} of layer {} hold NaN: the weights are damaged. Fetch them again.",
                          s.expert - begin_[layer], layer);
    s.failed = true;
    return;
  }
}

// Reads for what is missing. Beyond kWorking a missing expert takes only the slot of one that counts less and else
// waits for those in work: a long prompt, which needs every expert once, leaves the often used ones where they are.
void ExpertCache::issue() {
  while (!missing_.empty()) {
    const bool must = working_ < kWorking;
    const int32_t slot = take_slot(must ? std::numeric_limits<double>::infinity() : count_[missing_.back()]);
    if (slot < 0) return;
    ++working_;
    slots_[slot].needed = true;
    ++stats_.reads;
    read(slot, missing_.back(), DirectReader::Class::kNeeded);
    missing_.pop_back();
  }
}

void ExpertCache::release_given() {
  working_ -= static_cast<int>(given_.size());
  for (int32_t slot : given_) {
    slots_[slot].needed = false;
    if (slots_[slot].failed) free_slot(slot);
  }
  given_.clear();
}

void ExpertCache::begin(int layer, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  release_given();
  for (Slot& s : slots_) s.needed = false;
  std::swap(given_, ready_);
  release_given();
  missing_.clear();
  working_ = 0;
  layer_ = layer;
  ++stats_.layers_run;
  stats_.uses += experts.size();
  outstanding_ = static_cast<int>(experts.size());
  for (size_t i = experts.size(); i-- > 0;) {
    const int32_t number = begin_[layer] + experts[i], slot = slot_of_[number];
    touch(number);
    if (slot < 0) {
      missing_.push_back(number);
      continue;
    }
    Slot& s = slots_[slot];
    s.needed = true;
    ++working_;
    if (s.guess != Guess::kNone) {
      ++judges_[static_cast<size_t>(s.guess)].used;
      end_guess(slot);
    }
    if (s.state == State::kReady) {
      ++stats_.hits;
      ready_.push_back(slot);
    } else {
      ++stats_.late;
      reader_->promote(DirectReader::Class::kNeeded, static_cast<uint64_t>(slot), this);
    }
  }
  drop_guesses(layer, experts);
  issue();
  last_[layer].assign(experts.begin(), experts.end());
  expect_next();
}

bool ExpertCache::guessing(Guess guess) {
  Judge& j = judges_[static_cast<size_t>(guess)];
  if (const int64_t reads = j.reads - j.judged_reads; reads >= kJudgedReads) {
    if (4 * (j.used - j.judged_used) < reads) j.pause_until = stats_.layers_run + kPauseSteps * last_.size();
    j.judged_reads = j.reads;
    j.judged_used = j.used;
  }
  return options_.expect && missing_.empty() && stats_.layers_run >= j.pause_until;
}

// A guess is given the time until its layer has begun.
bool ExpertCache::kept_for_guess(const Slot& s) const {
  return s.guess != Guess::kNone && stats_.layers_run <= s.guessed_at + kLayersAhead;
}

void ExpertCache::read_ahead(int layer, std::span<const int32_t> experts, size_t sure, Guess guess) {
  using Class = DirectReader::Class;
  const size_t most = std::max<size_t>(1, slots_.size() / 4);
  const Class rest = guess == Guess::kRouter ? Class::kLikely : Class::kSpare;
  for (size_t i = 0; i < experts.size(); ++i) {
    const Class priority = i < sure ? Class::kWanted : rest;
    const int32_t number = begin_[layer] + experts[i];
    if (slot_of_[number] >= 0) {
      if (slots_[slot_of_[number]].state == State::kReading)
        reader_->promote(priority, static_cast<uint64_t>(slot_of_[number]), this);
      continue;
    }
    if (guesses_.size() >= most) return;
    const int32_t slot = take_slot(guess == Guess::kRouter ? std::numeric_limits<double>::infinity() : count_[number]);
    if (slot < 0) return;
    slots_[slot].guess = guess;
    slots_[slot].guessed_at = stats_.layers_run;
    guesses_.push_back(slot);
    ++judges_[static_cast<size_t>(guess)].reads;
    read(slot, number, priority);
  }
}

void ExpertCache::expect_next() {
  if (!guessing(Guess::kStepBefore)) return;
  const int layers = static_cast<int>(last_.size());
  for (int d = 1; d <= kLayersAhead && d < layers; ++d) {
    const int layer = (layer_ + d) % layers;
    if (last_[layer].size() <= kExpectedChoices) read_ahead(layer, last_[layer], 0, Guess::kStepBefore);
  }
}

void ExpertCache::expect(int layer, std::span<const int32_t> experts, size_t sure) {
  const std::lock_guard lock(mutex_);
  drop_guesses(layer, experts);
  if (guessing(Guess::kRouter)) read_ahead(layer, experts, sure, Guess::kRouter);
}

std::span<const ExpertCache::Arrived> ExpertCache::next() {
  std::unique_lock lock(mutex_);
  release_given();
  issue();
  out_.clear();
  if (outstanding_ == 0) return {};
  if (ready_.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    arrived_changed_.wait(lock, [this] { return !ready_.empty(); });
    stats_.wait_s += seconds_since(begin);
  }
  std::swap(given_, ready_);
  outstanding_ -= static_cast<int>(given_.size());
  for (int32_t slot : given_) {
    const Slot& s = slots_[slot];
    if (s.failed && error_.ok()) error_ = failure_;
    out_.push_back({s.expert - begin_[layer_], s.failed, address(slot)});
  }
  return out_;
}

bool ExpertCache::waits() const {
  const std::lock_guard lock(mutex_);
  return outstanding_ > 0 && ready_.empty();
}

int ExpertCache::outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

Status ExpertCache::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, Status());
}

void ExpertCache::warm_up() {
  const std::lock_guard lock(mutex_);
  warming_ = true;
  warm_some();
}

void ExpertCache::warm_some() {
  const auto layers = static_cast<int64_t>(last_.size());
  while (warming_ && warm_reading_ < kWarmReads) {
    const int64_t layer = warm_at_ % layers, expert = warm_at_ / layers;
    warming_ = !free_.empty() && expert < static_cast<int64_t>(places_.size());
    if (!warming_) return;
    ++warm_at_;
    if (expert >= begin_[layer + 1] - begin_[layer] || slot_of_[begin_[layer] + expert] >= 0) continue;
    const int32_t slot = take_slot(0);
    slots_[slot].warm = true;
    ++warm_reading_;
    ++stats_.warm_reads;
    read(slot, begin_[layer] + static_cast<int32_t>(expert), DirectReader::Class::kSpare);
  }
}

void ExpertCache::settle() {
  std::unique_lock lock(mutex_);
  arrived_changed_.wait(lock, [this] { return reading_ == 0; });
}

ExpertStats ExpertCache::stats() const {
  const std::lock_guard lock(mutex_);
  ExpertStats s = stats_;
  s.slots_used = s.slots - static_cast<int64_t>(free_.size());
  const auto &router = judges_[static_cast<size_t>(Guess::kRouter)],
             &before = judges_[static_cast<size_t>(Guess::kStepBefore)];
  s.expected_reads = router.reads + before.reads;
  s.expected_used = router.used + before.used;
  s.router_reads = router.reads;
  s.router_used = router.used;
  s.needed_bytes = (s.reads + s.expected_used) * expert_bytes_;
  return s;
}

}  // namespace deepinfer::checkpoint
