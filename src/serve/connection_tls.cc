#include <boost/asio/ssl/stream.hpp>

#include "serve/connection_impl.h"

namespace deepinfer::serve {

using TlsStream = asio::ssl::stream<Socket>;

template <>
Connection<TlsStream>::Awaitable<bool> Connection<TlsStream>::handshake() {
  auto [ec] = co_await stream_.async_handshake(asio::ssl::stream_base::server, Token());
  co_return !ec;
}

void start_tls_connection(Socket socket, asio::ssl::context& context, Host& host, LoopThread& loop, std::string peer) {
  std::make_shared<Connection<TlsStream>>(host, loop, std::move(peer), std::move(socket), context)->start();
}

}  // namespace deepinfer::serve
