#include "kv/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>

namespace deepinfer::kv {
namespace {

constexpr int kRedirectionsMax = 5, kSlots = 16384;
constexpr size_t kNodesMax = 1024;
constexpr double kNodeAwayS = 1, kNodeAwayMaxS = 30, kLearnS = 1;
// Of the only node: shorter than its tier waits, which has the say.
constexpr double kOnlyNodeAwayS = 0.5;
// Of an answer that is no record. All slots of a cluster, each with its own nodes, are some MB.
constexpr size_t kAnswerBytesMax = 16u << 20, kAnswerElementsMax = 1u << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

timeval time_of(double seconds) {
  return {.tv_sec = static_cast<time_t>(seconds),
          .tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6)};
}

std::string_view text_of(const redisReply& r) {
  return r.str == nullptr ? std::string_view() : std::string_view(r.str, r.len);
}

bool is_late(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

bool is_refusal_of_us(std::string_view error) {
  return error.starts_with("NOAUTH") || error.starts_with("WRONGPASS") || error.starts_with("NOPERM");
}

// hiredis makes room for as many elements as a server announces; here only while the answer's own bound (privdata)
// allows it. The count is an int or a size_t, by version.
template <class N>
auto bounded(void* (*create)(const redisReadTask*, N)) {
  static const auto of_hiredis = create;
  return +[](const redisReadTask* task, N elements) -> void* {
    auto& left = *static_cast<size_t*>(task->privdata);
    if (static_cast<size_t>(elements) > left) return nullptr;
    left -= static_cast<size_t>(elements);
    return of_hiredis(task, elements);
  };
}

void bound_arrays(redisReader& reader, size_t* left) {
  static redisReplyObjectFunctions functions = [&reader] {
    redisReplyObjectFunctions f = *reader.fn;
    f.createArray = bounded(f.createArray);
    return f;
  }();
  reader.fn = &functions;
  reader.privdata = left;
}

uint32_t ttl_of(const PutInfo& info) { return static_cast<uint32_t>(std::clamp(info.ttl_s, 1.0, 4e9)); }

void write_trailer_of(const PutInfo& info, std::span<std::byte> to) {
  const uint32_t ttl = ttl_of(info);
  write_trailer({.space = info.space, .expires_at = std::time(nullptr) + static_cast<int64_t>(ttl), .ttl_s = ttl}, to);
}

}  // namespace

void RedisStore::FreeReply::operator()(redisReply* r) const { ::freeReplyObject(r); }

RedisStore::~RedisStore() {
  for (auto& [name, node] : known_) {
    for (Connection& c : node.lanes) disconnect(c);
  }
}

int redis_slot(std::string_view name) {
  if (const size_t open = name.find('{'); open != std::string_view::npos) {
    const size_t close = name.find('}', open);
    if (close != std::string_view::npos && close > open + 1) name = name.substr(open + 1, close - open - 1);
  }
  uint16_t crc = 0;
  for (const char c : name) {
    crc = static_cast<uint16_t>(crc ^ (static_cast<uint8_t>(c) << 8));
    for (int bit = 0; bit < 8; ++bit) crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
  }
  return crc % 16384;
}

std::string RedisStore::name_of(const BlockKey& key) const { return options_.prefix + ":{" + key.hex() + "}"; }

size_t RedisStore::lane_of(const std::string& name) {
  return std::hash<std::string>{}(name) % std::tuple_size_v<decltype(Node::lanes)>;
}

// ---- connections ----------------------------------------------------------------------------------------------------

Result<RedisStore::Connection*> RedisStore::connect(const std::string& node, size_t lane) {
  Node& n = known_[node];
  Connection& c = n.lanes[lane];
  if (c.context != nullptr && c.waiting.empty() && !c.pipe->clean()) disconnect(c);  // it said more than was asked
  if (c.context != nullptr) return &c;
  if (now() < n.away_until) {  // not "away" where others may be there
    return make_error(has_others() ? Code::kIo : Code::kUnavailable, "Redis at {} is left alone for a while", node);
  }
  Status status = dial(node, c);
  if (status.ok()) status = log_in(node, c);
  if (status.ok()) return &c;
  disconnect(c);
  leave_alone(n);
  if (status.code() != Code::kFailedPrecondition && has_others())
    return Status(Code::kIo, status.message());
  return status;
}

Status RedisStore::dial(const std::string& node, Connection& c) {
  const size_t colon = node.rfind(':');
  int port = 0;
  std::from_chars(node.data() + colon + 1, node.data() + node.size(), port);
  std::string host = node.substr(0, colon);
  if (host.empty()) host = options_.host;  // a node that does not know its own address
  c.context = ::redisConnectWithTimeout(host.c_str(), port, time_of(options_.connect_timeout_s));
  if (c.context == nullptr || c.context->err != 0) {
    return make_error(Code::kUnavailable, "Redis at {} cannot be reached: {}", node,
                      c.context == nullptr ? "out of memory" : c.context->errstr);
  }
  ::redisSetTimeout(c.context, time_of(options_.command_timeout_s));
  bound_arrays(*c.context->reader, &c.elements_left);
  c.pipe = std::make_unique<RedisPipe>(c.context->fd, options_.command_timeout_s);
  return Status();
}

Status RedisStore::log_in(const std::string& node, Connection& c) {
  if (options_.password.empty()) return Status();
  std::vector<std::string_view> words{"AUTH", options_.password};
  if (!options_.user.empty()) words.insert(words.begin() + 1, options_.user);
  const Reply reply = talk(c, words);
  if (!reply) return lost(node, errno);
  if (reply->type != REDIS_REPLY_ERROR) return Status();
  return make_error(Code::kFailedPrecondition, "Redis at {} does not take the password: {}", node, text_of(*reply));
}

void RedisStore::leave_alone(Node& n) {
  n.away_s = !options_.cluster ? kOnlyNodeAwayS : n.away_s == 0 ? kNodeAwayS : std::min(2 * n.away_s, kNodeAwayMaxS);
  n.away_until = now() + n.away_s;
}

void RedisStore::heard(Node& n, Connection& c) {
  c.answered = true;
  n.away_s = 0;
}

void RedisStore::disconnect(Connection& c) {
  if (c.context != nullptr) ::redisFree(c.context);
  c.context = nullptr;
  c.pipe.reset();
  c.answered = false;
}

Status RedisStore::lost(const std::string& node, int error) const {
  const bool late = is_late(error);
  const Code code = has_others() ? Code::kIo : late ? Code::kDeadlineExceeded : Code::kUnavailable;
  return make_error(code, "Redis at {}: {}", node,
                    late         ? "no answer in time"
                    : error == 0 ? "the connection was closed"
                                 : std::strerror(error));
}

Status RedisStore::on_connection(const std::string& node, size_t lane,
                                 const std::function<bool(Connection&)>& exchange) {
  Node& n = known_[node];
  while (!n.lanes[lane].waiting.empty()) next_answer(node, lane);
  // A server that was restarted has closed the connection: once more with a new one.
  for (const bool fresh : {false, true}) {
    const bool reused = n.lanes[lane].context != nullptr;
    DI_ASSIGN_OR_RETURN(Connection * c, connect(node, lane));
    errno = 0;
    if (exchange(*c)) {
      heard(n, *c);
      return Status();
    }
    const int error = errno;
    disconnect(*c);
    if (is_late(error)) leave_alone(n);
    if (is_late(error) || !reused || fresh) return lost(node, error);
  }
  return Status(Code::kInternal, "unreachable");
}

RedisStore::Reply RedisStore::talk(Connection& c, const std::vector<std::string_view>& words) const {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string_view w : words) {
    data.push_back(w.data());
    sizes.push_back(w.size());
  }
  redisReader& reader = *c.context->reader;
  c.elements_left = kAnswerElementsMax;
  const double until_s = now() + options_.command_timeout_s;
  ::redisAppendCommandArgv(c.context, static_cast<int>(words.size()), data.data(), sizes.data());
  for (int sent = 0; sent == 0;) {
    if (::redisBufferWrite(c.context, &sent) != REDIS_OK) return nullptr;
  }
  for (size_t bytes = 0; bytes < kAnswerBytesMax;) {
    const size_t before = reader.len;
    if (::redisBufferRead(c.context) != REDIS_OK) {
      if (c.context->err == REDIS_ERR_EOF) errno = 0;
      return nullptr;
    }
    bytes += reader.len - before;
    void* reply = nullptr;
    if (::redisReaderGetReply(&reader, &reply) != REDIS_OK) break;
    if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
    errno = EAGAIN;
    if (now() > until_s) return nullptr;
  }
  errno = EPROTO;
  return nullptr;
}

Result<RedisStore::Reply> RedisStore::ask(const std::string& node, const std::vector<std::string_view>& words,
                                          size_t lane) {
  Reply reply;
  DI_RETURN_IF_ERROR(on_connection(node, lane, [&](Connection& c) {
    reply = talk(c, words);
    return reply != nullptr;
  }));
  return reply;
}

// ---- nodes of a cluster ---------------------------------------------------------------------------------------------

size_t RedisStore::node_index(const std::string& node) {
  const auto at = std::ranges::find(nodes_, node);
  if (at != nodes_.end()) return static_cast<size_t>(at - nodes_.begin());
  if (nodes_.size() >= kNodesMax) return 0;
  nodes_.push_back(node);
  return nodes_.size() - 1;
}

Status RedisStore::learn_slots() {
  learn_at_ = now() + kLearnS;
  slot_nodes_.resize(kSlots);
  Status status;
  for (size_t i = 0, known = nodes_.size(); i < known; ++i) {
    const std::string asked = nodes_[i];  // an answer that was on its way may name a new one
    Result<Reply> slots = ask(asked, {"CLUSTER", "SLOTS"});
    if (!slots.ok()) {
      status = slots.status();
      continue;
    }
    const redisReply& all = *slots.value();
    if (all.type != REDIS_REPLY_ARRAY) {
      const bool none = text_of(all).find("cluster support disabled") != std::string_view::npos;
      return make_error(none || is_refusal_of_us(text_of(all)) ? Code::kFailedPrecondition : Code::kUnavailable,
                        "Redis at {} is no cluster that can be used: {}", asked, text_of(all));
    }
    learn_at_ = std::numeric_limits<double>::infinity();
    for (size_t k = 0; k < all.elements; ++k) {
      const redisReply& range = *all.element[k];
      if (range.type != REDIS_REPLY_ARRAY || range.elements < 3 || range.element[2]->elements < 2) continue;
      const redisReply &first = *range.element[0], &last = *range.element[1], &master = *range.element[2];
      const auto node = static_cast<uint16_t>(node_index(
          std::string(text_of(*master.element[0])) + ":" + std::to_string(master.element[1]->integer)));
      const int64_t end = std::min<int64_t>(last.integer, kSlots - 1);
      for (int64_t slot = std::max<int64_t>(0, first.integer); slot <= end; ++slot)
        slot_nodes_[static_cast<size_t>(slot)] = node;
    }
    return Status();
  }
  return status;
}

const std::string& RedisStore::node_of(const std::string& name) {
  if (!options_.cluster) return nodes_.front();
  if (now() >= learn_at_) (void)learn_slots();
  const std::string& node = nodes_[slot_nodes_[static_cast<size_t>(redis_slot(name))]];
  // Any node knows who has a slot whose own is lost or not known.
  const auto there = [this](const std::string& n) {
    const auto at = known_.find(n);
    return at == known_.end() || now() >= at->second.away_until;
  };
  if (there(node)) return node;
  learn_at_ = std::min(learn_at_, now() + kLearnS);
  const auto other = std::ranges::find_if(nodes_, there);
  return other == nodes_.end() ? node : *other;
}

// Whether an error says where to ask instead.
bool RedisStore::redirected(const std::string& name, const std::string& error) {
  const bool moved = error.starts_with("MOVED ");
  if (!moved) return error.starts_with("ASK ");
  learn_at_ = std::min(learn_at_, now() + kLearnS);
  slot_nodes_.resize(kSlots);
  slot_nodes_[static_cast<size_t>(redis_slot(name))] =
      static_cast<uint16_t>(node_index(error.substr(error.rfind(' ') + 1)));
  return true;
}

Status RedisStore::command(const std::string& name, const Exchange& exchange) {
  std::string node = node_of(name);
  bool asking = false;
  for (int i = 0; i < kRedirectionsMax; ++i) {
    if (asking) DI_RETURN_IF_ERROR(ask(node, {"ASKING"}, lane_of(name)).status());
    DI_ASSIGN_OR_RETURN(const std::string error, exchange(node));
    if (error.empty()) return Status();
    if (!redirected(name, error)) return refused(node, error);
    node = error.substr(error.rfind(' ') + 1);
    if (known_.size() >= kNodesMax && !known_.contains(node)) break;  // it names ever new ones
    asking = error.starts_with("ASK ");
  }
  return Status(Code::kIo, "Redis Cluster redirects in circles");
}

// A server that refuses writes only (no memory left, a replica, a disk that is full) is not away.
Status RedisStore::refused(const std::string& node, const std::string& error) const {
  const bool away = is_refusal_of_us(error) || error.starts_with("LOADING") || error.starts_with("CLUSTERDOWN") ||
                    error.starts_with("MASTERDOWN");
  const Code code = error.starts_with("OOM") ? Code::kResourceExhausted : away ? Code::kUnavailable : Code::kIo;
  return make_error(code, "Redis at {}: {}", node, error);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

Result<size_t> RedisStore::found(const RedisAnswer& answer, std::span<const std::byte> trailer, PutInfo* info) const {
  if (answer.kind == RedisAnswer::Kind::kTooLarge)
    return Status(Code::kResourceExhausted, "the record is larger than the buffer");
  if (answer.kind == RedisAnswer::Kind::kNone) return Status(Code::kNotFound, "no such record in Redis");
  const std::optional<Trailer> t = read_trailer(trailer);
  if (!t) return Status(Code::kNotFound, "the value in Redis is not one of ours");
  *info = {.space = t->space, .ttl_s = static_cast<double>(t->ttl_s)};
  return answer.bytes;
}

void RedisStore::begin(RemoteCall& call) {
  Open& o = open_.emplace_back();
  o.call = &call;
  if (call.kind == RemoteCall::Kind::kErase) {
    o.state = Open::State::kEnded;
    return run(call);
  }
  o.name = name_of(call.key);
  o.node = node_of(o.name);
  o.lane = lane_of(o.name);
  const Result<Connection*> c = connect(o.node, o.lane);
  if (!c.ok()) {
    call.status = c.status();
    o.state = Open::State::kEnded;
    return;
  }
  c.value()->waiting.push_back(&o);
  if (call.kind == RemoteCall::Kind::kGet) {
    unsent_.push_back(c.value());
    return c.value()->pipe->ask_get(o.name);
  }
  write_trailer_of(call.info, o.trailer);
  if (!c.value()->pipe->ask_set(o.name, call.record, o.trailer, ttl_of(call.info)))
    broke(o.node, o.lane, errno);
}

void RedisStore::end(RemoteCall& /*the oldest*/) {
  Open& o = open_.front();
  for (Connection* c : unsent_) {
    if (c->pipe) (void)c->pipe->flush();  // if it breaks, its answers say so
  }
  unsent_.clear();
  while (o.state == Open::State::kWaiting) next_answer(o.node, o.lane);
  if (o.state == Open::State::kAgain) run(*o.call);
  open_.pop_front();
}

void RedisStore::next_answer(const std::string& node, size_t lane) {
  Node& n = known_[node];
  Connection& c = n.lanes[lane];
  Open& o = *c.waiting.front();
  RemoteCall& call = *o.call;
  const bool get = call.kind == RemoteCall::Kind::kGet;
  errno = 0;
  const std::optional<RedisAnswer> a = get ? c.pipe->get_answer(call.into, o.trailer) : c.pipe->set_answer();
  if (!a) return broke(node, lane, errno);
  c.waiting.pop_front();
  heard(n, c);
  o.state = Open::State::kEnded;
  if (a->kind == RedisAnswer::Kind::kError) {
    if (redirected(o.name, a->error)) o.state = Open::State::kAgain;
    else call.status = refused(o.node, a->error);
  } else if (get) {
    const Result<size_t> bytes = found(*a, o.trailer, &call.info);
    call.status = bytes.status();
    call.bytes = bytes.ok() ? bytes.value() : 0;
  } else {
    call.status = Status();
  }
}

// What waited on a connection that worked before is asked again; the server may have been restarted. One that gave no
// answer in time gives none on its other connection either.
void RedisStore::broke(const std::string& node, size_t lane, int error) {
  Node& n = known_[node];
  for (size_t i = 0; i < n.lanes.size(); ++i) {
    if (i != lane && !is_late(error)) continue;
    Connection& c = n.lanes[i];
    const bool again = c.answered && !is_late(error);
    for (Open* o : c.waiting) {
      o->state = again ? Open::State::kAgain : Open::State::kEnded;
      if (!again) o->call->status = lost(node, error);
    }
    c.waiting.clear();
    disconnect(c);
  }
  if (is_late(error)) leave_alone(n);
}

Result<size_t> RedisStore::get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) {
  const std::string name = name_of(key);
  std::array<std::byte, kTrailerBytes> trailer;
  RedisAnswer answer;
  DI_RETURN_IF_ERROR(command(name, [&](const std::string& node) -> Result<std::string> {
    DI_RETURN_IF_ERROR(on_connection(node, lane_of(name), [&](Connection& c) {
      c.pipe->ask_get(name);
      const std::optional<RedisAnswer> a = c.pipe->get_answer(into, trailer);
      if (a) answer = *a;
      return a.has_value();
    }));
    return answer.error;
  }));
  return found(answer, trailer, info);
}

Status RedisStore::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  std::array<std::byte, kTrailerBytes> trailer;
  write_trailer_of(info, trailer);
  const std::string name = name_of(key);
  return command(name, [&](const std::string& node) -> Result<std::string> {
    RedisAnswer answer;
    DI_RETURN_IF_ERROR(on_connection(node, lane_of(name), [&](Connection& c) {
      if (!c.pipe->ask_set(name, record, trailer, ttl_of(info))) return false;
      const std::optional<RedisAnswer> a = c.pipe->set_answer();
      if (a) answer = *a;
      return a.has_value();
    }));
    return answer.error;
  });
}

Status RedisStore::erase(const BlockKey& key) {
  const std::string name = name_of(key);
  return command(name, [&](const std::string& node) -> Result<std::string> {
    DI_ASSIGN_OR_RETURN(const Reply reply, ask(node, {"DEL", name}, lane_of(name)));
    return reply->type == REDIS_REPLY_ERROR ? std::string(text_of(*reply)) : std::string();
  });
}

Status RedisStore::ping() {
  if (options_.cluster) return learn_slots();
  DI_ASSIGN_OR_RETURN(const Reply reply, ask(home(), {"PING"}));
  if (reply->type != REDIS_REPLY_ERROR) return Status();
  const std::string error(text_of(*reply));
  return make_error(is_refusal_of_us(error) ? Code::kFailedPrecondition : Code::kUnavailable, "Redis at {}: {}", home(),
                    error);
}

Status RedisStore::purge(uint64_t space) {
  if (!options_.cluster) return purge_node(home(), space);
  DI_RETURN_IF_ERROR(learn_slots());
  std::vector<uint16_t> masters = slot_nodes_;
  std::ranges::sort(masters);
  masters.erase(std::unique(masters.begin(), masters.end()), masters.end());
  for (const uint16_t m : masters) {
    const std::string node = nodes_[m];  // as in learn_slots()
    DI_RETURN_IF_ERROR(purge_node(node, space));
  }
  return Status();
}

Status RedisStore::purge_node(const std::string& node, uint64_t space) {
  const std::string pattern = options_.prefix + ":{*}", last = std::to_string(-static_cast<int>(kTrailerBytes));
  std::string cursor = "0";
  do {
    DI_ASSIGN_OR_RETURN(const Reply reply, ask(node, {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
      return make_error(Code::kUnavailable, "Redis at {}: {}", node, text_of(*reply));
    cursor = text_of(*reply->element[0]);
    for (size_t i = 0; i < reply->element[1]->elements; ++i) {
      const std::string_view name = text_of(*reply->element[1]->element[i]);
      if (space != 0) {
        DI_ASSIGN_OR_RETURN(const Reply end, ask(node, {"GETRANGE", name, last, "-1"}));
        if (end->type != REDIS_REPLY_STRING) continue;
        const std::optional<Trailer> t = read_trailer(std::as_bytes(std::span(end->str, end->len)));
        if (!t || t->space != space) continue;
      }
      DI_RETURN_IF_ERROR(ask(node, {"DEL", name}).status());
    }
  } while (cursor != "0");
  return Status();
}

}  // namespace deepinfer::kv
