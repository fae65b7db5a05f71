#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

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

CategoryTable build_table() {
  constexpr uint32_t kBlock = CategoryTable::kBlock;
  CategoryTable table;
  std::array<int, static_cast<size_t>(kCn) + 1> uniform;
  uniform.fill(-1);
  const Range* range = kRanges;
  const Range* const end = std::end(kRanges);
  for (uint32_t block = 0; block < table.block_of.size(); ++block) {
    const uint32_t first = block * kBlock;
    while (range + 1 < end && range[1].first <= first) ++range;
    const uint32_t next_block = static_cast<uint32_t>(table.blocks.size() / kBlock);
    const bool is_uniform = range + 1 == end || range[1].first >= first + kBlock;
    int* const shared = is_uniform ? &uniform[static_cast<size_t>(range->category)] : nullptr;
    if (shared != nullptr && *shared >= 0) {
      table.block_of[block] = static_cast<uint16_t>(*shared);
      continue;
    }
    if (shared != nullptr) *shared = static_cast<int>(next_block);
    table.block_of[block] = static_cast<uint16_t>(next_block);
    for (uint32_t c = first; c < first + kBlock; ++c) {
      while (range + 1 < end && range[1].first <= c) ++range;
      table.blocks.push_back(range->category);
    }
  }
  return table;
}

}  // namespace

const CategoryTable& category_table() {
  static const CategoryTable table = build_table();
  return table;
}

Category general_category(uint32_t code_point) {
  if (code_point >= CategoryTable::kCodePoints) return kCn;
  const CategoryTable& table = category_table();
  return table.blocks[table.index(code_point)];
}

}  // namespace deepinfer::text
