#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace deepinfer::text {
namespace {

using enum Category;

struct Range {
  uint32_t first;
  Category category;
};

constexpr Range kRanges[] = {
#include "text/unicode_ranges.inc"
};

constexpr uint32_t kCodePoints = 0x110000;
constexpr uint32_t kBlock = 128;

// Two stages: block number -> shared block of kBlock categories.
struct Table {
  std::array<uint16_t, kCodePoints / kBlock> stage1;
  std::vector<Category> stage2;
};

Table build_table() {
  Table table;
  std::array<int, static_cast<size_t>(kCn) + 1> uniform;
  uniform.fill(-1);
  const Range* range = kRanges;
  const Range* const end = std::end(kRanges);
  for (uint32_t block = 0; block < table.stage1.size(); ++block) {
    const uint32_t first = block * kBlock;
    while (range + 1 < end && range[1].first <= first) ++range;
    const uint32_t next_block = static_cast<uint32_t>(table.stage2.size() / kBlock);
    const bool is_uniform = range + 1 == end || range[1].first >= first + kBlock;
    int* const shared = is_uniform ? &uniform[static_cast<size_t>(range->category)] : nullptr;
    if (shared != nullptr && *shared >= 0) {
      table.stage1[block] = static_cast<uint16_t>(*shared);
      continue;
    }
    if (shared != nullptr) *shared = static_cast<int>(next_block);
    table.stage1[block] = static_cast<uint16_t>(next_block);
    for (uint32_t c = first; c < first + kBlock; ++c) {
      while (range + 1 < end && range[1].first <= c) ++range;
      table.stage2.push_back(range->category);
    }
  }
  return table;
}

}  // namespace

Category general_category(uint32_t code_point) {
  static const Table table = build_table();
  if (code_point >= kCodePoints) return kCn;
  return table.stage2[table.stage1[code_point / kBlock] * kBlock + code_point % kBlock];
}

}  // namespace deepinfer::text
