#include "checkpoint/store/store_stats.h"

#include <fmt/format.h>

#include "base/format.h"

namespace deepinfer::checkpoint {

std::string to_string(const StoreStats& s, int64_t tokens) {
  const auto share = [](double rate) { return fmt::format("{:.0f}%", 100 * rate); };
  std::string text =
      fmt::format("weights: {} in memory; {} of {} experts cached, {} of their uses were there",
                  format_bytes(s.resident_bytes), s.experts.slots_used, s.experts.experts, share(s.experts.hit_rate()));
  if (s.rows.lookups > 0) text += fmt::format(", {} of table rows", share(s.rows.hit_rate()));
  text += fmt::format("; {} read from the SSD", format_bytes(s.bytes_read));
  if (tokens > 0)
    text +=
        fmt::format(", {} of experts a token", format_bytes(s.experts.needed_bytes / static_cast<uint64_t>(tokens)));
  text += fmt::format("; waited {:.1f} s", s.experts.wait_s + s.rows.wait_s);
  if (const uint64_t n = s.experts.failures + s.rows.failures; n > 0) text += fmt::format("; {} reads failed", n);
  return text;
}

}  // namespace deepinfer::checkpoint
