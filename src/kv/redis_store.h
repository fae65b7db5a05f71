// Records in Redis, or in a Redis Cluster whose nodes are found by their redirections.
//
// Names are "<prefix>:{<key in hex>}"; values are the record and a trailer (kv/stored_record.h), with the time to live
// as Redis' own expiry. Every connection and command has a time limit; a connection that failed is made anew.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv/remote_store.h"

struct redisContext;
struct redisReply;

namespace deepinfer::kv {

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string prefix = "deepinfer";
  bool cluster = false;
  double connect_timeout_s = 1, command_timeout_s = 2;
};

class RedisStore : public RemoteStore {
 public:
  explicit RedisStore(RedisOptions options) : options_(std::move(options)) {}
  ~RedisStore() override;

  std::string_view name() const override { return options_.cluster ? "redis cluster" : "redis"; }
  Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) override;
  Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Status erase(const BlockKey& key) override;
  Status purge(uint64_t space) override;
  Status ping() override;
  std::unique_ptr<RemoteStore> clone() const override { return std::make_unique<RedisStore>(options_); }

 private:
  struct Connection {
    redisContext* context = nullptr;
  };
  struct FreeReply {
    void operator()(redisReply* r) const;
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  std::string name_of(const BlockKey& key) const;
  Result<redisContext*> connect(const std::string& node);
  void disconnect(const std::string& node);
  // One exchange with a node, over again with a new connection if the old one had been closed. The exchange is false if
  // the connection broke, with errno.
  Status on_connection(const std::string& node, const std::function<bool(redisContext&)>& exchange);
  Result<Reply> ask(const std::string& node, const std::vector<std::string_view>& words);
  // Follows redirections. The exchange gives the error that Redis answered, or none.
  using Exchange = std::function<Result<std::string>(const std::string& node)>;
  Status command(const std::string& name, const Exchange& exchange);
  Status purge_node(const std::string& node, uint64_t space);
  std::string home() const { return options_.host + ":" + std::to_string(options_.port); }

  const RedisOptions options_;
  std::map<std::string, Connection> connections_;  // by host:port
  std::map<int, std::string> slot_nodes_;
};

// The slot of a name in Redis Cluster: CRC16 (XMODEM) of what stands between braces, modulo 16384.
int redis_slot(std::string_view name);

}  // namespace deepinfer::kv
