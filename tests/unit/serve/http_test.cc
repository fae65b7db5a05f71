// Connections over real sockets, with handlers of the test's own.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "serve/host.h"
#include "serve/server.h"
#include "tests/support/http_client.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::serve {
namespace {

using testing::HttpClient;
using testing::HttpReply;

struct Ended {
  int status;
  bool complete;
};

class Http : public ::testing::Test {
 protected:
  void start(const ServeLimits& limits = {}, int io_threads = 1) {
    config_.listen = {"127.0.0.1:0", "unix:" + dir_.path() + "/socket"};
    config_.io_threads = io_threads;
    config_.numbered_ids = true;
    config_.limits.replace(limits);
    router_.add(
        {.method = "GET", .path = "/hello", .handler = [](const auto& x) { x->respond({.body = "\"hello\""}); }});
    router_.add({.method = "POST", .path = "/echo", .handler = [](const auto& x) {
                   x->respond({.content_type = kTextType, .body = std::move(x->body())});
                 }});
    router_.add({.method = "GET", .path = "/never", .handler = [this](const auto& x) {
                   x->on_gone = [this] { ++gone_; };
                   kept_.push_back(x);
                   ++asked_;
                 }});
    router_.add({.method = "GET", .path = "/dropped", .handler = [](const auto&) {}});
    router_.add(
        {.method = "GET", .path = "/throws", .handler = [](const auto&) { throw std::runtime_error("broken"); }});
    router_.add({.method = "GET", .path = "/stream", .handler = [](const auto& x) {
                   x->begin_stream({.content_type = kEventStream});
                   for (int i = 0; i < 3; ++i) {
                     x->stream_out() += "data: " + std::to_string(i) + "\n\n";
                     x->flush();
                   }
                   x->end_stream();
                 }});
    router_.add({.method = "GET", .path = "/flood", .handler = [this](const auto& x) {
                   x->begin_stream({.content_type = kTextType});
                   const auto more = [this, raw = x.get()] {
                     while (raw->unsent() <= config_.limits->unsent_bytes_max) {
                       raw->stream_out() += std::string(4096, 'x');
                       raw->flush();
                       flooded_ += 4096;
                     }
                   };
                   x->on_writable = more;
                   x->on_gone = [this] { ++gone_; };
                   kept_.push_back(x);
                   more();
                 }});
    auto server = Server::start(config_, router_, {.finished = [this](const Finished& f) {
                                                     last_status_ = f.status;
                                                     ++finished_;
                                                   },
                                                   .on_limit = [this](std::string_view) { ++limits_hit_; }});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    const std::string& address = server_->addresses()[0];
    port_ = std::atoi(address.c_str() + address.rfind(':') + 1);
  }

  // Exchanges tell the server of their end, and its loops may still use them until they stand.
  void TearDown() override {
    if (server_) server_->stop();
    kept_.clear();
    server_.reset();
  }

  template <class F>
  static bool eventually(F&& f) {
    for (int i = 0; i < 6000; ++i) {
      if (f()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  testing::TempDir dir_;
  ServeConfig config_;
  Router router_;
  std::vector<std::shared_ptr<Exchange>> kept_;
  std::atomic<int> asked_{0}, gone_{0}, finished_{0}, last_status_{0}, limits_hit_{0};
  std::atomic<size_t> flooded_{0};
  int port_ = 0;
  std::unique_ptr<Server> server_;
};

// While a handler works the connection already reads on; the buffer of a large request may not be given back meanwhile.
TEST_F(Http, AnswersTheRequestBehindALargeOneThatWasAnsweredLate) {
  std::vector<std::thread> late;
  router_.add({.method = "POST", .path = "/late", .handler = [&late](const auto& x) {
                 late.emplace_back([x, loop = &x->loop()] {
                   std::this_thread::sleep_for(std::chrono::milliseconds(50));
                   loop->post([x] { x->respond({.body = "\"late\""}); });
                 });
               }});
  ServeLimits limits;
  limits.header_timeout_s = 2;
  start(limits);
  HttpClient client(port_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.request("POST", "/late", std::string(300'000, 'x')).body, "\"late\"");
    EXPECT_EQ(client.request("GET", "/hello").body, "\"hello\"");
  }
  for (std::thread& t : late) t.join();
}

TEST_F(Http, KeepsAConnectionForManyRequests) {
  start();
  HttpClient client(port_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.request("GET", "/hello").body, "\"hello\"");
    EXPECT_EQ(client.request("POST", "/echo", "some text").body, "some text");
    const HttpReply stream = client.request("GET", "/stream");
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(stream.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  }
  const HttpReply head = client.request("HEAD", "/hello");
  EXPECT_EQ(head.headers.at("content-length"), "7");
  EXPECT_TRUE(head.body.empty());
  EXPECT_EQ(client.request("GET", "/hello").headers.at("x-request-id"), "req_11");
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(Http, ServesUnixSocketsAndSeveralThreads) {
  start({}, 3);
  HttpClient local(dir_.path() + "/socket");
  EXPECT_EQ(local.request("GET", "/hello").status, 200);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(HttpClient(port_).request("GET", "/hello").status, 200);
}

TEST_F(Http, AnswersPipelinedRequestsInOrder) {
  start();
  HttpClient client(port_);
  client.send(
      "GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: "
      "a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.reply().body, "\"hello\"");
  EXPECT_EQ(client.reply().body.size(), 27u);
  EXPECT_EQ(client.reply().headers.at("connection"), "close");
  EXPECT_EQ(client.read_some(), "");
}

TEST_F(Http, ReadsAbsoluteTargetsAsTheirPath) {
  start();
  HttpClient client(port_);
  for (const std::string_view target : {"http://a:80/hello", "HTTPS://a/hello?x=1", "/hello"}) {
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target));
    EXPECT_EQ(client.reply().body, "\"hello\"") << target;
  }
  for (const std::string_view target : {"http://a", "http://", "http:/hello", "ftp://a/hello", "http://hello"}) {
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target));
    EXPECT_EQ(client.reply().status, 404) << target;
  }
}

TEST_F(Http, SpeaksHttp10WithoutChunks) {
  start();
  HttpClient client(port_);
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const HttpReply reply = client.reply();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_EQ(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
}

TEST_F(Http, ReadsChunkedBodiesAndExpectations) {
  start();
  HttpClient client(port_);
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.reply().body, "abcde");
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_some(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.reply().body, "ok");
}

TEST_F(Http, RefusesWhatIsNoRequest) {
  start();
  for (const char* text : {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /hello HTTP/1.1\r\nbad header\r\n\r\n",
                           "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET /hello HTTP/1.1\r\n\r\n",
                           "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    HttpClient client(port_);
    client.send(text);
    EXPECT_EQ(client.reply().status, 400) << text;
    EXPECT_EQ(client.read_some(), "") << text;
  }
  EXPECT_EQ(HttpClient(port_).request("GET", "/nothing").status, 404);
  EXPECT_EQ(HttpClient(port_).request("DELETE", "/hello").status, 405);
  EXPECT_EQ(HttpClient(port_).request("GET", "/throws").status, 500);
  EXPECT_EQ(HttpClient(port_).request("GET", "/dropped").status, 500);
  EXPECT_EQ(HttpClient(port_).request("GET", "/hello").status, 200);
}

// A proxy may read these otherwise than the server: what stands behind them is never taken for a request.
TEST_F(Http, RefusesHeadsThatCanBeReadInTwoWays) {
  start();
  for (const char* head : {"Transfer-Encoding: xchunked", "Transfer-Encoding: gzip, chunked",
                           "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity",
                           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Host: b"}) {
    HttpClient client(port_);
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\n" + std::string(head) +
                "\r\n\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    const HttpReply reply = client.reply();
    EXPECT_EQ(reply.status, 400) << head;
    EXPECT_EQ(reply.headers.at("connection"), "close") << head;
    EXPECT_EQ(client.read_some(), "") << head;
  }
  HttpClient old(port_);
  old.send("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(old.reply().status, 400);
  HttpClient upper(port_);
  upper.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
  EXPECT_EQ(upper.reply().body, "ab");
}

// None of these lines is part of the body, whose limit they would pass by.
TEST_F(Http, LimitsWhatStandsAroundChunks) {
  start({.header_bytes_max = 4096});
  const std::string head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string trailers;
  for (int i = 0; i < 20; ++i) trailers += "X: y\r\n";
  HttpClient small(port_);
  small.send(head + "2;name=value\r\nab\r\n0;end\r\n" + trailers + "\r\n");
  EXPECT_EQ(small.reply().body, "ab");
  while (trailers.size() < 1 << 16) trailers += trailers;
  for (const std::string& around : {"2;name=" + std::string(1 << 16, 'x'), std::string(1 << 16, '0'),
                                    "2\r\nab\r\n0\r\nX: " + std::string(1 << 16, 'y'), "2\r\nab\r\n0\r\n" + trailers}) {
    HttpClient client(port_);
    client.send(head + around);
    const HttpReply reply = client.reply();
    EXPECT_EQ(reply.status, 431) << around.substr(0, 20);
    EXPECT_NE(reply.body.find("header_bytes_max"), std::string::npos);
  }
  EXPECT_EQ(limits_hit_, 4);
}

TEST_F(Http, LimitsSizesBeforeParsing) {
  start({.header_bytes_max = 4096, .body_bytes_max = 1000});
  HttpClient large(port_);
  large.send("GET /hello HTTP/1.1\r\nX: " + std::string(10'000, 'x'));
  EXPECT_EQ(large.reply().status, 431);
  EXPECT_EQ(HttpClient(port_).request("POST", "/echo", std::string(1000, 'x')).status, 200);
  const HttpReply refused = HttpClient(port_).request("POST", "/echo", std::string(1001, 'x'));
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("body_bytes_max = 1000"), std::string::npos);
  HttpClient chunked(port_);
  chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 5; ++i) chunked.send("100\r\n" + std::string(256, 'x') + "\r\n");
  EXPECT_EQ(chunked.reply().status, 413);
  EXPECT_GE(limits_hit_, 3);
}

TEST_F(Http, EndsIdleConnections) {
  start({.idle_timeout_s = 0.3});
  HttpClient idle(port_);
  EXPECT_EQ(idle.read_some(), "");
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, EndsSlowHeadersAndBodies) {
  start({.header_timeout_s = 0.3, .body_timeout_s = 0.3});
  HttpClient headers(port_), body(port_);
  headers.send("GET /hello HTTP/1.1\r\nHost");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
  EXPECT_EQ(headers.reply().status, 408);
  EXPECT_EQ(body.reply().status, 408);
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, TellsTheHandlerThatTheClientHasGone) {
  start();
  HttpClient client(port_);
  client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, HearsThatAClientWhoSentRequestsAheadHasGone) {
  start();
  HttpClient client(port_);
  client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /hel");
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, KeepsRequestsThatComeWhileOthersAreInWork) {
  router_.add({.method = "POST", .path = "/late", .handler = [](const auto& x) {
                 std::thread([x, loop = &x->loop()] {
                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                   loop->post([x] { x->respond({.content_type = kTextType, .body = std::move(x->body())}); });
                 }).detach();
               }});
  start();
  HttpClient client(port_);
  constexpr int kRequests = 40;  // more than is read ahead
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) {
      const std::string body = std::string(3'000, static_cast<char>('a' + i % 26)) + std::to_string(i);
      client.send("POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                  body);
      if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(client.reply().body, std::string(3'000, static_cast<char>('a' + i % 26)) + std::to_string(i));
  }
  sender.join();
}

TEST_F(Http, PausesForASlowReader) {
  start({.unsent_bytes_max = 64 << 10});
  HttpClient slow(port_);
  slow.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return flooded_ > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const size_t full = flooded_;
  EXPECT_LT(full, 32u << 20);  // what the sockets take, and the limit
  EXPECT_EQ(HttpClient(port_).request("GET", "/hello").status, 200);
  for (size_t read = 0; read < full;) {
    const std::string bytes = slow.read_some();
    ASSERT_FALSE(bytes.empty());
    read += bytes.size();
  }
  EXPECT_TRUE(eventually([&] { return flooded_ > full; }));
  EXPECT_EQ(gone_, 0);
}

TEST_F(Http, EndsAStuckReader) {
  start({.unsent_bytes_max = 64 << 10, .write_timeout_s = 0.3});
  HttpClient stuck(port_);
  stuck.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, DrainsWhatIsInWorkAndTakesNothingNew) {
  start();
  HttpClient working(port_), idle(port_);
  EXPECT_EQ(idle.request("GET", "/hello").status, 200);
  working.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kept_[0]->loop().post([&] { kept_[0]->respond({.body = "late"}); });
  });
  EXPECT_TRUE(server_->drain(60));
  EXPECT_EQ(working.reply().body, "late");
  EXPECT_EQ(idle.read_some(), "");
  EXPECT_FALSE(HttpClient(port_).connected());
  ender.join();
}

TEST_F(Http, GivesUpDrainingAfterItsTime) {
  start();
  HttpClient working(port_);
  working.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  EXPECT_FALSE(server_->drain(0.1));
  server_->stop();
  EXPECT_EQ(gone_, 1);
}

// Requests with bytes changed, doubled, cut and sent in pieces, and clients that leave at any point.
TEST_F(Http, SurvivesDamagedRequests) {
  start({.header_bytes_max = 4096, .body_bytes_max = 4096});
  const std::string seeds[] = {
      "GET /hello HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n",
      "GET /stream?a=%20b HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /flood HTTP/1.1\r\nHost: a\r\n\r\n"};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  for (int round = 0; round < 200; ++round) {
    std::string text = seeds[below(4)];
    for (size_t edits = below(4); edits-- > 0;) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, below(8)); break;
        case 2: text.insert(at, text.substr(at, below(20))); break;
        default: text.insert(at, std::string(below(600), static_cast<char>(random())));
      }
      if (text.empty()) text = "x";
    }
    HttpClient client(port_, 1);
    const size_t cut = below(text.size());
    client.send(std::string_view(text).substr(0, cut));
    if (below(2) == 0) client.send(std::string_view(text).substr(cut));
    if (below(20) == 0) client.read_some(100);
  }
  EXPECT_EQ(HttpClient(port_).request("GET", "/hello").status, 200);
  EXPECT_TRUE(eventually([&] { return server_->connections() <= 1; }));
}

TEST(Server, RefusesFilesThatAreNoCertificate) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/cert.pem";
  std::ofstream(path) << "no certificate";
  ServeConfig config;
  config.listen = {"127.0.0.1:0"};
  config.tls = {path, path};
  Router router;
  EXPECT_FALSE(Server::start(config, router, {}).ok());
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  const auto server = Server::start(config, router, {});
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("certificate"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::serve
