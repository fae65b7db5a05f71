#include "serve/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "serve/connection.h"
#include "serve/ids.h"

namespace deepinfer::serve {
namespace {

using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, LoopThread::Executor>;
using Token = asio::as_tuple_t<asio::use_awaitable_t<LoopThread::Executor>>;
template <class T>
using Awaitable = asio::awaitable<T, LoopThread::Executor>;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>,
                                         LoopThread::Executor>;

std::string peer_name(const Socket& socket) {
  error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  if (ec) return "?";
  if (endpoint.protocol().family() == AF_UNIX) return "unix";
  asio::ip::tcp::endpoint tcp;
  tcp.resize(std::min(endpoint.size(), tcp.capacity()));
  std::copy_n(reinterpret_cast<const char*>(endpoint.data()), tcp.size(), reinterpret_cast<char*>(tcp.data()));
  return tcp.address().to_string();
}

// Of what is not there the TLS library says so itself.
Status check_tls_file(const std::string& path, bool secret) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return Status();
  if (!S_ISREG(info.st_mode)) return make_error(Code::kInvalidArgument, "{} is not a regular file.", path);
  if (secret && (info.st_mode & 0077) != 0) {
    return make_error(Code::kInvalidArgument, "{} can be read by other users; run: chmod 600 {}", path, path);
  }
  return Status();
}

}  // namespace

Result<Address> parse_address(const std::string& text) {
  Address a;
  if (text.starts_with("unix:")) {
    a.unix_path = text.substr(5);
    a.loopback = true;
    if (a.unix_path.empty() || a.unix_path.size() > 100) {
      return make_error(Code::kInvalidArgument, "\"{}\" is no address: the path of a Unix socket has 1 to 100 bytes.",
                        text);
    }
    return a;
  }
  const size_t colon = text.rfind(':');
  const bool numeric = colon != std::string::npos && colon + 1 < text.size();
  const char* begin = text.data() + (numeric ? colon + 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), a.port);
  if (!numeric || error != std::errc() || end != text.data() + text.size() || a.port < 0 || a.port > 65535) {
    return make_error(Code::kInvalidArgument, "\"{}\" is no address; write HOST:PORT, [V6]:PORT or unix:PATH.", text);
  }
  a.host = text.substr(0, colon);
  if (a.host.starts_with("[") && a.host.ends_with("]")) a.host = a.host.substr(1, a.host.size() - 2);
  if (a.host == "localhost") a.host = "127.0.0.1";
  error_code ec;
  const auto address = asio::ip::make_address(a.host, ec);
  if (ec) {
    return make_error(Code::kInvalidArgument, "\"{}\" is no address: the host must be an IP address or localhost.",
                      text);
  }
  a.loopback = address.is_loopback();
  return a;
}

struct Server::Impl {
  Impl(const ServeConfig& c, const Router& router, ServerHooks hooks) : config(c), ids(c.numbered_ids) {
    host.config = &config;
    host.router = &router;
    host.admit = std::move(hooks.admit);
    host.finished = std::move(hooks.finished);
    host.on_limit = std::move(hooks.on_limit);
    host.next_request_id = [this] { return ids.next("req_"); };
    for (int i = 0; i < std::max(1, config.io_threads); ++i) loops.push_back(std::make_unique<LoopThread>());
  }

  ~Impl() { stop(); }

  void stop() {
    stop_listening();
    for (const auto& loop : loops) loop->stop();
    acceptors.clear();
  }

  Status open_tls();
  Status listen(const std::string& text);
  Awaitable<void> accept(Acceptor& acceptor, bool tls);
  void stop_listening();

  const ServeConfig config;
  IdSource ids;
  Host host;
  std::vector<std::unique_ptr<LoopThread>> loops;
  std::unique_ptr<asio::ssl::context> tls;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::vector<std::string> addresses, unix_paths;
  size_t next_loop = 0;
  bool listening = false;
};

Status Server::Impl::open_tls() {
  if (config.tls.certificate.empty()) return Status();
  DI_RETURN_IF_ERROR(check_tls_file(config.tls.certificate, false));
  DI_RETURN_IF_ERROR(check_tls_file(config.tls.key, true));
  tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code ec;
  tls->set_options(
      asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, ec);
  tls->use_certificate_chain_file(config.tls.certificate, ec);
  if (ec) {
    return make_error(Code::kInvalidArgument, "The TLS certificate {} cannot be used: {}.", config.tls.certificate,
                      ec.message());
  }
  tls->use_private_key_file(config.tls.key, asio::ssl::context::pem, ec);
  if (ec) return make_error(Code::kInvalidArgument, "The TLS key {} cannot be used: {}.", config.tls.key, ec.message());
  return Status();
}

Status Server::Impl::listen(const std::string& text) {
  DI_ASSIGN_OR_RETURN(const Address address, parse_address(text));
  asio::generic::stream_protocol::endpoint endpoint;
  const bool local = !address.unix_path.empty();
  if (local) {
    // A socket that a dead process left is in the way; any other file is not ours to remove.
    struct stat info = {};
    if (::lstat(address.unix_path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(address.unix_path.c_str());
    endpoint = asio::local::stream_protocol::endpoint(address.unix_path);
  } else {
    endpoint = asio::ip::tcp::endpoint(asio::ip::make_address(address.host), static_cast<uint16_t>(address.port));
  }
  auto acceptor = std::make_unique<Acceptor>(loops[0]->context().get_executor());
  error_code ec;
  acceptor->open(endpoint.protocol(), ec);
  if (!ec && !local) acceptor->set_option(Acceptor::reuse_address(true), ec);
  if (!ec) acceptor->bind(endpoint, ec);
  if (!ec) acceptor->listen(4096, ec);
  if (ec) {
    const bool taken = ec == boost::system::errc::address_in_use;
    return make_error(taken ? Code::kUnavailable : Code::kInvalidArgument, "Cannot listen on {}: {}{}.", text,
                      ec.message(),
                      taken ? "; another program does. Choose another port (--port), or end that program" : "");
  }
  if (local) {
    unix_paths.push_back(address.unix_path);
    addresses.push_back(text);
  } else {
    const auto bound = acceptor->local_endpoint(ec);
    asio::ip::tcp::endpoint tcp;
    std::copy_n(reinterpret_cast<const char*>(bound.data()), bound.size(), reinterpret_cast<char*>(tcp.data()));
    const bool v6 = tcp.address().is_v6();
    addresses.push_back(
        fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", v6 ? "[" : "", address.host, v6 ? "]" : "", tcp.port()));
  }
  acceptors.push_back(std::move(acceptor));
  asio::co_spawn(loops[0]->context().get_executor(), accept(*acceptors.back(), tls && !local),
                 [](std::exception_ptr) {});
  return Status();
}

Awaitable<void> Server::Impl::accept(Acceptor& acceptor, bool with_tls) {
  Timer pause(loops[0]->context().get_executor());
  while (acceptor.is_open()) {
    if (host.connections >= config.limits->connections_max) {
      pause.expires_after(std::chrono::milliseconds(20));
      co_await pause.async_wait(Token());
      continue;
    }
    LoopThread& loop = *loops[next_loop++ % loops.size()];
    Socket socket(loop.context().get_executor());
    const auto [ec] = co_await acceptor.async_accept(socket, Token());
    if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (ec) {  // out of file descriptors, or the client has left already
      pause.expires_after(std::chrono::milliseconds(20));
      co_await pause.async_wait(Token());
      continue;
    }
    error_code ignored;
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    std::string peer = peer_name(socket);
    auto start = [this, &loop, with_tls, socket = std::make_shared<Socket>(std::move(socket)),
                  peer = std::move(peer)]() mutable {
      if (with_tls) {
        start_tls_connection(std::move(*socket), *tls, host, loop, std::move(peer));
      } else {
        start_connection(std::move(*socket), host, loop, std::move(peer));
      }
    };
    if (&loop == loops[0].get()) {
      start();
    } else {
      loop.post(std::move(start));
    }
  }
}

void Server::Impl::stop_listening() {
  if (!listening) return;
  listening = false;
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  loops[0]->post([&] {
    for (const auto& a : acceptors) {
      error_code ignored;
      a->close(ignored);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return closed; });
  for (const std::string& path : unix_paths) ::unlink(path.c_str());
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(const ServeConfig& config, const Router& router, ServerHooks hooks) {
  auto impl = std::make_unique<Impl>(config, router, std::move(hooks));
  DI_RETURN_IF_ERROR(impl->open_tls());
  if (config.listen.empty()) return Status(Code::kInvalidArgument, "There is no address to listen on.");
  for (const std::string& address : config.listen) DI_RETURN_IF_ERROR(impl->listen(address));
  for (const auto& loop : impl->loops) loop->start();
  impl->listening = true;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

const std::vector<std::string>& Server::addresses() const { return impl_->addresses; }

int Server::connections() const { return impl_->host.connections; }

void Server::stop() { impl_->stop(); }

bool Server::draining() const { return impl_->host.draining; }

bool Server::drain(double timeout_s) {
  impl_->host.draining = true;
  impl_->stop_listening();
  for (const auto& loop : impl_->loops) {
    loop->post([l = loop.get()] { l->stop_connections(false); });
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  while (impl_->host.connections > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return impl_->host.connections == 0;
}

}  // namespace deepinfer::serve
