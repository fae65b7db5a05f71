#include "kv/peer_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "kv/host_tier.h"
#include "kv/peer_wire.h"
#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr uint64_t kWakeTag = 0, kListenTag = 1, kFirstConnection = 2;
constexpr int kStepsATurn = 64;      // receptions of one connection before others have their turn

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Connection {
  int fd = -1;
  uint64_t number = 0;
  bool greeted = false, writable_watched = false, throttled = false;
  double accepted_s = 0;
  uint64_t reading_bytes = 0;  // from the SSD
  std::array<std::byte, kPeerChallengeBytes> challenge;
  FrameSender sender;
  std::unique_ptr<FrameReceiver> receiver;
  std::shared_ptr<PeerBytes> body;  // of the frame that is coming
  ~Connection() {
    if (fd >= 0) ::close(fd);
  }
};

struct SsdRead {
  uint64_t connection = 0, id = 0;
  BlockKey key;
  std::shared_ptr<PeerBytes> buffer;
};

}  // namespace

struct SsdWrite {
  Tier::Ticket ticket = 0;
  std::shared_ptr<const PeerBytes> record;
  PutInfo info;
};

struct PeerServer::Impl {
  ~Impl();
  Status listen();
  void loop();
  void accept_all();
  void serve(Connection& c);
  void flush(Connection& c);
  void close(uint64_t number);
  void watch(Connection& c);
  std::span<std::byte> place(Connection& c, const PeerHeader& h);
  bool on_frame(Connection& c, const PeerHeader& h, std::span<std::byte> body);
  bool greet(Connection& c, const PeerHeader& h, std::span<std::byte> body);
  bool contains(const BlockKey& key) const;
  bool on_get(Connection& c, std::span<const PeerKey> keys);
  void on_put(Connection& c, const PeerHeader& h);
  void send_record(Connection& c, uint64_t id, const BlockKey& key, std::shared_ptr<const PeerBytes> record,
                   const PutInfo& info);
  void answer(Connection& c, PeerOp op, uint64_t id, const BlockKey& key, Code status);
  void end_write(Tier::Ticket ticket);
  void poll_ssd();
  void close_silent(double now_s);
  void update_stats();
  std::string stat_text() const;

  PeerServerOptions options;
  int listen_fd = -1, epoll_fd = -1, wake_fd = -1, port = 0;
  std::unique_ptr<HostTier> host;
  std::unique_ptr<SsdTier> ssd;
  std::map<uint64_t, std::unique_ptr<Connection>> connections;
  uint64_t next_number = kFirstConnection;
  std::unordered_map<Tier::Ticket, SsdRead> reads;
  // What the SSD has not written yet, to be found although memory may have dropped it already.
  std::unordered_map<BlockKey, SsdWrite, BlockKeyHash> writes;
  std::unordered_map<Tier::Ticket, BlockKey> write_tickets;
  PeerServerStats counted;
  mutable std::mutex stats_mutex;
  PeerServerStats shown;
  std::atomic<bool> ending = false;
  std::thread thread;
};

PeerServer::Impl::~Impl() {
  ending = true;
  if (thread.joinable()) {
    const uint64_t one = 1;
    (void)!::write(wake_fd, &one, sizeof one);
    thread.join();
  }
  connections.clear();
  ssd.reset();  // before what it calls
  for (const int fd : {listen_fd, epoll_fd, wake_fd}) {
    if (fd >= 0) ::close(fd);
  }
}

Status PeerServer::Impl::listen() {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const auto bad = [this](std::string_view what) {
    return make_error(Code::kInvalidArgument, "The KV server cannot listen on {}:{}: {}.", options.host, options.port,
                      what);
  };
  if (::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found) != 0 ||
      found == nullptr)
    return bad("it is no numeric address");
  listen_fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool ok =
      listen_fd >= 0 && ::bind(listen_fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(listen_fd, 128) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (!ok) return bad(std::strerror(error));
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  ::getsockname(listen_fd, reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
  epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const auto& [fd, tag] : {std::pair(wake_fd, kWakeTag), std::pair(listen_fd, kListenTag)}) {
    epoll_event e = {.events = EPOLLIN, .data = {.u64 = tag}};
    if (epoll_fd < 0 || wake_fd < 0 || ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
      return bad(std::strerror(errno));
  }
  return Status();
}

// ---- connections ----------------------------------------------------------------------------------------------------

void PeerServer::Impl::accept_all() {
  while (true) {
    const int fd = ::accept4(listen_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (static_cast<int>(connections.size()) >= options.connections_max) {
      ++counted.refused;
      ::close(fd);
      continue;
    }
    ++counted.accepted;
    set_peer_socket(fd);
    auto c = std::make_unique<Connection>();
    c->fd = fd;
    c->number = next_number++;
    c->accepted_s = now();
    Connection* raw = c.get();
    c->receiver = std::make_unique<FrameReceiver>(FrameReceiver::Handler{
        .place = [this, raw](const PeerHeader& h) { return place(*raw, h); },
        .frame = [this, raw](const PeerHeader& h, std::span<std::byte> body) { return on_frame(*raw, h, body); }});
    epoll_event e = {.events = EPOLLIN, .data = {.u64 = c->number}};
    if (::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) continue;
    connections[c->number] = std::move(c);
    if (::getrandom(raw->challenge.data(), raw->challenge.size(), 0) != static_cast<ssize_t>(raw->challenge.size())) {
      close(raw->number);
      continue;
    }
    raw->sender.push({.op = PeerOp::kChallenge},
                     std::make_shared<PeerBytes>(raw->challenge.begin(), raw->challenge.end()));
    flush(*raw);
  }
}

void PeerServer::Impl::close(uint64_t number) {
  const auto at = connections.find(number);
  if (at == connections.end()) return;
  ::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, at->second->fd, nullptr);
  connections.erase(at);
}

void PeerServer::Impl::watch(Connection& c) {
  const bool writable = !c.sender.empty(), throttled = c.sender.bytes() > options.unsent_bytes_max;
  if (writable == c.writable_watched && throttled == c.throttled) return;
  c.writable_watched = writable;
  c.throttled = throttled;
  epoll_event e = {.events = (throttled ? 0u : static_cast<uint32_t>(EPOLLIN)) |
                             (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u),
                   .data = {.u64 = c.number}};
  ::epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c.fd, &e);
}

// The connection may be gone afterwards.
void PeerServer::Impl::flush(Connection& c) {
  const uint64_t before = c.sender.bytes();
  if (!c.sender.flush(c.fd)) return close(c.number);
  counted.sent_bytes += before - c.sender.bytes();
  watch(c);
}

void PeerServer::Impl::serve(Connection& c) {
  for (int i = 0; i < kStepsATurn && c.sender.bytes() <= options.unsent_bytes_max; ++i) {
    const FrameReceiver::Step step = c.receiver->receive(c.fd);
    if (step == FrameReceiver::Step::kEmpty) break;
    if (step == FrameReceiver::Step::kMore) continue;
    if (c.receiver->failure().code() != Code::kUnavailable) ++counted.bad_frames;
    return close(c.number);
  }
  flush(c);
}

void PeerServer::Impl::close_silent(double now_s) {
  std::vector<uint64_t> silent;
  for (const auto& [number, c] : connections) {
    if (!c->greeted && now_s - c->accepted_s > options.greeting_s) silent.push_back(number);
  }
  for (const uint64_t number : silent) close(number);
}

// ---- frames ---------------------------------------------------------------------------------------------------------

std::span<std::byte> PeerServer::Impl::place(Connection& c, const PeerHeader& h) {
  // Strangers cannot make it allocate.
  if (!c.greeted && h.bytes > 1024) return {};
  c.body = std::make_shared<PeerBytes>(h.bytes);
  return *c.body;
}

bool PeerServer::Impl::greet(Connection& c, const PeerHeader& h, std::span<std::byte> body) {
  if (h.op != PeerOp::kAuth) return false;
  const std::array<std::byte, 32> wanted = peer_proof(options.token, c.challenge);
  c.greeted = options.token.empty() || equal_in_constant_time(body, wanted);
  answer(c, PeerOp::kDone, h.id, {}, c.greeted ? Code::kOk : Code::kFailedPrecondition);
  if (c.greeted) return true;
  (void)c.sender.flush(c.fd);
  return false;
}

void PeerServer::Impl::answer(Connection& c, PeerOp op, uint64_t id, const BlockKey& key, Code status) {
  c.sender.push({.op = op, .status = status, .id = id, .key = key});
}

bool PeerServer::Impl::on_frame(Connection& c, const PeerHeader& h, std::span<std::byte> body) {
  counted.received_bytes += kPeerHeaderBytes + h.bytes;
  if (body.size() != h.bytes) return false;  // more than a stranger may send
  if (!c.greeted) return greet(c, h, body);
  switch (h.op) {
    case PeerOp::kGet:
    case PeerOp::kExists:
    case PeerOp::kErase: {
      const Result<std::vector<PeerKey>> keys = decode_peer_keys(body, h.count, h.op == PeerOp::kGet);
      if (!keys.ok()) break;
      if (h.op == PeerOp::kGet) return on_get(c, keys.value());
      auto there = std::make_shared<PeerBytes>();
      for (const PeerKey& k : keys.value()) {
        if (h.op == PeerOp::kExists) {
          there->push_back(std::byte{contains(k.key)});
        } else {
          host->erase(k.key);
          writes.erase(k.key);
          if (ssd) ssd->erase(k.key);
        }
      }
      c.sender.push({.op = PeerOp::kDone, .id = h.id}, std::move(there));
      return true;
    }
    case PeerOp::kPut: on_put(c, h); return true;
    case PeerOp::kPurge:
      host->purge(h.space);
      std::erase_if(writes, [&h](const auto& w) { return h.space == 0 || w.second.info.space == h.space; });
      if (ssd) ssd->purge(h.space);
      answer(c, PeerOp::kDone, h.id, {}, Code::kOk);
      return true;
    case PeerOp::kStat: {
      const std::string text = stat_text();
      const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
      c.sender.push({.op = PeerOp::kDone, .id = h.id}, std::make_shared<PeerBytes>(bytes.begin(), bytes.end()));
      return true;
    }
    default: break;
  }
  ++counted.bad_frames;
  return false;
}

void PeerServer::Impl::send_record(Connection& c, uint64_t id, const BlockKey& key,
                                   std::shared_ptr<const PeerBytes> record, const PutInfo& info) {
  c.sender.push(
      {.op = PeerOp::kRecord, .id = id, .key = key, .space = info.space, .ttl_s = static_cast<uint32_t>(info.ttl_s)},
      std::move(record));
}

bool PeerServer::Impl::on_get(Connection& c, std::span<const PeerKey> keys) {
  for (const PeerKey& k : keys) {
    ++counted.gets;
    PutInfo info;
    if (c.sender.bytes() + c.reading_bytes > options.unsent_bytes_max) {
      answer(c, PeerOp::kRecord, k.id, k.key, Code::kResourceExhausted);
    } else if (std::shared_ptr<const PeerBytes> record = host->share(k.key, &info)) {
      ++counted.host_hits;
      send_record(c, k.id, k.key, std::move(record), info);
    } else if (const auto w = writes.find(k.key); w != writes.end()) {
      ++counted.host_hits;
      send_record(c, k.id, k.key, w->second.record, w->second.info);
    } else if (const uint64_t bytes = ssd ? ssd->record_bytes(k.key) : 0; bytes > 0) {
      SsdRead read{.connection = c.number, .id = k.id, .key = k.key, .buffer = std::make_shared<PeerBytes>(bytes)};
      c.reading_bytes += bytes;
      const Tier::Ticket ticket = ssd->get(k.key, *read.buffer);
      reads[ticket] = std::move(read);
    } else {
      answer(c, PeerOp::kRecord, k.id, k.key, Code::kNotFound);
    }
  }
  return true;
}

void PeerServer::Impl::on_put(Connection& c, const PeerHeader& h) {
  ++counted.puts;
  std::shared_ptr<PeerBytes> record = std::move(c.body);
  if (h.bytes == 0 || !record) {  // a body that was never there, or an earlier frame's
    ++counted.puts_refused;
    return answer(c, PeerOp::kDone, h.id, h.key, Code::kDataLoss);
  }
  const PutInfo info{.space = h.space, .ttl_s = static_cast<double>(h.ttl_s)};
  Status status = record_is_whole(*record) ? Status() : Status(Code::kDataLoss, "");
  if (status.ok()) {
    if (ssd) {
      const Tier::Ticket ticket = ssd->put(h.key, *record, info);
      writes[h.key] = {ticket, record, info};
      write_tickets[ticket] = h.key;
    }
    status = host->put_shared(h.key, std::move(record), info);
    if (ssd) status = Status();
  }
  counted.puts_refused += !status.ok();
  answer(c, PeerOp::kDone, h.id, h.key, status.code());
}

bool PeerServer::Impl::contains(const BlockKey& key) const {
  return host->contains(key) || writes.contains(key) || (ssd && ssd->contains(key));
}

void PeerServer::Impl::end_write(Tier::Ticket ticket) {
  const auto at = write_tickets.find(ticket);
  if (at == write_tickets.end()) return;
  if (const auto w = writes.find(at->second); w != writes.end() && w->second.ticket == ticket) writes.erase(w);
  write_tickets.erase(at);
}

void PeerServer::Impl::poll_ssd() {
  if (!ssd) return;
  std::array<Tier::Completion, 64> done;
  for (size_t n = ssd->poll(done); n > 0; n = ssd->poll(done)) {
    for (size_t i = 0; i < n; ++i) {
      const auto at = reads.find(done[i].ticket);
      if (at == reads.end()) {
        end_write(done[i].ticket);
        continue;
      }
      SsdRead read = std::move(at->second);
      reads.erase(at);
      const auto c = connections.find(read.connection);
      const bool whole = done[i].status.ok() && done[i].bytes == read.buffer->size() &&
                         (done[i].checked || record_is_whole(*read.buffer));
      if (whole) {
        ++counted.ssd_hits;
        (void)host->put_shared(read.key, read.buffer, done[i].info);  // may be larger than the memory
      } else if (done[i].status.ok()) {
        ssd->erase(read.key);
      }
      if (c == connections.end()) continue;
      c->second->reading_bytes -= read.buffer->size();
      if (whole) {
        send_record(*c->second, read.id, read.key, std::move(read.buffer), done[i].info);
      } else {
        answer(*c->second, PeerOp::kRecord, read.id, read.key, Code::kNotFound);
      }
      flush(*c->second);
    }
  }
}

// ---- the loop -------------------------------------------------------------------------------------------------------

void PeerServer::Impl::loop() {
  std::array<epoll_event, 64> events;
  double next_look = 0;
  while (!ending) {
    const int n = ::epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), 1000);
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t ignored = 0;
        (void)!::read(wake_fd, &ignored, sizeof ignored);
      } else if (tag == kListenTag) {
        accept_all();
      } else if (const auto c = connections.find(tag); c != connections.end()) {
        serve(*c->second);
      }
    }
    poll_ssd();
    if (const double t = now(); t >= next_look) {
      close_silent(t);
      next_look = t + 0.5;
    }
    update_stats();
  }
}

void PeerServer::Impl::update_stats() {
  const HostTierStats h = host->stats();
  counted.connections = static_cast<int>(connections.size());
  counted.host_records = h.records;
  counted.host_bytes = h.bytes;
  const std::lock_guard lock(stats_mutex);
  shown = counted;
}

std::string PeerServer::Impl::stat_text() const {
  const HostTierStats h = host->stats();
  std::string text = fmt::format("memory: {} blocks, {} bytes\n", h.records, h.bytes);
  if (ssd) {
    const SsdStats s = ssd->stats();
    text += fmt::format("ssd: {} blocks, {} bytes in {} segments\n", s.records, s.bytes, s.segments);
  }
  text += fmt::format("{} connections; {} reads, {} found in memory, {} on the SSD; {} writes, {} refused\n",
                      connections.size(), counted.gets, counted.host_hits, counted.ssd_hits, counted.puts,
                      counted.puts_refused);
  return text;
}

Result<std::unique_ptr<PeerServer>> PeerServer::start(const PeerServerOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  DI_RETURN_IF_ERROR(impl->listen());
  impl->host = std::make_unique<HostTier>(
      HostTierOptions{.bytes_max = options.host_bytes, .space_bytes_max = options.tenant_bytes});
  if (!options.ssd_dir.empty()) {
    SsdTierOptions ssd = options.ssd;
    ssd.on_completion = [fd = impl->wake_fd] {
      const uint64_t one = 1;
      (void)!::write(fd, &one, sizeof one);
    };
    DI_ASSIGN_OR_RETURN(impl->ssd, SsdTier::open(options.ssd_dir, ssd));
  }
  Impl* raw = impl.get();
  impl->thread = std::thread([raw] { raw->loop(); });
  return std::unique_ptr<PeerServer>(new PeerServer(std::move(impl)));
}

PeerServer::PeerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerServer::~PeerServer() = default;
int PeerServer::port() const { return impl_->port; }

PeerServerStats PeerServer::stats() const {
  PeerServerStats s;
  {
    const std::lock_guard lock(impl_->stats_mutex);
    s = impl_->shown;
  }
  if (impl_->ssd) {
    const SsdStats d = impl_->ssd->stats();
    s.ssd_records = d.records;
    s.ssd_bytes = d.bytes;
  }
  return s;
}

}  // namespace deepinfer::kv
