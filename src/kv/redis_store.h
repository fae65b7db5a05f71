// Records in Redis, or in a Redis Cluster whose nodes are asked for (CLUSTER SLOTS) and followed when slots move.
//
// Names are "<prefix>:{<key in hex>}"; values are the record and a trailer (kv/stored_record.h), with the time to live
// as Redis' own expiry. Every connection and command has a time limit; a connection that failed is made anew, of a
// cluster after a second, then two, four, up to thirty: a lost node is a miss of its records only. A key has one
// of a node's connections, so that what is asked of it stays in order. Nothing that a server says is trusted: answers
// are bounded in bytes, in elements and in time.
// kFailedPrecondition: it wants another password, or is no cluster.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv/redis_wire.h"
#include "kv/remote_store.h"
#include "kv/stored_record.h"

struct redisContext;
struct redisReply;

namespace deepinfer::kv {

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string prefix = "deepinfer";
  std::string user, password;  // empty: none
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

  // A node works with one core, which four connections with some commands on their way keep busy (some are written to
  // while the node reads another); more threads of ours would take that core from it where both run on one machine.
  int threads() const override { return options_.cluster ? 2 : 1; }
  int depth() const override { return 16; }
  void begin(RemoteCall& call) override;
  void end(RemoteCall& call) override;

 private:
  struct Open {  // a call that has begun
    enum class State : uint8_t { kWaiting, kAgain, kEnded };  // kAgain: by itself, from the start
    RemoteCall* call = nullptr;
    State state = State::kWaiting;
    std::string node, name;
    size_t lane = 0;
    std::array<std::byte, kTrailerBytes> trailer;
  };
  struct Connection {
    redisContext* context = nullptr;
    std::unique_ptr<RedisPipe> pipe;
    std::deque<Open*> waiting;  // in the order in which they were asked
    bool answered = false;      // since it was made
    size_t elements_left = 0;   // of arrays in the answer that is being read
  };
  struct Node {
    std::array<Connection, 4> lanes;
    double away_until = 0, away_s = 0;
  };
  struct FreeReply {
    void operator()(redisReply* r) const;
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  std::string name_of(const BlockKey& key) const;
  static size_t lane_of(const std::string& name);
  Result<Connection*> connect(const std::string& node, size_t lane);
  Status dial(const std::string& node, Connection& c);
  Status log_in(const std::string& node, Connection& c);
  void disconnect(Connection& c);
  void leave_alone(Node& n);
  bool has_others() const { return options_.cluster && nodes_.size() > 1; }
  void heard(Node& n, Connection& c);
  Status lost(const std::string& node, int error) const;
  // One exchange with a node once nothing else waits for it, over again with a new connection if the old one had been
  // closed. The exchange is false if the connection broke, with errno.
  Status on_connection(const std::string& node, size_t lane, const std::function<bool(Connection&)>& exchange);
  // Nothing: the connection is of no use any more, with errno. Bounded in time, bytes and elements.
  Reply talk(Connection& c, const std::vector<std::string_view>& words) const;
  Result<Reply> ask(const std::string& node, const std::vector<std::string_view>& words, size_t lane = 0);
  // Follows redirections. The exchange gives the error that Redis answered, or none.
  using Exchange = std::function<Result<std::string>(const std::string& node)>;
  Status command(const std::string& name, const Exchange& exchange);
  Status purge_node(const std::string& node, uint64_t space);

  void next_answer(const std::string& node, size_t lane);
  void broke(const std::string& node, size_t lane, int error);
  bool redirected(const std::string& name, const std::string& error);
  Status refused(const std::string& node, const std::string& error) const;
  Result<size_t> found(const RedisAnswer& answer, std::span<const std::byte> trailer, PutInfo* info) const;

  std::string home() const { return options_.host + ":" + std::to_string(options_.port); }
  const std::string& node_of(const std::string& name);
  size_t node_index(const std::string& node);
  Status learn_slots();

  const RedisOptions options_;
  std::map<std::string, Node> known_;  // by host:port
  std::deque<Open> open_;
  std::vector<Connection*> unsent_;  // they hold gets that are to leave together
  // Of a cluster. The first node is home().
  std::vector<std::string> nodes_{home()};
  std::vector<uint16_t> slot_nodes_;  // 0: not known
  double learn_at_ = 0;
};

// The slot of a name in Redis Cluster: CRC16 (XMODEM) of what stands between braces, modulo 16384.
int redis_slot(std::string_view name);

}  // namespace deepinfer::kv
