#include "kv/peer_tier.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "kv/peer_tier_impl.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr size_t kSparesMax = 128, kSpareBytesMax = 16u << 20;

Result<std::pair<std::string, std::string>> split_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  const char* begin = text.data() + (colon == std::string::npos ? text.size() : colon + 1);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), port);
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || error != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535)
    return make_error(Code::kInvalidArgument, "\"{}\" is no HOST:PORT of a KV server.", text);
  return std::pair(host, std::to_string(port));
}

Status resolve(PeerMember& m) {
  DI_ASSIGN_OR_RETURN(const auto address, split_address(m.name));
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.first.c_str(), address.second.c_str(), &hints, &found) != 0 || found == nullptr)
    return make_error(Code::kInvalidArgument, "The KV server {} has a name that nobody knows.", m.name);
  std::memcpy(&m.address, found->ai_addr, found->ai_addrlen);
  m.address_size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return Status();
}

}  // namespace

size_t peer_of(std::span<const std::string> members, const BlockKey& key) {
  size_t best = 0;
  uint64_t best_hash = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::array<uint64_t, 3> words = [&] {
      std::array<uint64_t, 3> w;
      std::memcpy(w.data(), key.bytes.data(), 16);
      w[2] = kv_checksum(std::as_bytes(std::span(members[i])));
      return w;
    }();
    const uint64_t hash = kv_checksum(std::as_bytes(std::span(words)));
    if (i > 0 && (hash < best_hash || (hash == best_hash && members[i] > members[best]))) continue;
    best = i;
    best_hash = hash;
  }
  return best;
}

// ---- callers --------------------------------------------------------------------------------------------------------

Result<PeerTierOptions> PeerTier::parse(const std::string& url) {
  PeerTierOptions o;
  constexpr std::string_view kScheme = "kvstore://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : std::string();
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    o.members.push_back(rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    DI_RETURN_IF_ERROR(split_address(o.members.back()).status());
    if (std::ranges::count(o.members, o.members.back()) > 1)
      return make_error(Code::kInvalidArgument, "{} is named twice in {}.", o.members.back(), url);
  }
  if (o.members.empty())
    return make_error(Code::kInvalidArgument, "\"{}\" names no KV server; give kvstore://HOST:PORT,HOST:PORT.", url);
  return o;
}

Result<std::unique_ptr<PeerTier>> PeerTier::open(const PeerTierOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  impl->names = options.members;
  for (const std::string& name : options.members) {
    auto m = std::make_unique<PeerMember>();
    m->name = m->stats.name = name;
    DI_RETURN_IF_ERROR(resolve(*m));
    impl->members.push_back(std::move(m));
  }
  impl->epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  impl->wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event e = {.events = EPOLLIN, .data = {.u64 = 0}};
  if (impl->epoll_fd < 0 || impl->wake_fd < 0 || ::epoll_ctl(impl->epoll_fd, EPOLL_CTL_ADD, impl->wake_fd, &e) != 0)
    return make_error(Code::kIo, "The client of KV servers gets no descriptors: {}.", std::strerror(errno));
  Impl* raw = impl.get();
  impl->thread = std::thread([raw] { raw->loop(); });
  return std::unique_ptr<PeerTier>(new PeerTier(std::move(impl)));
}

PeerTier::PeerTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerTier::~PeerTier() = default;

Tier::Ticket PeerTier::get(const BlockKey& key, std::span<std::byte> into) {
  const size_t i = peer_of(impl_->names, key);
  const double t = peer_clock();
  const std::lock_guard lock(impl_->mutex);
  PeerMember& m = *impl_->members[i];
  const Ticket ticket = ++impl_->last;
  ++m.stats.gets;
  if (!impl_->usable(m, t)) {
    impl_->complete(ticket, Status(Code::kUnavailable, "the KV server is away"));
    return ticket;
  }
  impl_->gets[ticket] = {.key = key, .into = into, .member = i, .until_s = t + impl_->options.timeout_s};
  m.new_gets.push_back({key, ticket});
  impl_->wake();
  return ticket;
}

// Under the mutex.
Tier::Ticket PeerTier::Impl::refuse_put(PeerMember& m, double now_s, size_t bytes) {
  const bool away = !usable(m, now_s);
  if (!away && bytes <= kPeerBodyMax && m.queued_bytes + bytes <= options.queue_bytes_max) return 0;
  ++m.stats.puts;
  ++m.stats.refused;
  complete(++last, away ? Status(Code::kUnavailable, "the KV server is away")
                        : Status(Code::kResourceExhausted, "too many writes wait for the KV server"));
  return last;
}

// Under the mutex.
Tier::Ticket PeerTier::Impl::add_put(size_t i, const BlockKey& key, std::shared_ptr<const PeerBytes> body,
                                     const PutInfo& info) {
  PeerMember& m = *members[i];
  if (const Ticket refused = refuse_put(m, peer_clock(), body->size()); refused != 0) return refused;
  ++m.stats.puts;
  m.queued_bytes += body->size();
  puts[++last] = {.member = i, .bytes = body->size()};
  m.new_frames.push_back({PeerHeader{.op = PeerOp::kPut,
                                     .id = last,
                                     .key = key,
                                     .space = info.space,
                                     .ttl_s = static_cast<uint32_t>(std::clamp(info.ttl_s, 1.0, 4e9))},
                          std::move(body)});
  wake();
  return last;
}

Tier::Ticket PeerTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  const size_t i = peer_of(impl_->names, key);
  std::shared_ptr<PeerBytes> body;
  {
    const std::lock_guard lock(impl_->mutex);
    const Ticket refused = impl_->refuse_put(*impl_->members[i], peer_clock(), record.size());
    if (refused != 0) return refused;
    // A buffer that has been sent.
    const auto spare = std::ranges::find_if(impl_->spares, [](const auto& b) { return b.use_count() == 1; });
    if (spare != impl_->spares.end()) {
      body = std::move(*spare);
      impl_->spare_bytes -= body->capacity();
      impl_->spares.erase(spare);
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // behind the last use of who sent it
  }
  if (!body) body = std::make_shared<PeerBytes>();
  body->assign(record.begin(), record.end());
  const std::lock_guard lock(impl_->mutex);
  if (impl_->spares.size() < kSparesMax && impl_->spare_bytes + body->capacity() <= kSpareBytesMax) {
    impl_->spares.push_back(body);
    impl_->spare_bytes += body->capacity();
  }
  return impl_->add_put(i, key, std::move(body), info);
}

Tier::Ticket PeerTier::put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record, const PutInfo& info) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->add_put(peer_of(impl_->names, key), key, std::move(record), info);
}

void PeerTier::erase(const BlockKey& key) {
  const std::lock_guard lock(impl_->mutex);
  PeerMember& m = *impl_->members[peer_of(impl_->names, key)];
  if (!impl_->usable(m, peer_clock())) return;
  const PeerKey one{.key = key};
  m.new_frames.push_back({PeerHeader{.op = PeerOp::kErase, .id = ++impl_->last, .count = 1},
                          std::make_shared<PeerBytes>(encode_peer_keys(std::span(&one, 1), false))});
  impl_->wake();
}

size_t PeerTier::poll(std::span<Completion> done) {
  const std::lock_guard lock(impl_->mutex);
  size_t n = 0;
  for (; n < done.size() && !impl_->completions.empty(); impl_->completions.pop_front())
    done[n++] = std::move(impl_->completions.front());
  return n;
}

void PeerTier::cancel(Ticket ticket) {
  const std::lock_guard copying(impl_->copy_mutex);
  const std::lock_guard lock(impl_->mutex);
  if (const auto at = impl_->gets.find(ticket); at != impl_->gets.end()) {
    PeerMember& m = *impl_->members[at->second.member];
    if (m.receiver && m.receiver->receiving(ticket)) m.receiver->discard();
    impl_->gets.erase(at);
  }
  if (const auto at = impl_->puts.find(ticket); at != impl_->puts.end()) at->second.silent = true;
  std::erase_if(impl_->completions, [ticket](const Completion& c) { return c.ticket == ticket; });
}

std::vector<Result<PeerBytes>> PeerTier::Impl::ask_all(double timeout_s, const Ask& question) {
  // Lives as long as any answer may come.
  struct Answers {
    std::mutex mutex;
    std::condition_variable changed;
    size_t open = 0;
    std::vector<Result<PeerBytes>> of;
  };
  const auto answers = std::make_shared<Answers>();
  answers->of.assign(members.size(), Status(Code::kUnavailable, "it does not answer"));
  {
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < members.size(); ++i) {
      auto q = question(i);
      if (!q) continue;
      ++answers->open;
      q->first.id = ++last;
      questions[q->first.id] = {.done =
                                    [answers, i](Result<PeerBytes> r) {
                                      const std::lock_guard inner(answers->mutex);
                                      answers->of[i] = std::move(r);
                                      --answers->open;
                                      answers->changed.notify_all();
                                    },
                                .until_s = peer_clock() + timeout_s};
      members[i]->new_frames.push_back(std::move(*q));
    }
    wake();
  }
  std::unique_lock lock(answers->mutex);
  answers->changed.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return answers->open == 0; });
  return answers->of;
}

std::vector<std::pair<std::string, Result<std::string>>> PeerTier::describe(double timeout_s) {
  const auto answers =
      impl_->ask_all(timeout_s, [](size_t) { return std::optional(Impl::Question{{.op = PeerOp::kStat}, nullptr}); });
  std::vector<std::pair<std::string, Result<std::string>>> out;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Result<PeerBytes>& r = answers[i];
    const auto text = [](const PeerBytes& b) { return std::string(reinterpret_cast<const char*>(b.data()), b.size()); };
    out.emplace_back(impl_->names[i], r.ok() ? Result<std::string>(text(r.value())) : Result<std::string>(r.status()));
  }
  return out;
}

size_t PeerTier::count_prefix(std::span<const BlockKey> keys, double timeout_s) {
  std::vector<std::vector<PeerKey>> asked(impl_->members.size());
  std::vector<size_t> member_of;
  for (const BlockKey& key : keys) {
    member_of.push_back(peer_of(impl_->names, key));
    asked[member_of.back()].push_back({.key = key});
  }
  const double t = peer_clock();
  const auto answers = impl_->ask_all(timeout_s, [&](size_t i) -> std::optional<Impl::Question> {
    const std::vector<PeerKey>& a = asked[i];
    if (a.empty() || a.size() > kPeerKeysMax || !impl_->usable(*impl_->members[i], t)) return std::nullopt;
    return Impl::Question{{.op = PeerOp::kExists, .count = static_cast<uint32_t>(a.size())},
                          std::make_shared<PeerBytes>(encode_peer_keys(a, false))};
  });
  std::vector<size_t> next(answers.size(), 0);
  for (size_t k = 0; k < keys.size(); ++k) {
    const size_t i = member_of[k], at = next[i]++;
    const Result<PeerBytes>& r = answers[i];
    if (!r.ok() || at >= r.value().size() || r.value()[at] != std::byte{1}) return k;
  }
  return keys.size();
}

Status PeerTier::purge(uint64_t space, double timeout_s) {
  const auto answers = impl_->ask_all(timeout_s, [space](size_t) {
    return std::optional(Impl::Question{{.op = PeerOp::kPurge, .space = space}, nullptr});
  });
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) return answers[i].status().with_context(impl_->names[i]);
  }
  return Status();
}

Status PeerTier::wait_connected(double timeout_s, bool first_try) {
  std::unique_lock lock(impl_->mutex);
  const auto up = [this] {
    return std::ranges::any_of(impl_->members, [](const auto& m) { return m->stats.connected; });
  };
  const auto tried = [&] {
    return up() || (first_try && std::ranges::none_of(impl_->members, [](const auto& m) { return m->trouble.ok(); }));
  };
  impl_->wake();
  impl_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s), tried);
  if (up()) return Status();
  for (const auto& m : impl_->members) {
    if (!m->trouble.ok())
      return Status(m->trouble.code(), fmt::format("No KV server answers: {}.", m->trouble.message()));
  }
  return Status(Code::kUnavailable, "No KV server answers.");
}

std::vector<PeerMemberStats> PeerTier::stats() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<PeerMemberStats> out;
  for (const auto& m : impl_->members) {
    out.push_back(m->stats);
    out.back().away = peer_clock() < m->away_until;
  }
  return out;
}

}  // namespace deepinfer::kv
