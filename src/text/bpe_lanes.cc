// Short pieces: the merges one by one, for kLanes pieces in turn, so that while one waits for memory others go on.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "text/bpe.h"

namespace deepinfer::text {

// A short piece being merged. Units sit at places 1 to kShortUnits; the places around them hold a symbol that never
// merges, so that no step asks whether there is a neighbour.
struct Bpe::Lane {
  static constexpr uint32_t kNothing = ~uint32_t{0};
  static constexpr int kPlaceBits = 6;
  static_assert(kShortUnits + 2 <= 1 << kPlaceBits);
  static constexpr size_t kNarrow = 16;  // the smallest of so many merges is found without a loop of unknown length

  Job* job;
  bool wide;       // more than kNarrow units
  uint64_t alive;  // one bit per place that holds a unit, and the two at the ends
  Symbol units[kShortUnits + 2];
  // Of each place with the next one alive: rank and place, so that the smallest is the next to do; or kNothing.
  uint32_t merges[kShortUnits + 2];
  size_t asked;  // questions about the first units, whose answers go into merges
  PairTable::Question questions[kShortUnits];
  uint32_t places[kShortUnits];
  PairTable::Question with_next, with_previous;  // questions of the last step; place and previous say what about
  uint32_t place, previous;

  static uint32_t pack(uint32_t rank, size_t place) {
    static_assert(PairTable::kNone == kNothing);
    // No branch, which would be a coin toss: all bits of kNone spread over the result.
    return (rank << kPlaceBits | static_cast<uint32_t>(place)) | (0u - (rank >> 31));
  }
};

__attribute__((always_inline)) inline bool Bpe::start_lane(Job* job, Lane* lane) const {
  if (job->size > kShortBytes) return false;
  const size_t count = find_units({job->piece, job->size}, lane->units + 1);
  if (count == 0) return false;
  constexpr Symbol kMergesWithNothing = kSymbolMask;
  lane->job = job;
  lane->wide = count > Lane::kNarrow;
  std::fill_n(lane->merges, Lane::kNarrow + 1, Lane::kNothing);
  if (lane->wide) std::fill(lane->merges + Lane::kNarrow + 1, std::end(lane->merges), Lane::kNothing);
  lane->alive = (uint64_t{1} << (count + 2)) - 1;
  lane->units[0] = lane->units[count + 1] = kMergesWithNothing;
  lane->asked = 0;
  lane->place = lane->previous = 0;  // no step yet: its answers go where nobody looks
  lane->with_next = lane->with_previous = {0, 0};
  for (size_t i = 1; i < count; ++i) {
    const Symbol left = lane->units[i], right = lane->units[i + 1];
    if ((left | right) < kAscii) {
      lane->merges[i] = Lane::pack(ascii_ranks_[left * kAscii + right], i);
      continue;
    }
    lane->questions[lane->asked] = pairs_.ask(left, right);
    lane->places[lane->asked++] = static_cast<uint32_t>(i);
  }
  return true;
}

__attribute__((always_inline)) inline void Bpe::read_answers(Lane* lane) const {
  for (size_t i = 0; i < lane->asked; ++i)
    lane->merges[lane->places[i]] = Lane::pack(pairs_.answer(lane->questions[i]), lane->places[i]);
  lane->asked = 0;
  lane->merges[lane->place] = Lane::pack(pairs_.answer(lane->with_next), lane->place);
  lane->merges[lane->previous] = Lane::pack(pairs_.answer(lane->with_previous), lane->previous);
}

// Does the next merge and asks what comes of it; false if there is none left.
__attribute__((always_inline)) inline bool Bpe::step_lane(Lane* lane) const {
  // Four at a time, and without branches: which one is the smallest is as good as random.
  using Four = uint32_t __attribute__((vector_size(16)));
  const auto load = [&](size_t place) {
    Four four;
    std::memcpy(&four, lane->merges + place, sizeof four);
    return four;
  };
  const auto lower = [](Four a, Four b) { return a < b ? a : b; };
  Four best = lower(lower(load(1), load(5)), lower(load(9), load(13)));
  if (lane->wide) best = lower(best, lower(lower(load(17), load(21)), lower(load(25), load(29))));
  best = lower(best, __builtin_shuffle(best, Four{2, 3, 0, 1}));
  best = lower(best, __builtin_shuffle(best, Four{1, 0, 3, 2}));
  const uint32_t lowest = best[0];
  if (lowest == Lane::kNothing) return false;
  const uint32_t place = lowest & ((1u << Lane::kPlaceBits) - 1);
  const Symbol made = 256 + (lowest >> Lane::kPlaceBits);
  const uint64_t after = lane->alive & ~uint64_t{1} << place;
  const int absorbed = std::countr_zero(after);
  const int next = std::countr_zero(after & (after - 1));
  const int previous = 63 - std::countl_zero(lane->alive & ((uint64_t{1} << place) - 1));
  lane->alive &= ~(uint64_t{1} << absorbed);
  lane->units[place] = made;
  lane->merges[absorbed] = Lane::kNothing;
  lane->with_next = pairs_.ask(made, lane->units[next]);
  lane->with_previous = pairs_.ask(lane->units[previous], made);
  lane->place = place;
  lane->previous = static_cast<uint32_t>(previous);
  return true;
}

__attribute__((always_inline)) inline void Bpe::finish_lane(const Lane& lane) const {
  TokenId* out = lane.job->ids;
  uint64_t left = lane.alive & ~uint64_t{1};
  for (left &= ~(uint64_t{1} << (63 - std::countl_zero(left))); left != 0; left &= left - 1) {
    *out++ = id_of(lane.units[std::countr_zero(left)]);
  }
  lane.job->count = static_cast<uint32_t>(out - lane.job->ids);
}

// Inlined into encode_lanes(), once for any processor and once for those with AVX2, whose instructions it uses well.
__attribute__((always_inline)) inline void Bpe::run_lanes(std::span<Job> jobs, Scratch* scratch) const {
  std::array<Lane, kLanes> storage;
  std::array<Lane*, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = &storage[i];
  size_t active = 0, next = 0;
  const auto fill = [&](Lane* lane) {
    for (; next < jobs.size(); ++next) {
      if (start_lane(&jobs[next], lane)) {
        ++next;
        return true;
      }
      jobs[next].count =
          static_cast<uint32_t>(encode_long({jobs[next].piece, jobs[next].size}, scratch, jobs[next].ids));
    }
    return false;
  };
  while (active < kLanes && fill(lanes[active])) ++active;
  while (active > 0) {
    for (size_t i = 0; i < active; ++i) read_answers(lanes[i]);
    for (size_t i = 0; i < active; ++i) {
      if (step_lane(lanes[i])) continue;
      finish_lane(*lanes[i]);
      if (!fill(lanes[i])) std::swap(lanes[i--], lanes[--active]);
    }
  }
}

void Bpe::encode_lanes(std::span<Job> jobs, Scratch* scratch) const { run_lanes(jobs, scratch); }

#if defined(__x86_64__)
__attribute__((target("avx2,bmi,bmi2,lzcnt"))) void Bpe::encode_lanes_avx2(std::span<Job> jobs,
                                                                           Scratch* scratch) const {
  run_lanes(jobs, scratch);
}
#endif

}  // namespace deepinfer::text
