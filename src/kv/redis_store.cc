#include "kv/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>

#include "kv/stored_record.h"

namespace deepinfer::kv {
namespace {

constexpr int kRedirectionsMax = 5;

timeval time_of(double seconds) {
  return {.tv_sec = static_cast<time_t>(seconds),
          .tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6)};
}

std::string_view text_of(const redisReply& r) { return r.str == nullptr ? std::string_view() : std::string_view(r.str, r.len); }

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

Result<RedisStore::Reply> RedisStore::ask(const std::string& node, const std::vector<std::string_view>& words) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string_view w : words) {
    data.push_back(w.data());
    sizes.push_back(w.size());
  }
  // A server that was restarted has closed the connection: once more with a new one.
  for (const bool fresh : {false, true}) {
    const bool reused = connections_[node].context != nullptr;
    DI_ASSIGN_OR_RETURN(redisContext * context, connect(node));
    Reply reply(static_cast<redisReply*>(
        ::redisCommandArgv(context, static_cast<int>(words.size()), data.data(), sizes.data())));
    if (reply) return reply;
    const bool late = context->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
    const Status status = make_error(late ? Code::kDeadlineExceeded : Code::kUnavailable, "Redis at {}: {}", node,
                                     late ? "no answer in time" : context->errstr);
    disconnect(node);
    if (late || !reused || fresh) return status;
  }
  return Status(Code::kInternal, "unreachable");
}

Result<RedisStore::Reply> RedisStore::command(const std::string& name, const std::vector<std::string_view>& words) {
  const int slot = options_.cluster ? redis_slot(name) : 0;
  const auto known = slot_nodes_.find(slot);
  std::string node = options_.cluster && known != slot_nodes_.end() ? known->second : home();
  bool asking = false;
  for (int i = 0; i < kRedirectionsMax; ++i) {
    if (asking) DI_RETURN_IF_ERROR(ask(node, {"ASKING"}).status());
    asking = false;
    Result<Reply> reply = ask(node, words);
    if (!reply.ok()) {
      slot_nodes_.erase(slot);
      return reply.status();
    }
    if (reply.value()->type != REDIS_REPLY_ERROR) return reply;
    const std::string_view text = text_of(*reply.value());
    const bool moved = text.starts_with("MOVED ");
    if (!moved && !text.starts_with("ASK ")) {
      const bool full = text.starts_with("OOM");
      return make_error(full ? Code::kResourceExhausted : Code::kUnavailable, "Redis at {}: {}", node, text);
    }
    node = std::string(text.substr(text.rfind(' ') + 1));
    if (moved) slot_nodes_[slot] = node;
    asking = !moved;
  }
  return Status(Code::kUnavailable, "Redis Cluster redirects in circles");
}

Result<size_t> RedisStore::get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) {
  const std::string name = name_of(key);
  DI_ASSIGN_OR_RETURN(const Reply reply, command(name, {"GET", name}));
  if (reply->type != REDIS_REPLY_STRING) return Status(Code::kNotFound, "no such record in Redis");
  const std::span<const std::byte> value = std::as_bytes(std::span(reply->str, reply->len));
  const std::optional<Trailer> t = read_trailer(value);
  if (!t) return Status(Code::kNotFound, "the value in Redis is not one of ours");
  const std::span<const std::byte> record = value.first(value.size() - kTrailerBytes);
  if (record.size() > into.size()) return Status(Code::kResourceExhausted, "the record is larger than the buffer");
  std::ranges::copy(record, into.begin());
  *info = {.space = t->space, .ttl_s = static_cast<double>(t->ttl_s)};
  return record.size();
}

Status RedisStore::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  const auto ttl = static_cast<uint32_t>(std::clamp(info.ttl_s, 1.0, 4e9));
  std::string value(record.size() + kTrailerBytes, '\0');
  std::memcpy(value.data(), record.data(), record.size());
  write_trailer({.space = info.space, .expires_at = std::time(nullptr) + static_cast<int64_t>(ttl), .ttl_s = ttl},
                std::as_writable_bytes(std::span(value)).last(kTrailerBytes));
  const std::string name = name_of(key), seconds = std::to_string(ttl);
  return command(name, {"SET", name, value, "EX", seconds}).status();
}

Status RedisStore::erase(const BlockKey& key) {
  const std::string name = name_of(key);
  return command(name, {"DEL", name}).status();
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
