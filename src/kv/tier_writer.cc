#include "kv/tier_writer.h"

#include <algorithm>
#include <atomic>

#include "kv/record.h"

namespace deepinfer::kv {

TierWriter::~TierWriter() {
  for (const Put& p : puts_) {
    if (p.busy) tier_.cancel(p.ticket);
  }
}

bool TierWriter::write(const BlockKey& key, std::span<const int32_t> tokens, std::span<const std::byte> page,
                       const PutInfo& info) {
  const auto free = std::ranges::find(puts_, false, &Put::busy);
  const bool known = page.size() == options_.page_bytes || page.size() == options_.windows_bytes;
  if (free == puts_.end() || page.empty() || !known) {
    ++counters_.refused;
    return false;
  }
  Put& p = *free;
  const size_t bytes = record_bytes(tokens.size(), page.size());
  if (p.record.use_count() != 1 || p.record->size() > bytes) p.record = std::make_shared<RecordBytes>();
  std::atomic_thread_fence(std::memory_order_acquire);  // behind the last use of a tier's thread
  p.record->resize(bytes);
  seal_record(key, tokens, page, *p.record);
  p.busy = true;
  p.ticket = tier_.put_owned(key, p.record, info);
  ++in_flight_;
  return true;
}

bool TierWriter::completed(const Tier::Completion& done) {
  const auto put = std::ranges::find_if(puts_, [&](const Put& p) { return p.busy && p.ticket == done.ticket; });
  if (put == puts_.end()) return false;
  ++(done.status.ok() ? counters_.written : counters_.failed);
  put->busy = false;
  --in_flight_;
  return true;
}

}  // namespace deepinfer::kv
