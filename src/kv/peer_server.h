// A KV server for peers: one machine's memory and SSD on TCP (`deepinfer kvstore`). Protocol: kv/peer_wire.h.
//
//   DI_ASSIGN_OR_RETURN(auto server, PeerServer::start({.port = 7711, .host_bytes = 64ull << 30, .ssd_dir =
//   "/data/kv"}));
//   ... server->port() ...                     // stops when it is destroyed
//
// It needs no model: records are bytes under keys. Memory first, then SSD; what is read from the SSD goes into memory.
// Records go from memory to the socket without a copy. Damaged ones are not taken. One thread serves all connections,
// so that nothing is locked but the SSD's queue.
//
// Limits: connections_max; a connection whose answers pile up beyond unsent_bytes_max is not read until they are sent;
// records of at most kPeerBodyMax. A frame that does not fit the protocol ends its connection; a connection that has
// not proved the token within greeting_s is closed. Without a token everybody who reaches the port may read and write:
// listen on a private network only. Nothing is encrypted on the wire.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kv/ssd_tier.h"

namespace deepinfer::kv {

struct PeerServerOptions {
  std::string host = "127.0.0.1";  // a numeric address
  int port = 0;                    // 0: any that is free
  std::string token;               // that peers must know; empty: none
  uint64_t host_bytes = 1ull << 30;
  uint64_t tenant_bytes = 0;       // of the memory, for one tenant; 0: no limit. The SSD's are in `ssd`
  std::string ssd_dir;             // empty: memory only
  SsdTierOptions ssd;
  int connections_max = 256;
  uint64_t unsent_bytes_max = 64ull << 20;
  double greeting_s = 5;
};

struct PeerServerStats {
  int connections = 0;
  int64_t accepted = 0, refused = 0, bad_frames = 0;
  int64_t gets = 0, host_hits = 0, ssd_hits = 0, puts = 0, puts_refused = 0;
  int64_t host_records = 0, ssd_records = 0;
  uint64_t host_bytes = 0, ssd_bytes = 0, sent_bytes = 0, received_bytes = 0;
};

class PeerServer {
 public:
  static Result<std::unique_ptr<PeerServer>> start(const PeerServerOptions& options);
  ~PeerServer();
  int port() const;
  PeerServerStats stats() const;  // of a moment ago; any thread

 private:
  struct Impl;
  explicit PeerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::kv
