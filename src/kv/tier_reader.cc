#include "kv/tier_reader.h"

#include <algorithm>
#include <array>

#include "kv/record.h"

namespace deepinfer::kv {

TierReader::~TierReader() {
  for (const Get& g : gets_) {
    if (g.busy) tier_.cancel(g.ticket);
  }
}

bool TierReader::fetch(const BlockKey& key, std::span<const int32_t> tokens, double now_s, const PutInfo& who,
                       size_t bytes) {
  const auto free = std::ranges::find(gets_, false, &Get::busy);
  if (free == gets_.end() || static_cast<int>(tokens.size()) != options_.block_tokens) {
    ++counters_.refused;
    return false;
  }
  Get& g = *free;
  g.busy = true;
  g.key = key;
  g.started_s = now_s;
  g.tokens.assign(tokens.begin(), tokens.end());
  g.page_bytes = bytes > 0 ? bytes : options_.page_bytes;
  if (g.buffer.use_count() != 1) g.buffer = std::make_shared<RecordBytes>();
  g.buffer->resize(record_bytes(tokens.size(), g.page_bytes));
  g.ticket = tier_.get_lending(key, *g.buffer, who);
  ++in_flight_;
  return true;
}

void TierReader::finish(Get& g, const Tier::Completion& done, const std::function<void(const Arrived&)>& arrived) {
  Arrived a{.key = g.key};
  if (done.status.ok()) {
    const RecordBytes& record = done.lent != nullptr ? *done.lent : *g.buffer;
    const Result<std::span<const std::byte>> page =
        open_record(std::span<const std::byte>(record).first(std::min(done.bytes, record.size())), g.key, g.tokens,
                    done.checked);
    a.ok = page.ok() && page.value().size() == g.page_bytes;
    if (a.ok) {
      a.page = page.value();
      a.owner = g.buffer;
      if (done.lent != nullptr) a.owner = done.lent;
    }
    ++(a.ok ? counters_.hits : counters_.damaged);
  } else {
    ++(done.status.code() == Code::kNotFound           ? counters_.missing
       : done.status.code() == Code::kDeadlineExceeded ? counters_.late
                                                       : counters_.errors);
  }
  arrived(a);  // before the buffer may be used again
  g.busy = false;
  if (g.page_bytes > options_.page_bytes) g.buffer.reset();  // rare ones, many times as large
  --in_flight_;
}

void TierReader::poll(double now_s, const std::function<void(const Arrived&)>& arrived) {
  std::array<Tier::Completion, 32> done;
  for (size_t n = tier_.poll(done); n > 0; n = tier_.poll(done)) {
    for (size_t i = 0; i < n; ++i) {
      const auto get = std::ranges::find_if(gets_, [&](const Get& g) { return g.busy && g.ticket == done[i].ticket; });
      if (get != gets_.end()) finish(*get, done[i], arrived);
      else if (options_.on_other) options_.on_other(done[i]);
    }
    if (n < done.size()) break;
  }
  for (Get& g : gets_) {
    if (!g.busy || now_s - g.started_s < options_.timeout_s) continue;
    tier_.cancel(g.ticket);
    finish(g, {.ticket = g.ticket, .status = make_error(Code::kDeadlineExceeded, "the tier did not answer in time")},
           arrived);
  }
}

}  // namespace deepinfer::kv
