// One client connection over TCP, TLS or a Unix socket: HTTP/1.1 with keep-alive, one request at a time (internal to
// serve/; includes Asio).
//
//   start_connection(std::move(socket), host, loop, peer);              // lives by itself until either side closes
//   start_tls_connection(std::move(socket), context, host, loop, peer);
//
// A coroutine reads and parses; writes are gathered: what handlers add while a write is in flight goes out with the
// next one. While a handler works the socket is read on, so that a client that leaves is seen at once.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>

#include "serve/host.h"
#include "serve/loop_thread.h"

namespace boost::asio::ssl {
class context;
}

namespace deepinfer::serve {

using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, LoopThread::Executor>;

void start_connection(Socket socket, Host& host, LoopThread& loop, std::string peer);
void start_tls_connection(Socket socket, asio::ssl::context& context, Host& host, LoopThread& loop, std::string peer);

}  // namespace deepinfer::serve
