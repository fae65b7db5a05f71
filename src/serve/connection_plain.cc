#include "serve/connection_impl.h"

namespace deepinfer::serve {

template <>
Connection<Socket>::Awaitable<bool> Connection<Socket>::handshake() {
  co_return true;
}

void start_connection(Socket socket, Host& host, LoopThread& loop, std::string peer) {
  std::make_shared<Connection<Socket>>(host, loop, std::move(peer), std::move(socket))->start();
}

}  // namespace deepinfer::serve
