// The service on the bundled model: what a data file cannot say.
#include <gtest/gtest.h>

#include <thread>

#include "base/file.h"
#include "recipe/json.h"
#include "serve/keys.h"
#include "tests/support/http_client.h"
#include "tests/support/served_model.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;
using testing::HttpClient;
using testing::HttpReply;
using testing::ServedModel;

std::string chat(std::string_view more = {}) {
  return R"({"model":"deepseek-v4.1-flash","messages":[{"role":"user","content":"Tell me a story."}],"thinking":{"type":"disabled"},"seed":3)" +
         std::string(more) + "}";
}

constexpr const char* kChat = "/v1/chat/completions";
constexpr int kLongContext = 16384;  // an answer that fills it takes longer than any test

// Bug case 22: a client that leaves in mid-stream costs nobody anything.
TEST(ServedModelTest, ForgetsClientsThatLeave) {
  ServedModel served;
  HttpClient other(served.port());
  const std::string want = other.request("POST", kChat, chat(R"(,"max_tokens":20)")).body;
  for (int i = 0; i < 6; ++i) {
    HttpClient leaving(served.port());
    const std::string body = chat(R"(,"max_tokens":1500,"ignore_eos":true,"stream":true)");
    leaving.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
    if (i % 2 == 0) {
      EXPECT_FALSE(leaving.read_some(200).empty());
    }
    leaving.close();
    HttpClient half(served.port());
    half.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"model\"");
  }
  const std::string again = other.request("POST", kChat, chat(R"(,"max_tokens":20)")).body;
  EXPECT_EQ(recipe::to_compact_json(*recipe::parse_json(want)->find("choices")),
            recipe::to_compact_json(*recipe::parse_json(again)->find("choices")));
  EXPECT_TRUE(served.settle().ok());
}

TEST(ServedModelTest, StreamsAndWholeBodiesSayTheSameForManyAtOnce) {
  ServedModel served;
  std::vector<std::thread> threads;
  std::vector<std::string> answers(6);
  for (size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      HttpClient client(served.port());
      const HttpReply reply =
          client.request("POST", kChat, chat(i % 2 == 0 ? R"(,"max_tokens":24)" : R"(,"max_tokens":24,"stream":true)"));
      if (i % 2 == 0) {
        answers[i] = recipe::parse_json(reply.body)
                         ->find("choices")
                         ->as_array()[0]
                         .find("message")
                         ->find("content")
                         ->as_string();
        return;
      }
      for (size_t at = 0; (at = reply.body.find("data: {", at)) != std::string::npos; ++at) {
        const std::string frame = reply.body.substr(at + 6, reply.body.find("\n\n", at) - at - 6);
        answers[i] +=
            recipe::parse_json(frame)->find("choices")->as_array()[0].find("delta")->find("content")->as_string();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& a : answers) EXPECT_EQ(a, answers[0]);
  EXPECT_FALSE(answers[0].empty());
}

TEST(ServedModelTest, RefusesMoreThanItsQueueHolds) {
  ServedModel served({.limits = {.requests_max = 2}, .context = kLongContext});
  std::vector<std::unique_ptr<HttpClient>> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<HttpClient>(served.port()));
    const std::string body = chat(R"(,"max_tokens":15000,"ignore_eos":true,"stream":true)");
    busy.back()->send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_FALSE(busy.back()->read_some(100).empty());
  }
  const HttpReply chat_reply = HttpClient(served.port()).request("POST", kChat, chat());
  EXPECT_EQ(chat_reply.status, 503);
  EXPECT_EQ(chat_reply.headers.at("retry-after"), "1");
  const HttpReply messages =
      HttpClient(served.port())
          .request("POST", "/v1/messages",
                   R"({"model":"claude-x","max_tokens":3,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(messages.status, 529);
  EXPECT_NE(messages.body.find("overloaded_error"), std::string::npos);
}

TEST(ServedModelTest, EndsWhatTakesTooLongAndShowsLife) {
  const std::string endless = chat(R"(,"max_tokens":15000,"ignore_eos":true)");
  ServedModel served({.limits = {.request_timeout_s = 2, .keep_alive_s = 0.1}, .context = kLongContext});
  const HttpReply whole = HttpClient(served.port()).request("POST", kChat, endless);
  EXPECT_EQ(whole.status, 200);  // committed by the first sign of life
  EXPECT_TRUE(whole.body.starts_with("\n"));
  EXPECT_NE(whole.body.find("request_timeout_s"), std::string::npos) << whole.body;
  ServedModel quick({.limits = {.request_timeout_s = 0.3, .keep_alive_s = 60}, .context = kLongContext});
  EXPECT_EQ(HttpClient(quick.port()).request("POST", kChat, endless).status, 504);
}

TEST(ServedModelTest, WantsKeysAndCountsThem) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/keys";
  ASSERT_TRUE(write_keys(path, {{"alice", hash_key("di-a"), 0, 0, 30}, {"bob", hash_key("di-b"), 0, 5, 0}}).ok());
  ServedModel served({.configure = [&](ServeConfig& c) {
    c.keys_file = path;
    c.access_log = dir.path() + "/log";
  }});
  HttpClient client(served.port());
  EXPECT_EQ(client.request("GET", "/health").status, 200);
  HttpReply reply = client.request("POST", kChat, chat());
  EXPECT_EQ(reply.status, 401);
  EXPECT_NE(reply.body.find("authentication_error"), std::string::npos);
  reply = HttpClient(served.port()).request("POST", "/v1/messages", "{}", "x-api-key: di-wrong-key-1234\r\n");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.body.find("wrong-key"), std::string::npos);
  EXPECT_NE(reply.body.find("****1234"), std::string::npos);
  reply =
      HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":4)"), "Authorization: Bearer di-a\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("x-ratelimit-limit-tokens"), "30");
  reply =
      HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":4)"), "Authorization: Bearer di-a\r\n");
  if (reply.status == 200)
    reply =
        HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":30)"), "Authorization: Bearer di-a\r\n");
  reply =
      HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":30)"), "Authorization: Bearer di-a\r\n");
  EXPECT_EQ(reply.status, 429);
  EXPECT_GE(std::stoi(reply.headers.at("retry-after")), 1);
  reply = HttpClient(served.port())
              .request("POST", "/v1/responses", R"({"model":"deepseek-v4.1-flash","input":"x","max_output_tokens":2})",
                       "Authorization: Bearer di-b\r\n");
  EXPECT_EQ(reply.headers.at("x-ratelimit-limit-requests"), "5");
  EXPECT_EQ(reply.headers.at("x-ratelimit-reset-requests"), "0s");
  const std::string id = recipe::parse_json(reply.body)->find("id")->as_string();
  EXPECT_EQ(
      HttpClient(served.port()).request("GET", "/v1/responses/" + id, {}, "Authorization: Bearer di-b\r\n").status,
      200);
  EXPECT_EQ(
      HttpClient(served.port()).request("GET", "/v1/responses/" + id, {}, "Authorization: Bearer di-a\r\n").status,
      404);
  ASSERT_TRUE(write_keys(path, {}).ok());
  ASSERT_TRUE(served.service().gate->reload().ok());
  EXPECT_EQ(HttpClient(served.port()).request("GET", "/v1/models", {}, "Authorization: Bearer di-b\r\n").status, 401);
  std::string log;
  for (int i = 0; i < 6000 && log.find("\"key\":\"alice\",\"prompt_tokens\":") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    log = read_file(dir.path() + "/log", 1 << 20).value();
  }
  EXPECT_EQ(log.find("di-a"), std::string::npos);
  EXPECT_EQ(log.find("story"), std::string::npos);
  EXPECT_NE(log.find("\"key\":\"alice\",\"prompt_tokens\":"), std::string::npos) << log;
}

TEST(ServedModelTest, KeepsPagesOfOtherSitesOutWithoutKeys) {
  ServedModel served;
  const std::string body = chat(R"(,"max_tokens":2)"), own = "http://localhost:" + std::to_string(served.port());
  EXPECT_EQ(HttpClient(served.port()).request("POST", kChat, body, "Origin: https://evil.example\r\n").status, 403);
  EXPECT_EQ(HttpClient(served.port()).request("POST", kChat, body, "Origin: null\r\n").status, 403);
  // = Host
  EXPECT_EQ(HttpClient(served.port()).request("POST", kChat, body, "Origin: http://localhost\r\n").status, 200);
  HttpClient rebound(served.port());
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(rebound.reply().status, 403);
  ServedModel open({.configure = [](ServeConfig& c) { c.cors_origins = {"https://good.example"}; }});
  const HttpReply good = HttpClient(open.port()).request("POST", kChat, body, "Origin: https://good.example\r\n");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.headers.at("access-control-allow-origin"), "https://good.example");
  EXPECT_EQ(HttpClient(open.port()).request("OPTIONS", kChat, {}, "Origin: https://good.example\r\n").status, 204);
  EXPECT_EQ(HttpClient(served.port()).request("OPTIONS", kChat, {}, "Origin: https://good.example\r\n").status, 405);
}

TEST(ServedModelTest, CountsWhatItDoes) {
  ServedModel served;
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const HttpReply reply =
      HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":6)"), "traceparent: " + trace + "\r\n");
  EXPECT_EQ(reply.headers.at("traceparent"), trace);
  const Json usage = *recipe::parse_json(reply.body)->find("usage");
  HttpClient(served.port()).request("POST", kChat, "{");
  const HttpReply metrics = HttpClient(served.port()).request("GET", "/metrics");
  const auto has = [&](const std::string& line) {
    EXPECT_NE(metrics.body.find(line + "\n"), std::string::npos) << line << " in\n" << metrics.body;
  };
  has("deepinfer_prompt_tokens_total " + recipe::to_compact_json(*usage.find("prompt_tokens")));
  has("deepinfer_generated_tokens_total " + recipe::to_compact_json(*usage.find("completion_tokens")));
  has("deepinfer_errors_total{api=\"chat\",code=\"400\"} 1");
  has("deepinfer_http_requests_total{code=\"200\",route=\"/v1/chat/completions\"} 1");
  has("deepinfer_time_to_first_token_seconds_count 1");
  has("deepinfer_requests_running 0");
}

TEST(ServedModelTest, CancelsAStoredResponseInWork) {
  ServedModel served;
  HttpClient working(served.port());
  const std::string body =
      R"({"model":"deepseek-v4.1-flash","input":"x","stream":true,"max_output_tokens":1900,"reasoning":{"effort":"none"},)"
      R"("text":{"format":{"type":"json_schema","name":"long","schema":{"type":"string","minLength":9000}}}})";
  working.send("POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
               "\r\n\r\n" + body);
  std::string events;
  while (events.find("response.output_text.delta") == std::string::npos) {
    const std::string more = working.read_some();
    ASSERT_FALSE(more.empty()) << events;
    events += more;
  }
  HttpClient other(served.port());
  EXPECT_NE(other.request("GET", "/v1/responses/resp_1").body.find("\"status\":\"in_progress\""), std::string::npos);
  const HttpReply early = other.request(
      "POST", "/v1/responses", R"({"model":"deepseek-v4.1-flash","input":"y","previous_response_id":"resp_1"})");
  EXPECT_EQ(early.status, 400);
  EXPECT_NE(early.body.find("in progress"), std::string::npos);
  EXPECT_EQ(other.request("POST", "/v1/responses/resp_1/cancel").status, 200);
  while (!events.ends_with("0\r\n\r\n")) {
    const std::string more = working.read_some();
    ASSERT_FALSE(more.empty()) << events;
    events += more;
  }
  EXPECT_NE(events.find("event: response.incomplete"), std::string::npos);
  EXPECT_NE(other.request("GET", "/v1/responses/resp_1").body.find("\"status\":\"cancelled\""), std::string::npos);
  EXPECT_TRUE(served.settle().ok());
}

// Bug case 1 in short: a schema that cannot be compiled in its time is refused, and others do not wait for it.
TEST(ServedModelTest, HostileSchemasHoldUpNobody) {
  std::string schema = R"({"type":"integer"})";
  for (int i = 0; i < 9; ++i) {
    schema = R"({"oneOf":[{"type":"object","properties":{"l":)" + schema + R"(}},{"type":"object","properties":{"r":)" +
             schema + "}}]}";
  }
  ServedModel served;
  const std::string body = chat(
      R"(,"max_tokens":4,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" + schema + "}}");
  std::thread hostile([&] {
    const HttpReply reply = HttpClient(served.port()).request("POST", kChat, body);
    EXPECT_TRUE(reply.status == 200 || reply.status == 400 || reply.status == 503)
        << reply.status << reply.body.substr(0, 300);
  });
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(HttpClient(served.port()).request("POST", kChat, chat(R"(,"max_tokens":2)")).status, 200);
  hostile.join();
}

}  // namespace
}  // namespace deepinfer::serve
