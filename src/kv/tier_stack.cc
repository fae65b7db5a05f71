#include "kv/tier_stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kv/record.h"

namespace deepinfer::kv {
TierStack::TierStack(std::vector<std::shared_ptr<Tier>> levels, TierStackOptions options)
    : options_(std::move(options)), levels_(std::move(levels)), published_(levels_.size()), ours_(levels_.size()),
      failed_puts_(levels_.size()) {
  for (size_t i = 0; i < levels_.size(); ++i) published_[i].name = levels_[i]->name();
}

TierStack::~TierStack() {
  for (const auto& [ticket, get] : gets_) levels_[get.level]->cancel(get.below);
}

double TierStack::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<TierCount>* TierStack::counts_of(const PutInfo& who) {
  counted_ = true;
  std::pair<uint64_t, Traffic> of(who.space, who.traffic);
  if (counts_.size() >= kSpacesCounted && !counts_.contains(of)) of.first = 0;
  std::vector<TierCount>& c = counts_[of];
  for (size_t i = c.size(); i < levels_.size(); ++i)
    c.push_back({.tier = levels_[i]->name(), .space = of.first, .traffic = of.second});
  return &c;
}

std::vector<TierCount> TierStack::counts() const {
  std::vector<TierCount> all;
  for (size_t level = 0; level < levels_.size(); ++level) {
    for (const auto& [of, counts] : counts_) all.push_back(counts[level]);
  }
  return all;
}

TierCount TierStack::level_count(size_t level) const {
  TierCount sum{.tier = levels_[level]->name()};
  for (const auto& [of, counts] : counts_) {
    const TierCount& c = counts[level];
    sum.gets += c.gets;
    sum.hits += c.hits;
    sum.damaged += c.damaged;
    sum.late += c.late;
    sum.errors += c.errors;
    sum.puts += c.puts;
    sum.put_failures += c.put_failures;
    sum.read_bytes += c.read_bytes;
    sum.written_bytes += c.written_bytes;
    sum.read_seconds += c.read_seconds;
    for (size_t i = 0; i < sum.latency.size(); ++i) sum.latency[i] += c.latency[i];
  }
  return sum;
}

void TierStack::ask(Ticket ticket, Get& get) {
  get.asked_s = now();
  Tier& level = *levels_[get.level];
  get.below = get.lending ? level.get_lending(get.key, get.into, get.who) : level.get(get.key, get.into);
  ours_[get.level][get.below] = ticket;
  ++(*get.counts)[get.level].gets;
}

Tier::Ticket TierStack::start_get(Get get) {
  const Ticket ticket = ++last_;
  if (levels_.empty()) {
    completions_.push_back({ticket, Status(Code::kNotFound, "there is no tier"), 0});
    return ticket;
  }
  ask(ticket, gets_[ticket] = std::move(get));
  return ticket;
}

// Level after level, each from where the others end.
Tier::Known TierStack::known_prefix(std::span<const BlockKey> keys) const {
  Known known{.all = true};
  for (bool more = true; more && known.keys < keys.size();) {
    more = false;
    known.all = true;
    for (const std::shared_ptr<Tier>& level : levels_) {
      const Known here = level->known_prefix(keys.subspan(known.keys));
      known.keys += here.keys;
      known.all = known.all && here.all;
      more = more || here.keys > 0;
    }
  }
  known.all = known.all || known.keys == keys.size();
  return known;
}

Tier::Ticket TierStack::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  return put_to(levels_.size(), record.size(), info, false, [&](Tier& t) { return t.put(key, record, info); });
}

Tier::Ticket TierStack::put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record,
                                  const PutInfo& info) {
  return put_to(levels_.size(), record->size(), info, false, [&](Tier& t) { return t.put_owned(key, record, info); });
}

Tier::Ticket TierStack::put_to(size_t levels, size_t bytes, const PutInfo& info, bool silent, const PutLevel& put) {
  const Ticket ticket = ++last_;
  if (levels == 0 || static_cast<int>(puts_.size()) >= options_.puts_max) {
    if (!silent)
      completions_.push_back({ticket, Status(Code::kResourceExhausted, "too many writes are on their way"), 0});
    return ticket;
  }
  std::vector<TierCount>* counts = counts_of(info);
  puts_[ticket] = {.open = static_cast<int>(levels), .silent = silent, .begun_s = now(), .bytes = bytes,
                   .counts = counts};
  for (size_t i = 0; i < levels; ++i) {
    ours_[i][put(*levels_[i])] = ticket;
    ++(*counts)[i].puts;
  }
  return ticket;
}

void TierStack::erase(const BlockKey& key) {
  for (const std::shared_ptr<Tier>& level : levels_) level->erase(key);
}

void TierStack::end_get(Ticket ticket, Completion done) {
  gets_.erase(ticket);
  done.ticket = ticket;
  done.checked = done.status.ok();
  completions_.push_back(std::move(done));
}

void TierStack::get_answered(size_t level, Ticket ticket, Get& get, const Completion& done) {
  TierCount& s = (*get.counts)[level];
  const std::span<const std::byte> record = done.lent != nullptr
                                                ? std::span<const std::byte>(*done.lent)
                                                : get.into.first(std::min(done.bytes, get.into.size()));
  const bool whole = done.status.ok() && (done.checked || record_is_whole(record));
  if (whole) {
    ++s.hits;
    s.read_bytes += done.bytes;
    const double took_s = now() - get.asked_s;
    s.read_seconds += took_s;
    const auto& ends = TierCount::kLatencies;
    ++s.latency[static_cast<size_t>(std::ranges::lower_bound(ends, took_s) - ends.begin())];
    if (level > 0) {
      put_to(level, record.size(), done.info, true, [&](Tier& t) { return t.put(get.key, record, done.info); });
    }
    return end_get(ticket, done);
  }
  if (done.status.ok()) {
    ++s.damaged;
    levels_[level]->erase(get.key);
  } else if (done.status.code() == Code::kDeadlineExceeded) {
    ++s.late;
  } else if (done.status.code() != Code::kNotFound) {
    ++s.errors;
  }
  if (level + 1 == levels_.size())
    return end_get(ticket, {.status = Status(Code::kNotFound, "no tier has the record")});
  ++get.level;
  ask(ticket, get);
}

void TierStack::put_answered(size_t level, Put& put, const Status& status) {
  TierCount& count = (*put.counts)[level];
  if (status.ok()) {
    put.ok = true;
    count.written_bytes += put.bytes;
    failed_puts_[level] = 0;
    return;
  }
  ++count.put_failures;
  put.status = status;
  failed_puts_[level] = std::min(failed_puts_[level] + 1, kFailuresTold + 1);
  if (failed_puts_[level] == kFailuresTold && options_.on_trouble) {
    options_.on_trouble(fmt::format("The last {} writes of computed prompts to the tier \"{}\" failed: {}",
                                    kFailuresTold, levels_[level]->name(), status.message()));
  }
}

void TierStack::level_answered(size_t level, const Completion& done) {
  const auto at = ours_[level].find(done.ticket);
  if (at == ours_[level].end()) return;  // given up meanwhile
  const Ticket ticket = at->second;
  ours_[level].erase(at);
  counted_ = true;
  if (const auto get = gets_.find(ticket); get != gets_.end()) return get_answered(level, ticket, get->second, done);
  const auto put = puts_.find(ticket);
  if (put == puts_.end()) return;
  Put& p = put->second;
  put_answered(level, p, done.status);
  if (--p.open > 0) return;
  if (!p.silent) completions_.push_back({ticket, p.ok ? Status() : p.status, 0});
  puts_.erase(put);
}

// Gets move on to the next level; of puts only the answer is given up, the level may still finish it.
void TierStack::give_up_late(double now_s) {
  std::vector<Ticket> late;
  for (const auto& [ticket, get] : gets_) {
    if (now_s - get.asked_s > options_.level_timeout_s) late.push_back(ticket);
  }
  std::ranges::sort(late);
  counted_ |= !late.empty();
  for (const Ticket ticket : late) {
    Get& get = gets_.at(ticket);
    levels_[get.level]->cancel(get.below);
    ours_[get.level].erase(get.below);
    get_answered(get.level, ticket, get, {get.below, Status(Code::kDeadlineExceeded, "the tier is slow"), 0});
  }
  late.clear();
  for (const auto& [ticket, put] : puts_) {
    if (now_s - put.begun_s > options_.level_timeout_s) late.push_back(ticket);
  }
  if (late.empty()) return;
  counted_ = true;
  std::ranges::sort(late);
  const Status slow = make_error(Code::kDeadlineExceeded, "no answer within {} s", options_.level_timeout_s);
  for (size_t level = 0; level < levels_.size(); ++level) {
    std::erase_if(ours_[level], [&](const auto& open) {
      if (!std::ranges::binary_search(late, open.second)) return false;
      put_answered(level, puts_.at(open.second), slow);
      return true;
    });
  }
  for (const Ticket ticket : late) {
    const Put& p = puts_.at(ticket);
    if (!p.silent) completions_.push_back({ticket, p.ok ? Status() : slow, 0});
    puts_.erase(ticket);
  }
}

// Never waits: what a reader holds up comes with a later poll.
void TierStack::publish() {
  if (!counted_) return;
  const std::unique_lock<std::mutex> lock(published_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  counted_ = false;
  for (size_t i = 0; i < levels_.size(); ++i) {
    const TierCount c = level_count(i);
    published_[i] = {c.tier, c.gets, c.hits, c.damaged, c.late, c.errors, c.puts, c.put_failures, c.read_bytes,
                     c.written_bytes, c.read_seconds};
  }
}

std::vector<TierLevelStats> TierStack::published() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

size_t TierStack::poll(std::span<Completion> done) {
  std::array<Completion, 64> answers;
  bool more = false;
  for (size_t level = 0; level < levels_.size(); ++level) {
    const size_t n = levels_[level]->poll(answers);
    more |= n == answers.size();
    for (size_t i = 0; i < n; ++i) level_answered(level, answers[i]);
  }
  if (!more) give_up_late(now());  // else what seems late may be among the answers to come
  publish();
  size_t n = 0;
  for (; n < done.size() && !completions_.empty(); completions_.pop_front())
    done[n++] = std::move(completions_.front());
  return n;
}

void TierStack::cancel(Ticket ticket) {
  if (const auto get = gets_.find(ticket); get != gets_.end()) {
    levels_[get->second.level]->cancel(get->second.below);
    ours_[get->second.level].erase(get->second.below);
    gets_.erase(get);
  }
  if (const auto put = puts_.find(ticket); put != puts_.end()) put->second.silent = true;
  std::erase_if(completions_, [ticket](const Completion& c) { return c.ticket == ticket; });
}

}  // namespace deepinfer::kv
