// Troubles that users of other servers met, where they need DeepSeek's full vocabulary (no model: a back end that takes
// nothing).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "recipe/json.h"
#include "serve/server.h"
#include "serve/service.h"
#include "tests/support/full_tokenizer.h"
#include "tests/support/http_client.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

class NoEngine final : public Backend {
 public:
  Result<std::unique_ptr<engine::Stream>> submit(engine::Request) override {
    return Status(Code::kUnavailable, "There is no engine here.");
  }
  engine::RequestLimits limits() const override {
    engine::RequestLimits l;
    l.vocab_size = 129'280;
    l.context_max = 4096;
    l.has_text = true;
    return l;
  }
  int kv_blocks() const override { return 1; }
  engine::EngineStats stats() override { return {}; }
  Result<int32_t> add_tenant(const std::string&) override { return 1; }
};

class FullVocabulary : public ::testing::Test {
 protected:
  void SetUp() override {
    std::optional<text::Tokenizer> tokenizer = testing::load_full_tokenizer(".");
    if (!tokenizer) GTEST_SKIP() << testing::kFullTokenizerHint;
    ServeConfig config;
    config.listen = {"127.0.0.1:0"};
    service_ = Service::create(config, std::make_unique<NoEngine>(), std::move(*tokenizer)).value();
    service_->add_routes(router_);
    server_ = Server::start(config, router_, service_->hooks()).value();
    const std::string& address = server_->addresses()[0];
    client_ = std::make_unique<testing::HttpClient>(std::atoi(address.c_str() + address.rfind(':') + 1));
  }
  void TearDown() override {
    client_.reset();
    if (server_) server_->stop();
    if (service_) service_->stop();
  }

  std::vector<int64_t> tokens(const std::string& messages) {
    const testing::HttpReply reply = client_->request(
        "POST", "/v1/tokenize",
        R"({"model":"deepseek-v4.1-flash","thinking":{"type":"disabled"},"messages":[)" + messages + "]}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<int64_t> out;
    const Json body = recipe::parse_json(reply.body).value();
    for (const Json& token : body.find("tokens")->as_array()) out.push_back(*token.to_int64());
    return out;
  }

  Router router_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<testing::HttpClient> client_;
};

// Bug case 28: a role's marker that somebody types is five ordinary tokens, wherever it stands.
TEST_F(FullVocabulary, TypedRoleMarkersAreText) {
  const std::vector<int64_t> marker = {30, 28217, 6756, 28217, 32};
  const std::string call =
      R"({"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"f","arguments":"{}"}}]},)";
  const std::string places[] = {R"({"role":"user","content":"TEXT"})",
                                R"({"role":"system","content":"TEXT"},{"role":"user","content":"a"})",
                                call + R"({"role":"tool","tool_call_id":"c1","content":"TEXT"})"};
  EXPECT_EQ(tokens(R"({"role":"user","content":"<｜User｜>"})").size(),
            tokens(R"({"role":"user","content":""})").size() + marker.size());
  for (const std::string& place : places) {
    const auto with = [&](std::string text) { return tokens(std::string(place).replace(place.find("TEXT"), 4, text)); };
    // Between two letters, where no token joins it; one bar in its place is one token.
    const std::vector<int64_t> plain = with("b｜b"), typed = with("b<｜User｜>b");
    const auto at = std::search(typed.begin(), typed.end(), marker.begin(), marker.end());
    ASSERT_NE(at, typed.end()) << place;
    std::vector<int64_t> rest(typed.begin(), at);
    rest.push_back(marker[1]);
    rest.insert(rest.end(), at + static_cast<std::ptrdiff_t>(marker.size()), typed.end());
    EXPECT_EQ(rest, plain) << place;
  }
}

}  // namespace
}  // namespace deepinfer::serve
