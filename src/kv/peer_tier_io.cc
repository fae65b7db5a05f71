#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "kv/peer_tier_impl.h"

namespace deepinfer::kv {
namespace {

constexpr size_t kGetsAFrame = 256;
constexpr int kStepsATurn = 64;
constexpr double kLookS = 0.02;  // between looks for what is late

}  // namespace

PeerTier::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    ending = true;
    wake();
  }
  if (thread.joinable()) thread.join();
  for (const auto& m : members) {
    if (m->fd >= 0) ::close(m->fd);
  }
  for (const int fd : {epoll_fd, wake_fd}) {
    if (fd >= 0) ::close(fd);
  }
}

void PeerTier::Impl::wake() {
  if (!sleeping) return;
  sleeping = false;
  const uint64_t one = 1;
  (void)!::write(wake_fd, &one, sizeof one);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void PeerTier::Impl::loop() {
  std::array<epoll_event, 64> events;
  while (true) {
    start_writes();
    double wait_s = 0;
    {
      const std::lock_guard lock(mutex);
      if (ending) return;
      const bool quiet = std::ranges::all_of(
          members, [](const auto& m) { return m->new_gets.empty() && m->new_frames.empty(); });
      sleeping = quiet;
      const bool open = !gets.empty() || !puts.empty() || !questions.empty();
      wait_s = quiet ? (open ? kLookS : 0.5) : 0;
    }
    const int n =
        ::epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), static_cast<int>(wait_s * 1000));
    {
      const std::lock_guard lock(mutex);
      sleeping = false;
    }
    for (int k = 0; k < n; ++k) {
      if (events[k].data.u64 == 0) {
        uint64_t ignored = 0;
        (void)!::read(wake_fd, &ignored, sizeof ignored);
        continue;
      }
      const size_t i = events[k].data.u64 - 1;
      PeerMember& m = *members[i];
      if (m.fd < 0) continue;
      if (m.link == PeerLink::kConnecting) connected(i);
      else if ((events[k].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) serve(i);
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i]->fd >= 0 && members[i]->link != PeerLink::kConnecting && !members[i]->sender.empty()) flush(i);
    }
    if (peer_clock() >= next_look) look_for_late();
  }
}

// What callers left goes into the senders of the members that are up; the others are called first.
void PeerTier::Impl::start_writes() {
  const double t = peer_clock();
  for (size_t i = 0; i < members.size(); ++i) {
    PeerMember& m = *members[i];
    std::vector<PeerKey> keys;
    std::vector<std::pair<PeerHeader, std::shared_ptr<const PeerBytes>>> frames;
    {
      const std::lock_guard lock(mutex);
      if (m.link == PeerLink::kDown && t >= m.away_until) connect(i);
      if (m.link != PeerLink::kUp) continue;
      keys.swap(m.new_gets);
      frames.swap(m.new_frames);
    }
    if (keys.empty() && frames.empty()) continue;
    if (m.open == 0) m.heard_s = t;
    m.open += static_cast<int64_t>(keys.size() + frames.size());
    const auto send_gets = [&] {
      for (size_t first = 0; first < keys.size(); first += kGetsAFrame) {
        const auto some = std::span(keys).subspan(first, std::min(kGetsAFrame, keys.size() - first));
        m.sender.push({.op = PeerOp::kGet, .count = static_cast<uint32_t>(some.size())},
                      std::make_shared<PeerBytes>(encode_peer_keys(some, true)));
      }
    };
    // Gets go before writes, which are large, but never before an erase that was asked for earlier.
    const bool erases = std::ranges::any_of(frames, [](const auto& f) { return f.first.op == PeerOp::kErase; });
    if (!erases) send_gets();
    for (auto& [header, body] : frames) m.sender.push(header, std::move(body));
    if (erases) send_gets();
    flush(i);
  }
}

// Under the mutex.
void PeerTier::Impl::connect(size_t i) {
  PeerMember& m = *members[i];
  m.fd = ::socket(m.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (m.fd < 0) return;
  set_peer_socket(m.fd);
  m.link = PeerLink::kConnecting;
  m.since_s = peer_clock();
  m.receiver = std::make_unique<FrameReceiver>(FrameReceiver::Handler{
      .place = [this, i](const PeerHeader& h) { return place(i, h); },
      .frame = [this, i](const PeerHeader& h, std::span<std::byte> body) { return on_frame(i, h, body); }});
  m.sender = FrameSender();
  m.refused = false;
  m.open = 0;
  (void)::connect(m.fd, reinterpret_cast<const sockaddr*>(&m.address), m.address_size);
  epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data = {.u64 = i + 1}};
  m.writable_watched = true;
  ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, m.fd, &e);
}

void PeerTier::Impl::connected(size_t i) {
  PeerMember& m = *members[i];
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(m.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(i, make_error(Code::kUnavailable, "{}: {}", m.name, std::strerror(error)));
  m.link = PeerLink::kGreeting;
  watch(i, false);
}

void PeerTier::Impl::watch(size_t i, bool writable) {
  PeerMember& m = *members[i];
  if (m.writable_watched == writable) return;
  m.writable_watched = writable;
  epoll_event e = {.events = EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u), .data = {.u64 = i + 1}};
  ::epoll_ctl(epoll_fd, EPOLL_CTL_MOD, m.fd, &e);
}

void PeerTier::Impl::flush(size_t i) {
  PeerMember& m = *members[i];
  if (!m.sender.flush(m.fd)) return fail(i, make_error(Code::kUnavailable, "{}: {}", m.name, std::strerror(errno)));
  watch(i, !m.sender.empty());
}

void PeerTier::Impl::serve(size_t i) {
  PeerMember& m = *members[i];
  for (int k = 0; k < kStepsATurn; ++k) {
    FrameReceiver::Step step;
    Status failure;
    {
      const std::lock_guard copying(copy_mutex);
      step = m.receiver->receive(m.fd);
      if (step == FrameReceiver::Step::kBroken) failure = m.receiver->failure();
    }
    if (step == FrameReceiver::Step::kEmpty) return;
    if (step == FrameReceiver::Step::kBroken)
      return fail(i, make_error(m.refused ? Code::kFailedPrecondition : Code::kUnavailable, "{}: {}", m.name,
                                m.refused      ? "it wants another token"
                                : failure.ok() ? "it does not speak the protocol"
                                               : failure.message()));
    m.heard_s = peer_clock();
  }
}

void PeerTier::Impl::fail(size_t i, const Status& why) {
  PeerMember& m = *members[i];
  {
    const std::lock_guard copying(copy_mutex);  // nobody's buffer is written to any more
    m.receiver.reset();
  }
  if (m.fd >= 0) ::close(m.fd);
  m.fd = -1;
  m.link = PeerLink::kDown;
  const std::lock_guard lock(mutex);
  m.away_s = m.away_s == 0 ? options.away_s : std::min(options.away_max_s, 2 * m.away_s);
  m.away_until = peer_clock() + m.away_s;
  m.trouble = why;
  m.stats.connected = false;
  ++m.stats.failures;
  end_operations(i, Status(Code::kUnavailable, "the KV server is away"));
  changed.notify_all();
}

// Under the mutex. In the order in which they were begun.
void PeerTier::Impl::end_operations(size_t i, const Status& why) {
  PeerMember& m = *members[i];
  m.new_gets.clear();
  m.new_frames.clear();
  m.queued_bytes = 0;
  std::vector<Ticket> ended;
  for (const auto& [ticket, get] : gets) {
    if (get.member == i) ended.push_back(ticket);
  }
  for (const auto& [ticket, put] : puts) {
    if (put.member == i) ended.push_back(ticket);
  }
  std::ranges::sort(ended);
  for (const Ticket t : ended) {
    const auto put = puts.find(t);
    if (put == puts.end() || !put->second.silent) complete(t, why);
    gets.erase(t);
    puts.erase(t);
  }
}

void PeerTier::Impl::look_for_late() {
  const double t = peer_clock();
  next_look = t + kLookS;
  for (size_t i = 0; i < members.size(); ++i) {
    PeerMember& m = *members[i];
    const bool greeting = m.link == PeerLink::kConnecting || m.link == PeerLink::kGreeting;
    if (greeting && t - m.since_s > options.connect_timeout_s)
      fail(i, make_error(Code::kDeadlineExceeded, "{}: it does not answer", m.name));
    else if (m.link == PeerLink::kUp && m.open > 0 && t - m.heard_s > options.timeout_s)
      fail(i, make_error(Code::kDeadlineExceeded, "{}: it does not answer any more", m.name));
  }
  std::vector<std::function<void(Result<PeerBytes>)>> given_up;
  {
    const std::lock_guard copying(copy_mutex);
    const std::lock_guard lock(mutex);
    std::vector<Ticket> late;
    for (const auto& [ticket, get] : gets) {
      if (t > get.until_s) late.push_back(ticket);
    }
    std::ranges::sort(late);
    for (const Ticket ticket : late) {
      const auto at = gets.find(ticket);
      PeerMember& m = *members[at->second.member];
      ++m.stats.late;
      if (m.receiver && m.receiver->receiving(ticket)) m.receiver->discard();
      gets.erase(at);
      complete(ticket, Status(Code::kDeadlineExceeded, "the KV server is slow"));
    }
    for (auto at = questions.begin(); at != questions.end();) {
      if (t <= at->second.until_s) {
        ++at;
        continue;
      }
      given_up.push_back(std::move(at->second.done));
      at = questions.erase(at);
    }
  }
  for (const auto& done : given_up) done(Status(Code::kDeadlineExceeded, "the KV server does not answer"));
}

// ---- frames (under the copy mutex) ----------------------------------------------------------------------------------

std::span<std::byte> PeerTier::Impl::place(size_t i, const PeerHeader& h) {
  PeerMember& m = *members[i];
  if (h.op == PeerOp::kRecord) {
    const std::lock_guard lock(mutex);
    const auto at = gets.find(h.id);
    const bool wanted = at != gets.end() && at->second.member == i && at->second.key == h.key && h.status == Code::kOk;
    return wanted ? at->second.into : std::span<std::byte>();
  }
  m.body = std::make_shared<PeerBytes>(std::min<size_t>(h.bytes, 1u << 20));
  return *m.body;
}

bool PeerTier::Impl::on_frame(size_t i, const PeerHeader& h, std::span<std::byte> body) {
  PeerMember& m = *members[i];
  if (m.link == PeerLink::kGreeting) {
    if (h.op == PeerOp::kChallenge && body.size() == kPeerChallengeBytes) {
      greet(i, body);
      return true;
    }
    const std::lock_guard lock(mutex);
    m.refused = h.op == PeerOp::kDone && h.status != Code::kOk;
    if (h.op != PeerOp::kDone || m.refused) return false;
    m.link = PeerLink::kUp;
    m.away_s = 0;
    m.trouble = Status();
    m.stats.connected = true;
    changed.notify_all();
    return true;
  }
  if (h.op == PeerOp::kRecord) {
    --m.open;
    record_came(m, h, body);
    return true;
  }
  if (h.op != PeerOp::kDone) return false;
  --m.open;
  std::function<void(Result<PeerBytes>)> done;
  {
    const std::lock_guard lock(mutex);
    if (const auto put = puts.find(h.id); put != puts.end()) {
      m.queued_bytes -= std::min(m.queued_bytes, put->second.bytes);
      if (!put->second.silent)
        complete(h.id, h.status == Code::kOk ? Status() : Status(h.status, "the KV server refused the record"));
      puts.erase(put);
    }
    if (const auto at = questions.find(h.id); at != questions.end()) {
      done = std::move(at->second.done);
      questions.erase(at);
    }
  }
  if (done) done(PeerBytes(body.begin(), body.end()));
  return true;
}

void PeerTier::Impl::greet(size_t i, std::span<std::byte> challenge) {
  PeerMember& m = *members[i];
  const std::array<std::byte, 32> proof = peer_proof(options.token, challenge);
  m.sender.push({.op = PeerOp::kAuth},
                options.token.empty() ? nullptr : std::make_shared<PeerBytes>(proof.begin(), proof.end()));
  (void)m.sender.flush(m.fd);
}

void PeerTier::Impl::record_came(PeerMember& m, const PeerHeader& h, std::span<std::byte> body) {
  const std::lock_guard lock(mutex);
  const auto at = gets.find(h.id);
  if (at == gets.end()) return;  // given up meanwhile
  Status status;
  if (h.status != Code::kOk || h.bytes == 0) {
    status = Status(h.status == Code::kOk ? Code::kNotFound : h.status, "the KV server has no such record");
  } else if (body.size() != h.bytes) {
    status = Status(Code::kResourceExhausted, "the record is larger than the buffer");
  } else {
    ++m.stats.hits;
  }
  const bool ok = status.ok();
  complete(h.id, std::move(status), ok ? h.bytes : 0, {.space = h.space, .ttl_s = static_cast<double>(h.ttl_s)});
  gets.erase(at);
}

}  // namespace deepinfer::kv
