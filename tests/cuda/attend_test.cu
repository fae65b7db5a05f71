// The attention core for head_dim 512: against double sums on the CPU over windows and selections of many lengths,
// extreme records included, and bit-equal over the numbers of rows that decide which kernel takes them and how many
// CTAs share a row; attend_many() alone as well, with more rows than its clusters take at a time.
#include <cmath>
#include <cstring>

#include "ops/cuda/attend.cuh"
#include "tests/cuda/check.h"
#include "tests/cuda/codes.h"

using namespace deepinfer::ops;
using namespace deepinfer::ops::cuda;

namespace {

constexpr int kDim = kWideDim, kWindow = 128, kRing = 128, kTopk = 512, kPageEntries = 128,
              kRecordBytes = kDim + kDim / 32, kEntryBytes = kDim / 2 + kDim / 16;

// kPlain: moderate values. kLarge: the largest codes and scales, scores of hundreds. kTiny: the smallest scales, zeros
// among the codes.
enum class Kind { kPlain, kLarge, kTiny };

void fill_window(check::Random& random, Kind kind, uint8_t* record) {
  for (int c = 0; c < kDim; ++c) {
    uint8_t code = static_cast<uint8_t>(random.below(256));
    if ((code & 0x7f) == 0x7f) code = 0x7e;
    if (kind == Kind::kLarge && random.below(2)) code = static_cast<uint8_t>(0x7e | (random.below(2) << 7));
    if (kind == Kind::kTiny && random.below(2)) code = static_cast<uint8_t>(random.below(8));
    record[c] = code;
  }
  for (int g = 0; g < kDim / 32; ++g)
    record[kDim + g] = static_cast<uint8_t>(kind == Kind::kPlain   ? 119 + random.below(3)
                                            : kind == Kind::kLarge ? 127 + random.below(8)
                                                                   : 95 + random.below(10));
}
void fill_entry(check::Random& random, Kind kind, uint8_t* record) {
  for (int c = 0; c < kDim / 2; ++c) record[c] = static_cast<uint8_t>(random.below(256));
  for (int g = 0; g < kDim / 16; ++g) {
    record[kDim / 2 + g] = static_cast<uint8_t>(kind == Kind::kPlain   ? 0x28 + random.below(16)
                                                : kind == Kind::kLarge ? 0x70 + random.below(15)
                                                                       : random.below(16));
  }
}

struct Row {
  int position;  // the window holds the last positions up to it
  int entries;   // selected
};

void test(const char* name, int heads, const std::vector<Row>& rows, Kind kind, uint64_t seed, double q_scale,
          int window = kWindow, int topk = kTopk) {
  check::Random random(seed);
  const int n = static_cast<int>(rows.size()), pages_each = 40, ring = std::max(kRing, window);
  // A row a sequence: its own record is this step's, older ones lie in its ring.
  std::vector<SequenceRows> sequences(n);
  std::vector<int32_t> positions, sequence, blocks, selected(static_cast<size_t>(n) * topk, -1), image(n, -1);
  const int64_t slot_stride = ring * kRecordBytes + 64, page_stride = kPageEntries * kEntryBytes + 128;
  std::vector<uint8_t> records(static_cast<size_t>(n) * kRecordBytes), slots(n * slot_stride),
      pages(static_cast<size_t>(n) * pages_each * page_stride);
  std::vector<uint16_t> q(static_cast<size_t>(n) * heads * kDim);
  std::vector<float> sink(heads);
  for (int i = 0; i < n; ++i) {
    sequences[i] = {.slot = n - 1 - i,
                    .first_row = i,
                    .rows = 1,
                    .first_position = rows[i].position,
                    .window_begin = 0,
                    .cached = 0,
                    .first_block = i * pages_each,
                    .block_count = pages_each};
    positions.push_back(rows[i].position), sequence.push_back(i);
    for (int p = 0; p < pages_each; ++p) blocks.push_back(i * pages_each + (p * 7 + 3) % pages_each);
    fill_window(random, kind, &records[static_cast<size_t>(i) * kRecordBytes]);
    for (int r = 0; r < ring; ++r) fill_window(random, kind, &slots[i * slot_stride + 32 + r * kRecordBytes]);
    int entry = 0;
    for (int k = 0; k < rows[i].entries; ++k)
      selected[static_cast<size_t>(i) * topk + k] = entry, entry += 1 + random.below(8);
  }
  for (size_t p = 0; p < static_cast<size_t>(n) * pages_each; ++p) {
    for (int e = 0; e < kPageEntries; ++e) fill_entry(random, kind, &pages[p * page_stride + 64 + e * kEntryBytes]);
  }
  for (uint16_t& x : q) x = check::bf16_bits(static_cast<float>(random.normal() * q_scale));
  for (float& s : sink) s = static_cast<float>(random.normal());

  check::Device<SequenceRows> d_sequences(sequences);
  check::Device<int32_t> d_positions(positions), d_sequence(sequence), d_blocks(blocks), d_selected(selected),
      d_image(image);
  check::Device<uint8_t> d_records(records), d_slots(slots), d_pages(pages);
  check::Device<uint16_t> d_q(q), d_out(q.size());
  check::Device<float> d_sink(sink);
  AttendArguments a{};
  a.v.sequences = d_sequences.p, a.v.positions = d_positions.p, a.v.sequence = d_sequence.p, a.v.blocks = d_blocks.p,
  a.v.image_row = d_image.p;
  a.q = reinterpret_cast<const bf16*>(d_q.p);
  a.records = d_records.p;
  a.slots = reinterpret_cast<const std::byte*>(d_slots.p), a.pages = reinterpret_cast<const std::byte*>(d_pages.p);
  a.selected = d_selected.p, a.sink = d_sink.p, a.out = reinterpret_cast<bf16*>(d_out.p);
  a.slot_stride = slot_stride, a.ring_offset = 32, a.page_stride = page_stride, a.entry_offset = 64;
  a.heads = heads, a.window = window, a.ring_slots = ring, a.record_bytes = kRecordBytes, a.page_shift = 7,
  a.entry_bytes = kEntryBytes, a.topk = topk, a.ratio = 1;
  a.scale = 1 / std::sqrt(512.0f);

  std::vector<uint16_t> all;
  for (int turn = 0; turn < 20; ++turn) {
    constexpr int kCounts[] = {0, 1, 14, 15, 16, 33, 64, 66, 67, 70};  // 0: all
    const int count = turn % 10 == 0 ? n : kCounts[turn % 10];
    if (count > n) continue;
    d_out.poison();
    turn < 10 ? attend_wide(a, count, nullptr) : attend_many(a, count, nullptr);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint16_t> got = d_out.get();
    if (all.empty()) all = got;
    const size_t used = static_cast<size_t>(count) * heads * kDim;
    CHECK(std::memcmp(got.data(), all.data(), used * 2) == 0, "%s: %d rows differ in bits from %d", name, count, n);
    size_t touched = 0;
    for (size_t i = used; i < got.size(); ++i) touched += got[i] != 0xffff;
    CHECK(touched == 0, "%s: %d rows wrote %zu values behind their own", name, count, touched);
  }

  double worst = 0, square = 0, norm = 0;
  for (int i = 0; i < n; i += n > 12 ? n / 12 : 1) {
    std::vector<std::vector<double>> keys;
    for (int p = std::max(0, rows[i].position - window + 1); p <= rows[i].position; ++p) {
      const uint8_t* r = p == rows[i].position ? &records[static_cast<size_t>(i) * kRecordBytes]
                                               : &slots[(n - 1 - i) * slot_stride + 32 + p % ring * kRecordBytes];
      keys.emplace_back(kDim);
      for (int c = 0; c < kDim; ++c) keys.back()[c] = check::e4m3_value(r[c]) * std::ldexp(1.0, r[kDim + c / 32] - 127);
    }
    for (int k = 0; k < rows[i].entries; ++k) {
      const int e = selected[static_cast<size_t>(i) * topk + k];
      const uint8_t* r =
          &pages[blocks[i * pages_each + e / kPageEntries] * page_stride + 64 + e % kPageEntries * kEntryBytes];
      keys.emplace_back(kDim);
      for (int c = 0; c < kDim; ++c)
        keys.back()[c] = check::bf16_value(check::bf16_bits(static_cast<float>(
            check::e2m1_value(r[c / 2] >> (c % 2 * 4) & 15) * check::e4m3_value(r[kDim / 2 + c / 16]))));
    }
    for (int h = 0; h < heads; h += h == heads - 1 ? 1 : std::min(7, heads - 1 - h)) {
      const uint16_t* x = &q[(static_cast<size_t>(i) * heads + h) * kDim];
      std::vector<double> score;
      double top = -1e30, largest = 0;
      for (const auto& key : keys) {
        double s = 0, sum = 0;
        for (int c = 0; c < kDim; ++c)
          s += check::bf16_value(x[c]) * key[c], sum += std::fabs(check::bf16_value(x[c]) * key[c]);
        largest = std::max(largest, sum * a.scale);
        score.push_back(static_cast<float>(s * a.scale));
        top = std::max(top, score.back());
      }
      double den = std::exp(sink[h] - top);
      std::vector<double> out(kDim), magnitude(kDim);
      for (size_t k = 0; k < keys.size(); ++k) {
        const double p = std::exp(score[k] - top),
                     rounded_p = check::bf16_value(check::bf16_bits(static_cast<float>(p)));
        den += p;
        for (int c = 0; c < kDim; ++c)
          out[c] += rounded_p * keys[k][c], magnitude[c] += rounded_p * std::fabs(keys[k][c]);
      }
      for (int c = 0; c < kDim; ++c) {
        const double got = check::bf16_value(all[(static_cast<size_t>(i) * heads + h) * kDim + c]), want = out[c] / den;
        // A rounding of the result, and of one probability in the other direction; the error of scores by their
        // magnitudes.
        worst = std::max(worst, std::fabs(got - want) / (std::fabs(want) * 0x1p-8 +
                                                         magnitude[c] / den * (0x1p-9 + 1e-6 * largest) + 1e-30));
        square += (got - want) * (got - want), norm += want * want;
      }
    }
  }
  const double error = std::sqrt(square / (norm + 1e-300));
  CHECK(worst < 1 && error < 2.5e-3, "%s: error %.3g of the norm, worst value %.3g of its bound", name, error, worst);
  std::printf("%s: %d rows of %d heads, error %.2e of the norm, worst %.2f of its bound\n", name, n, heads, error,
              worst);
}

}  // namespace

int main() {
  if (!check::device_or_skip()) return 0;
  std::vector<Row> borders;
  for (int position : {0, 1, 4, 62, 63, 64, 127, 128, 3000}) {
    for (int entries : {0, 1, 15, 63, 64, 65, 300, 511, 512}) {
      if (entries <= position + 1) borders.push_back({position, entries});
    }
  }
  borders.push_back({200, 0});
  while (borders.size() < 70) borders.push_back({3900 + static_cast<int>(borders.size()), 512});
  test("borders", 64, borders, Kind::kPlain, 1, 1.0);
  test("large", 64, borders, Kind::kLarge, 2, 0.02);
  test("sharp", 64, borders, Kind::kPlain, 3, 30.0);
  test("tiny", 64, borders, Kind::kTiny, 4, 1.0);
  test("few heads", 8, borders, Kind::kPlain, 5, 1.0);
  test("odd heads", 70, {{500, 400}, {3000, 512}, {10, 3}}, Kind::kPlain, 6, 1.0);
  test("many rows", 64, std::vector<Row>(300, Row{4000, 512}), Kind::kPlain, 7, 1.0);
  test("long window", 64, {{3000, 448}, {149, 120}, {140, 3}, {128, 0}}, Kind::kPlain, 8, 1.0, 150, 448);
  return check::verdict("attend_test");
}
