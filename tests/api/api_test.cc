// Plays tests/api/cases/*.json: each file is a list of cases, each case a list of steps on one fresh service:
//
//   [{"name": "..", "options": {"store": false, ..}, "steps": [{"request": {"method", "path", "headers", "body" or
//   "text"},
//     "response": {"status", "type", "text"}}]}]
//
// A step's text may use {{N:/json/pointer}}: a member of the body that step N answered. The response must be equal to
// the byte. DEEPINFER_UPDATE_API=1 writes what the service answers into the files; read the difference before
// committing it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "recipe/json.h"
#include "tests/support/http_client.h"
#include "tests/support/served_model.h"

namespace deepinfer::testing {
namespace {

using recipe::Json;

constexpr const char* kCases = "tests/api/cases";

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

bool is_on(const Json* options, std::string_view key, bool otherwise) {
  const Json* value = options == nullptr ? nullptr : options->find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : otherwise;
}

// {{N:/a/0/b}}
std::string fill_in(std::string text, const std::vector<std::string>& bodies) {
  for (size_t open; (open = text.find("{{")) != std::string::npos;) {
    const size_t colon = text.find(':', open), close = text.find("}}", open);
    const size_t step = static_cast<size_t>(std::stoi(text.substr(open + 2, colon - open - 2)));
    const Json body = recipe::parse_json(bodies.at(step)).value();
    const Json* at = &body;
    for (size_t begin = colon + 2; begin <= close && at != nullptr;) {
      const size_t end = std::min(text.find('/', begin), close);
      const std::string part = text.substr(begin, end - begin);
      at = at->is_array() ? &at->as_array().at(static_cast<size_t>(std::stoi(part))) : at->find(part);
      begin = end + 1;
    }
    EXPECT_NE(at, nullptr) << text;
    text.replace(open, close + 2 - open,
                 at == nullptr     ? ""
                 : at->is_string() ? at->as_string()
                                   : recipe::to_compact_json(*at));
  }
  return text;
}

HttpReply play(HttpClient& client, const Json& request, const std::vector<std::string>& bodies) {
  std::string body = text_of(request, "text"), headers;
  if (const Json* json = request.find("body")) body = recipe::to_compact_json(*json);
  if (const Json* h = request.find("headers")) {
    for (const recipe::JsonMember& m : h->as_object()) headers += m.key + ": " + m.value.as_string() + "\r\n";
  }
  const std::string method = text_of(request, "method");
  return client.request(method.empty() ? "POST" : method, fill_in(text_of(request, "path"), bodies),
                        fill_in(body, bodies), headers);
}

std::string type_of(const HttpReply& reply) {
  const auto at = reply.headers.find("content-type");
  return at == reply.headers.end() ? "" : at->second;
}

void run_case(Json& c, bool update) {
  SCOPED_TRACE(text_of(c, "name"));
  const Json* options = c.find("options");
  ServedOptions o;
  o.limits.keep_alive_s = 3600;  // no signs of life in the recorded bytes, however slow the machine
  o.configure = [&](serve::ServeConfig& config) {
    config.store_responses = is_on(options, "store", true);
    config.policies.forced_tool_with_thinking = is_on(options, "forced_tool_with_thinking", false);
    config.policies.drop_billing_line = is_on(options, "drop_billing_line", true);
    config.policies.separate_usage = is_on(options, "separate_usage", false);
  };
  ServedModel served(o);
  std::vector<std::string> bodies;
  for (Json& step : c.find("steps")->as_array()) {
    HttpClient client(served.port());
    const HttpReply reply = play(client, *step.find("request"), bodies);
    bodies.push_back(reply.body);
    Json got = Json::object();
    got.set("status", reply.status);
    got.set("type", type_of(reply));
    got.set("text", reply.body);
    if (update) {
      step.set("response", std::move(got));
      continue;
    }
    const Json* want = step.find("response");
    ASSERT_NE(want, nullptr) << "a step without a response; run with DEEPINFER_UPDATE_API=1";
    EXPECT_EQ(recipe::to_compact_json(*want->find("status")), std::to_string(reply.status));
    EXPECT_EQ(text_of(*want, "type"), type_of(reply));
    EXPECT_EQ(text_of(*want, "text"), reply.body);
  }
  EXPECT_TRUE(served.settle().ok());
}

// One line for what is small, so that differences can be read.
void print(const Json& value, const std::string& indent, std::string* out) {
  const std::string line = recipe::to_python_json(value);
  const bool object = value.is_object() && !value.as_object().empty();
  if (line.size() + indent.size() < 130 || !(object || value.is_array())) {
    *out += line;
    return;
  }
  *out += object ? "{" : "[";
  bool first = true;
  const auto item = [&](std::string_view key, const Json& v) {
    *out += (first ? "\n" : ",\n") + indent + " ";
    if (object) *out += recipe::to_python_json(Json(key)) + ": ";
    print(v, indent + " ", out);
    first = false;
  };
  if (object) {
    for (const recipe::JsonMember& m : value.as_object()) item(m.key, m.value);
  } else {
    for (const Json& v : value.as_array()) item("", v);
  }
  *out += "\n" + indent + (object ? "}" : "]");
}

TEST(Api, RecordedRequestsGiveTheirResponses) {
  const bool update = std::getenv("DEEPINFER_UPDATE_API") != nullptr;
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCases)) {
    SCOPED_TRACE(entry.path().string());
    Result<Json> cases = recipe::parse_json(read_file(entry.path().string(), 64 << 20).value());
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    for (Json& c : cases->as_array()) {
      run_case(c, update);
      ++count;
    }
    if (!update) continue;
    std::string text;
    print(cases.value(), "", &text);
    std::ofstream(entry.path()) << text << "\n";
  }
  EXPECT_GT(count, 20u);
}

}  // namespace
}  // namespace deepinfer::testing
