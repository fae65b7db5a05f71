// The indexer for heads of 128 channels: scores, selected entries and candidate blocks against the definition (exact
// dot products, then the bf16 chain of spec/model.md 8.2), over contexts of many lengths, scales that lie far apart,
// every number of CTAs a row, and through candidate blocks. All equal, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/cuda/select.cuh"
#include "tests/cuda/check.h"
#include "tests/cuda/codes.h"

using namespace deepinfer::ops;
using namespace deepinfer::ops::cuda;

namespace {

constexpr int kDim = 128, kGroups = kDim / 32;

struct Case {
  const char* name;
  int heads, ratio, topk, candidate_blocks, candidate_size;
  std::vector<int> visible;      // of each row
  int key_spread, query_spread;  // scales of a vector's blocks differ by up to as many powers of two
  int key_scale = 126, query_exponent = 0;
  double weight = 0.1;
  bool largest = false;  // most codes are the largest one, so that sums come near their bound
};

// Nearest bf16 of a double, ties to even, as a double.
double bf16_of(double x) {
  if (x == 0) return 0;
  int e;
  std::frexp(x, &e);
  const double step = std::ldexp(1.0, std::max(e - 8, -133));
  return std::nearbyint(x / step) * step;
}
uint32_t key_of(double score) {
  const uint16_t b = check::bf16_bits(static_cast<float>(score));
  if ((b & 0x7fff) == 0) return 0x8000;
  return b & 0x8000 ? 0xffffu & ~b : b | 0x8000u;
}
// Indices of the `keep` largest, ascending; equal ones: the lower.
std::vector<int> best(const std::vector<uint32_t>& keys, int keep) {
  std::vector<int> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] > keys[b]; });
  order.resize(std::min<size_t>(order.size(), keep));
  std::sort(order.begin(), order.end());
  return order;
}

struct Vector {
  int code[kDim];       // e2m1
  int16_t twice[kDim];  // twice their value
  int exponent[kGroups];
};
Vector random_vector(check::Random& random, int exponent, int spread, bool largest) {
  Vector v;
  for (int& c : v.code) c = largest && random.below(16) != 0 ? 7 : random.below(16);
  for (int g = 0; g < kGroups; ++g) {
    v.exponent[g] = exponent - (spread > 0 ? random.below(spread + 1) : 0);
    if (random.below(40) == 0) std::fill(v.code + 32 * g, v.code + 32 * g + 32, random.below(2) * 8);
  }
  for (int d = 0; d < kDim; ++d) v.twice[d] = static_cast<int16_t>(2 * check::e2m1_value(v.code[d]));
  return v;
}

void test(const Case& c, uint64_t seed) {
  check::Random random(seed);
  const int n = static_cast<int>(c.visible.size()), page_entries = 128 / c.ratio,
            longest = *std::max_element(c.visible.begin(), c.visible.end()),
            pages_each = (longest + page_entries - 1) / page_entries, columns = (longest + 63) / 64 * 64;
  // Rows share a few sequences, whose keys the oracle keeps.
  const int sequence_count = std::min(n, 2), scale_at = page_entries * 64;
  const int64_t stride = page_entries * 68 + 32 + 128, key_offset = 32;
  std::vector<SequenceRows> sequences(sequence_count);
  std::vector<int32_t> positions(n), sequence(n), blocks;
  std::vector<uint8_t> pages(static_cast<size_t>(sequence_count) * pages_each * stride);
  for (uint8_t& x : pages) x = static_cast<uint8_t>(random.word());
  std::vector<std::vector<Vector>> keys(sequence_count);
  for (int s = 0; s < sequence_count; ++s) {
    sequences[s] = {.first_block = s * pages_each, .block_count = pages_each};
    for (int p = 0; p < pages_each; ++p) blocks.push_back(s * pages_each + (p * 5 + 2) % pages_each);
    // 5 and the number of pages may share a divisor: then the order is plain.
    if (pages_each % 5 == 0) std::iota(blocks.end() - pages_each, blocks.end(), s * pages_each);
    for (int g = 0; g < longest; ++g) {
      keys[s].push_back(random_vector(random, c.key_scale,
                                      random.below(3) == 0 ? c.key_spread : std::min(c.key_spread, 2), c.largest));
      for (int& e : keys[s].back().exponent) e = std::clamp(e, 0, 254);
      uint8_t* page = &pages[blocks[s * pages_each + g / page_entries] * stride + key_offset];
      const int at = g % page_entries;
      for (int i = 0; i < kDim / 2; ++i)
        page[at * 64 + i] = static_cast<uint8_t>(keys[s][g].code[2 * i] | keys[s][g].code[2 * i + 1] << 4);
      for (int b = 0; b < kGroups; ++b) page[scale_at + at * 4 + b] = static_cast<uint8_t>(keys[s][g].exponent[b]);
    }
  }
  std::vector<uint16_t> q, weights;
  std::vector<Vector> queries;
  for (int i = 0; i < n; ++i) {
    positions[i] = c.visible[i] * c.ratio - 1 + random.below(c.ratio), sequence[i] = i % sequence_count;
    for (int h = 0; h < c.heads; ++h) {
      queries.push_back(random_vector(random, c.query_exponent - random.below(4),
                                      i % 3 == 2 ? c.query_spread : std::min(c.query_spread, 2), c.largest));
      for (int d = 0; d < kDim; ++d)
        q.push_back(check::bf16_bits(static_cast<float>(
            std::ldexp(check::e2m1_value(queries.back().code[d]), queries.back().exponent[d / 32]))));
      weights.push_back(check::bf16_bits(static_cast<float>(random.normal() * c.weight)));
      if (random.below(20) == 0) weights.back() = 0;
    }
  }

  // Scores by definition.
  std::vector<std::vector<double>> scores(n);
  for (int i = 0; i < n; ++i) {
    for (int g = 0; g < c.visible[i]; ++g) {
      const Vector& k = keys[sequence[i]][g];
      double chain[4] = {};
      for (int h = 0; h < c.heads; ++h) {
        const Vector& x = queries[i * c.heads + h];
        double dot = 0;
        for (int b = 0; b < kGroups; ++b) {
          int sum = 0;
          for (int d = 32 * b; d < 32 * b + 32; ++d) sum += k.twice[d] * x.twice[d];
          dot += std::ldexp(static_cast<double>(sum), x.exponent[b] + k.exponent[b] - 127 - 2);
        }
        const double rounded = bf16_of(std::max(0.0f, static_cast<float>(dot)));
        chain[h % 4] = bf16_of(rounded * check::bf16_value(weights[i * c.heads + h]) + chain[h % 4]);
      }
      scores[i].push_back(bf16_of(bf16_of(chain[0] + chain[2]) + bf16_of(chain[1] + chain[3])));
    }
  }

  check::Device<SequenceRows> d_sequences(sequences);
  check::Device<int32_t> d_positions(positions), d_sequence(sequence), d_blocks(blocks),
      d_selected(static_cast<size_t>(n) * c.topk), d_kept(static_cast<size_t>(n) * c.candidate_blocks),
      d_again(static_cast<size_t>(n) * c.topk);
  check::Device<uint8_t> d_pages(pages);
  check::Device<uint16_t> d_q(q), d_weights(weights), d_keys(static_cast<size_t>(n) * columns),
      d_maxima(static_cast<size_t>(n) * columns);
  check::Device<float> d_scores(static_cast<size_t>(n) * columns);
  ScoreArguments a{};
  a.v.sequences = d_sequences.p, a.v.positions = d_positions.p, a.v.sequence = d_sequence.p, a.v.blocks = d_blocks.p;
  a.q = reinterpret_cast<const bf16*>(d_q.p), a.weights = reinterpret_cast<const bf16*>(d_weights.p);
  a.pages = reinterpret_cast<const std::byte*>(d_pages.p);
  a.keys = d_keys.p, a.maxima = d_maxima.p;
  a.selected = d_selected.p, a.kept = d_kept.p;
  a.page_stride = stride, a.key_offset = key_offset, a.key_scale_offset = key_offset + scale_at;
  a.columns = a.maxima_columns = a.score_columns = columns;
  a.page_shift = c.ratio == 1 ? 7 : 6, a.key_data_bytes = 64, a.key_scale_bytes = 4, a.heads = c.heads,
  a.ratio = c.ratio, a.topk = c.topk, a.candidate_blocks = c.candidate_blocks, a.candidate_size = c.candidate_size;
  while (1 << a.candidate_shift < c.candidate_size) ++a.candidate_shift;
  CHECK(select_wide_fits(a), "%s: the kernel refuses this shape", c.name);

  for (int ctas : {8, 4, 2, 1, 0}) {  // 0: more rows than multiprocessors
    for (bool keep : {true, false}) {
      a.scores = keep ? d_scores.p : nullptr;
      a.selected = d_selected.p, a.kept = d_kept.p, a.candidates = nullptr;
      d_selected.poison(), d_kept.poison(), d_scores.poison(), d_again.poison();
      // Rows in two launches, as when there is not room for all keys.
      const int half = n > 3 ? n / 2 : n;
      select_wide(a, half, ctas * half, nullptr);
      ScoreArguments rest = a;
      rest.first_row = half;
      if (half < n) select_wide(rest, n - half, ctas * (n - half), nullptr);
      ScoreArguments filtered = a;
      filtered.candidates = d_kept.p, filtered.kept = nullptr, filtered.selected = d_again.p, filtered.scores = nullptr;
      select_wide(filtered, n, ctas * n, nullptr);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaDeviceSynchronize());
      const std::vector<int32_t> selected = d_selected.get(), kept = d_kept.get(), again = d_again.get();
      const std::vector<float> got_scores = d_scores.get();
      int wrong_scores = 0, wrong_selected = 0, wrong_kept = 0, wrong_again = 0;
      for (int i = 0; i < n; ++i) {
        std::vector<uint32_t> all, maxima, candidates;
        std::vector<int> index;
        for (int g = 0; g < c.visible[i]; ++g) {
          all.push_back(key_of(scores[i][g]));
          if (keep && key_of(got_scores[static_cast<size_t>(i) * columns + g]) != all.back() && ++wrong_scores < 4)
            std::printf("  row %d entry %d: %g, wanted %g\n", i, g, got_scores[static_cast<size_t>(i) * columns + g],
                        scores[i][g]);
          if (g % c.candidate_size == 0) maxima.push_back(0);
          maxima.back() = std::max(maxima.back(), std::min(all.back(), 0xff7fu));
        }
        if (!maxima.empty()) maxima.back() = 0xff80;
        const auto compare = [&](const std::vector<int>& want, const int32_t* got, int columns_of) {
          int wrong = 0;
          for (int k = 0; k < columns_of; ++k) wrong += got[k] != (k < static_cast<int>(want.size()) ? want[k] : -1);
          return wrong;
        };
        const std::vector<int> blocks_kept = best(maxima, c.candidate_blocks);
        const bool filter = static_cast<int>(maxima.size()) > c.candidate_blocks;
        for (int b : blocks_kept) {
          for (int g = b * c.candidate_size; g < std::min((b + 1) * c.candidate_size, c.visible[i]); ++g)
            candidates.push_back(all[g]), index.push_back(g);
        }
        std::vector<int> want = best(candidates, c.topk);
        for (int& g : want) g = index[g];
        wrong_selected += compare(best(all, c.topk), &selected[static_cast<size_t>(i) * c.topk], c.topk);
        wrong_kept += filter
                          ? compare(blocks_kept, &kept[static_cast<size_t>(i) * c.candidate_blocks], c.candidate_blocks)
                          : kept[static_cast<size_t>(i) * c.candidate_blocks] != -1;
        wrong_again += compare(want, &again[static_cast<size_t>(i) * c.topk], c.topk);
      }
      CHECK(wrong_scores == 0, "%s, %d CTAs: %d scores are wrong", c.name, ctas, wrong_scores);
      CHECK(wrong_selected == 0, "%s, %d CTAs: %d selected entries are wrong", c.name, ctas, wrong_selected);
      CHECK(wrong_kept == 0, "%s, %d CTAs: %d candidate blocks are wrong", c.name, ctas, wrong_kept);
      CHECK(wrong_again == 0, "%s, %d CTAs: %d entries of candidate blocks are wrong", c.name, ctas, wrong_again);
    }
  }
  std::printf("%s: %d rows of up to %d entries\n", c.name, n, longest);
}

}  // namespace

int main() {
  if (!check::device_or_skip()) return 0;
  const std::vector<int> lengths{1,   2,    7,    8,    9,    63,   64,   65,   511,  512,  513,
                                 520, 1023, 1024, 1025, 1500, 2047, 2049, 4095, 4097, 6000, 9001};
  test({"plain", 32, 1, 512, 256, 8, lengths, 2, 2}, 1);
  test({"ratio 2", 32, 2, 512, 128, 16, lengths, 2, 2}, 2);
  test({"few heads", 21, 1, 64, 16, 8, lengths, 2, 2}, 3);
  test({"scales far apart", 32, 1, 512, 256, 8, lengths, 9, 7}, 4);
  test({"scales very far apart", 32, 1, 64, 16, 8, {9001, 700, 3000}, 60, 30}, 5);
  test({"tiny keys", 32, 1, 64, 16, 8, {9001, 700, 3000}, 40, 3, 50}, 6);
  test({"large keys", 32, 1, 64, 16, 8, {2001, 700, 3000}, 3, 3, 200, 20}, 7);
  test({"tiny weights", 32, 1, 64, 16, 8, {2001, 700, 3000}, 3, 3, 126, -60, 1e-15}, 8);
  test({"largest sums", 32, 1, 64, 16, 8, {3001, 700, 3000}, 7, 3, 126, 0, 0.1, true}, 12);
  test({"many ties", 1, 1, 512, 64, 8, {5000, 5001, 3333}, 0, 0}, 9);
  test({"long", 32, 1, 512, 2048, 8, {70001}, 2, 2}, 10);
  test({"the last part is nearly full", 32, 1, 512, 256, 8, {16050, 7990}, 2, 2}, 13);
  test({"many rows", 32, 1, 512, 64, 16, std::vector<int>(150, 1111), 1, 1}, 11);
  return check::verdict("select_test");
}
