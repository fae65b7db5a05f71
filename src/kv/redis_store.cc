#include "kv/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>

#include "kv/redis_wire.h"
#include "kv/stored_record.h"

namespace deepinfer::kv {
namespace {

constexpr int kRedirectionsMax = 5;

timeval time_of(double seconds) {
  return {.tv_sec = static_cast<time_t>(seconds),
          .tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6)};
}

std::string_view text_of(const redisReply& r) {
  return r.str == nullptr ? std::string_view() : std::string_view(r.str, r.len);
}

}  // namespace

void RedisStore::FreeReply::operator()(redisReply* r) const { ::freeReplyObject(r); }

RedisStore::~RedisStore() {
  for (auto& [node, c] : connections_) {
    if (c.context != nullptr) ::redisFree(c.context);
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

Result<redisContext*> RedisStore::connect(const std::string& node) {
  Connection& c = connections_[node];
  if (c.context != nullptr) return c.context;
  const size_t colon = node.rfind(':');
  int port = 0;
  std::from_chars(node.data() + colon + 1, node.data() + node.size(), port);
  std::string host = node.substr(0, colon);
  if (host.empty()) host = options_.host;  // a node that does not know its own address
  redisContext* context = ::redisConnectWithTimeout(host.c_str(), port, time_of(options_.connect_timeout_s));
  if (context == nullptr || context->err != 0) {
    const Status status = make_error(Code::kUnavailable, "Redis at {} cannot be reached: {}", node,
                                     context == nullptr ? "out of memory" : context->errstr);
    if (context != nullptr) ::redisFree(context);
    return status;
  }
  ::redisSetTimeout(context, time_of(options_.command_timeout_s));
  return c.context = context;
}

void RedisStore::disconnect(const std::string& node) {
  Connection& c = connections_[node];
  if (c.context != nullptr) ::redisFree(c.context);
  c.context = nullptr;
}

Status RedisStore::on_connection(const std::string& node, const std::function<bool(redisContext&)>& exchange) {
  // A server that was restarted has closed the connection: once more with a new one.
  for (const bool fresh : {false, true}) {
    const bool reused = connections_[node].context != nullptr;
    DI_ASSIGN_OR_RETURN(redisContext * context, connect(node));
    errno = 0;
    if (exchange(*context)) return Status();
    const int error = errno;
    const bool late = error == EAGAIN || error == EWOULDBLOCK;
    disconnect(node);
    if (late) return make_error(Code::kDeadlineExceeded, "Redis at {}: no answer in time", node);
    if (!reused || fresh) {
      return make_error(Code::kUnavailable, "Redis at {}: {}", node,
                        error == 0 ? "the connection was closed" : std::strerror(error));
    }
  }
  return Status(Code::kInternal, "unreachable");
}

Result<RedisStore::Reply> RedisStore::ask(const std::string& node, const std::vector<std::string_view>& words) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string_view w : words) {
    data.push_back(w.data());
    sizes.push_back(w.size());
  }
  Reply reply;
  DI_RETURN_IF_ERROR(on_connection(node, [&](redisContext& context) {
    reply.reset(static_cast<redisReply*>(
        ::redisCommandArgv(&context, static_cast<int>(words.size()), data.data(), sizes.data())));
    if (!reply && context.err == REDIS_ERR_EOF) errno = 0;
    return reply != nullptr;
  }));
  return reply;
}

Status RedisStore::command(const std::string& name, const Exchange& exchange) {
  const int slot = options_.cluster ? redis_slot(name) : 0;
  const auto known = slot_nodes_.find(slot);
  std::string node = options_.cluster && known != slot_nodes_.end() ? known->second : home();
  bool asking = false;
  for (int i = 0; i < kRedirectionsMax; ++i) {
    if (asking) DI_RETURN_IF_ERROR(ask(node, {"ASKING"}).status());
    asking = false;
    const Result<std::string> answer = exchange(node);
    if (!answer.ok()) {
      slot_nodes_.erase(slot);
      return answer.status();
    }
    const std::string& error = answer.value();
    if (error.empty()) return Status();
    const bool moved = error.starts_with("MOVED ");
    if (!moved && !error.starts_with("ASK ")) {
      const bool full = error.starts_with("OOM");
      return make_error(full ? Code::kResourceExhausted : Code::kUnavailable, "Redis at {}: {}", node, error);
    }
    node = error.substr(error.rfind(' ') + 1);
    if (moved) slot_nodes_[slot] = node;
    asking = !moved;
  }
  return Status(Code::kUnavailable, "Redis Cluster redirects in circles");
}

Result<size_t> RedisStore::get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) {
  const std::string name = name_of(key);
  std::array<std::byte, kTrailerBytes> last;
  RedisAnswer answer;
  DI_RETURN_IF_ERROR(command(name, [&](const std::string& node) -> Result<std::string> {
    DI_RETURN_IF_ERROR(on_connection(node, [&](redisContext& context) {
      const std::optional<RedisAnswer> a = redis_get(context.fd, name, into, last);
      if (a) answer = *a;
      return a.has_value();
    }));
    if (answer.kind == RedisAnswer::Kind::kTooLarge) disconnect(node);
    return answer.error;
  }));
  if (answer.kind == RedisAnswer::Kind::kTooLarge)
    return Status(Code::kResourceExhausted, "the record is larger than the buffer");
  if (answer.kind == RedisAnswer::Kind::kNone) return Status(Code::kNotFound, "no such record in Redis");
  const std::optional<Trailer> t = read_trailer(last);
  if (!t) return Status(Code::kNotFound, "the value in Redis is not one of ours");
  *info = {.space = t->space, .ttl_s = static_cast<double>(t->ttl_s)};
  return answer.bytes;
}

Status RedisStore::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  const auto ttl = static_cast<uint32_t>(std::clamp(info.ttl_s, 1.0, 4e9));
  std::array<std::byte, kTrailerBytes> last;
  const int64_t expires_at = std::time(nullptr) + static_cast<int64_t>(ttl);
  write_trailer({.space = info.space, .expires_at = expires_at, .ttl_s = ttl}, last);
  const std::string name = name_of(key);
  return command(name, [&](const std::string& node) -> Result<std::string> {
    std::string error;
    DI_RETURN_IF_ERROR(on_connection(node, [&](redisContext& context) {
      const std::optional<RedisAnswer> a = redis_set(context.fd, name, record, last, ttl);
      if (a) error = a->error;
      return a.has_value();
    }));
    return error;
  });
}

Status RedisStore::erase(const BlockKey& key) {
  const std::string name = name_of(key);
  return command(name, [&](const std::string& node) -> Result<std::string> {
    DI_ASSIGN_OR_RETURN(const Reply reply, ask(node, {"DEL", name}));
    return reply->type == REDIS_REPLY_ERROR ? std::string(text_of(*reply)) : std::string();
  });
}

Status RedisStore::ping() { return ask(home(), {"PING"}).status(); }

Status RedisStore::purge(uint64_t space) {
  if (!options_.cluster) return purge_node(home(), space);
  DI_ASSIGN_OR_RETURN(const Reply slots, ask(home(), {"CLUSTER", "SLOTS"}));
  std::map<std::string, bool> nodes;
  for (size_t i = 0; slots->type == REDIS_REPLY_ARRAY && i < slots->elements; ++i) {
    const redisReply& range = *slots->element[i];
    if (range.type != REDIS_REPLY_ARRAY || range.elements < 3 || range.element[2]->elements < 2) continue;
    const redisReply& master = *range.element[2];
    nodes[std::string(text_of(*master.element[0])) + ":" + std::to_string(master.element[1]->integer)] = true;
  }
  for (const auto& [node, seen] : nodes) DI_RETURN_IF_ERROR(purge_node(node, space));
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
