// Request bytes to token ids, beside deepseek-recipe: a chat with tools cold and with its previous turn cached, the next
// turn of a 200-turn chat, and a 32k-token prompt on two threads. Wall time, medians of interleaved rounds. The ids of
// both are compared.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "bench/bench.h"
#include "bench/peer.h"
#include "recipe/json.h"
#include "recipe/request.h"
#include "recipe/tokenize.h"
#include "tests/support/full_tokenizer.h"

namespace {

using namespace deepinfer;
using recipe::Json;
using recipe::JsonArray;

constexpr char kPeerName[] = "deepseek-recipe 0.2.0";
constexpr char kModel[] = "DeepSeek-V4.1-Flash";

std::string sentence(uint64_t i) {
  static const char* kSentences[] = {
      "The gauge at station B7 stood at 3.4 metres this morning, 12 cm less than yesterday. ",
      "If the level falls below 2.9 m, keep the lower gate shut and tell the crew of the dredger.\n",
      "Please compare it with the readings of 2024-03-17 and write the difference as a table.\n\n",
      "The keeper wrote that the lamp had been dark for an hour because the oil was old and the wick too short. ",
      "今天早上水位比昨天低了十二厘米。\n", "Tell the harbour office that the survey vessel leaves at noon and comes back before the tide turns. ",
      "\"Who signed the log?\" asked the keeper; nobody answered (they had all gone ashore). "};
  return kSentences[i % std::size(kSentences)];
}

std::string words(uint64_t seed, size_t bytes) {
  std::string text;
  for (uint64_t i = seed * 7 + 3; text.size() < bytes; i += 1 + seed % 3) {
    text += sentence(i);
    if (i % 5 == 0) text += "Entry " + std::to_string(i * 2654435761u % 9973) + ". ";
  }
  return text;
}

Json message(const char* role, std::string text) {
  Json m = Json::object();
  m.set("role", role);
  m.set("content", std::move(text));
  return m;
}

Json tools(int count) {
  Json list = Json::array();
  for (int i = 0; i < count; ++i) {
    std::string schema = R"({"type":"object","properties":{"station":{"type":"string","description":"Code of the station, such as B7"},)"
                         R"("days":{"type":"integer","minimum":1,"maximum":31},"unit":{"type":"string","enum":["m","ft"]},)"
                         R"("options":{"type":"object","properties":{"smooth":{"type":"boolean"},"window":{"type":"array","items":{"type":"number"}}}}},)"
                         R"("required":["station"]})";
    Json function = Json::object();
    function.set("name", "tool_" + std::to_string(i));
    function.set("description", words(static_cast<uint64_t>(i) + 90, 120));
    function.set("parameters", recipe::parse_json(schema).value());
    Json tool = Json::object();
    tool.set("type", "function");
    tool.set("function", std::move(function));
    list.as_array().push_back(std::move(tool));
  }
  return list;
}

// A chat of `count` messages, the last by the user; with tools, some turns call one.
std::string chat(int count, size_t bytes, int tool_count) {
  Json messages = Json::array();
  JsonArray& list = messages.as_array();
  list.push_back(message("system", words(1, bytes)));
  for (int i = 1; static_cast<int>(list.size()) < count; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i);
    list.push_back(message("user", words(seed, bytes)));
    if (static_cast<int>(list.size()) >= count) break;
    Json answer = message("assistant", words(seed + 40, bytes / 2));
    answer.set("reasoning_content", words(seed + 60, bytes / 2));
    const bool calls = tool_count > 0 && i % 3 == 0 && static_cast<int>(list.size()) + 3 < count;
    if (calls) {
      answer.set("tool_calls", recipe::parse_json(R"([{"id":"c)" + std::to_string(i) +
                                                  R"(","type":"function","function":{"name":"tool_1","arguments":"{\"station\": \"B7\", \"days\": 3, \"options\": {\"smooth\": true}}"}}])")
                                   .value());
    }
    list.push_back(std::move(answer));
    if (!calls) continue;
    Json result = message("tool", R"({"level": 3.4, "trend": [3.1, 3.2, 3.4]})");
    result.set("tool_call_id", "c" + std::to_string(i));
    list.push_back(std::move(result));
  }
  Json body = Json::object();
  body.set("model", kModel);
  body.set("messages", std::move(messages));
  if (tool_count > 0) body.set("tools", tools(tool_count));
  return recipe::to_compact_json(body);
}

// The chat as it is one turn later.
std::string next_turn(const std::string& body) {
  Json json = recipe::parse_json(body).value();
  JsonArray& list = json.find("messages")->as_array();
  list.push_back(message("assistant", words(300, 200)));
  list.push_back(message("user", words(301, 120)));
  return recipe::to_compact_json(json);
}

struct Setup {
  text::Tokenizer tokenizer;
  std::string tokenizer_file;
  recipe::SpecialIds specials;
  recipe::RequestOptions options;
};

std::vector<text::TokenId> encode(const Setup& s, const recipe::PromptEncoder& encoder, const std::string& body) {
  recipe::Request request;
  if (const auto error = recipe::parse_request(recipe::Protocol::kChat, body, s.options, request)) {
    fmt::print(stderr, "the benchmark's own request is refused: {}\n", error->message);
    std::exit(1);
  }
  return std::move(encoder.encode(recipe::render_request(request)).value().ids);
}

double encode_seconds(const Setup& s, const recipe::PromptEncoder& encoder, const std::string& body) {
  const double begin = bench::wall_seconds();
  encode(s, encoder, body);
  return bench::wall_seconds() - begin;
}

// The peer's times for a body; also checks that both make the same ids.
std::vector<double> ask(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder, const std::string& body, int rounds) {
  if (!peer) return {};
  const std::string file = folder + "/request.json";
  std::ofstream(file, std::ios::binary) << body;
  const std::string answer = peer->ask(fmt::format(R"({{"request":"{}","tokenizer":"{}","rounds":{}}})", file, s.tokenizer_file, rounds));
  Result<Json> value = recipe::parse_json(answer);
  if (!value.ok()) {
    fmt::print(stderr, "NO PEER: it ended: {}\n", answer);
    peer.reset();
    return {};
  }
  std::vector<text::TokenId> theirs;
  for (const Json& id : value.value().find("ids")->as_array()) theirs.push_back(static_cast<text::TokenId>(*id.to_int64()));
  const recipe::PromptEncoder encoder(s.tokenizer, s.specials, {.cache_bytes_max = 0});
  if (theirs != encode(s, encoder, body)) {
    fmt::print(stderr, "the peer makes other ids of the same request\n");
    std::exit(1);
  }
  std::vector<double> seconds;
  for (const Json& t : value.value().find("seconds")->as_array()) seconds.push_back(t.as_double());
  return seconds;
}

std::optional<double> scaled(const std::vector<double>& seconds, double factor) {
  return seconds.empty() ? std::nullopt : std::optional<double>(bench::median(seconds) * factor);
}

void chat_cases(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder, int rounds) {
  const std::string body = chat(20, 620, 10), next = next_turn(body);
  const recipe::PromptEncoder cold(s.tokenizer, s.specials, {.cache_bytes_max = 0});
  const size_t ids = encode(s, cold, body).size();
  fmt::print(stderr, "20 messages, 10 tools: {} bytes, {} ids\n", body.size(), ids);
  std::vector<double> cold_seconds, warm_seconds, theirs;
  for (int i = 0; i < rounds; ++i) {
    cold_seconds.push_back(encode_seconds(s, cold, body));
    const recipe::PromptEncoder warm(s.tokenizer, s.specials, {});
    encode(s, warm, body);
    warm_seconds.push_back(encode_seconds(s, warm, next));
    if (i % 10 == 0) {
      for (double t : ask(s, peer, folder, body, 10)) theirs.push_back(t);
    }
  }
  bench::report({"recipe", "chat20_cold", bench::median(cold_seconds) * 1e6, "us", scaled(theirs, 1e6), kPeerName, 0.1, true, false});
  bench::report({"recipe", "chat20_next_turn", bench::median(warm_seconds) * 1e6, "us", scaled(theirs, 1e6), kPeerName, 200, false, false});
}

void long_chat_case(const Setup& s, int rounds) {
  const std::string body = chat(400, 200, 0), next = next_turn(body);
  const recipe::PromptEncoder cold(s.tokenizer, s.specials, {.cache_bytes_max = 0}), warm(s.tokenizer, s.specials, {});
  encode(s, warm, body);
  std::vector<double> cold_seconds, warm_seconds;
  for (int i = 0; i < rounds; ++i) {
    cold_seconds.push_back(encode_seconds(s, cold, next));
    // Another last message each time, so that the new turn really is new.
    const std::string varied = next_turn(body.substr(0, body.size() - 2) + R"(,{"role":"user","content":")" + std::to_string(i) + R"("}]})");
    warm_seconds.push_back(encode_seconds(s, warm, varied));
  }
  bench::report({"recipe", "chat200_next_turn", bench::median(warm_seconds) * 1e6, "us", bench::median(cold_seconds) * 1e6,
                 "the same prompt cold", std::nullopt, false, false});
}

void long_prompt_case(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder, int rounds) {
  std::string text = words(5, 120'000);
  const recipe::PromptEncoder encoder(s.tokenizer, s.specials, {.cache_bytes_max = 0, .threads = 2});
  const auto body_of = [&] {
    Json body = Json::object();
    body.set("model", kModel);
    body.set("messages", JsonArray{message("user", text)});
    return recipe::to_compact_json(body);
  };
  while (encode(s, encoder, body_of()).size() < 32'768) text += words(text.size(), 2'000);
  const std::string body = body_of();
  std::vector<double> seconds, theirs;
  for (int i = 0; i < rounds; ++i) {
    seconds.push_back(encode_seconds(s, encoder, body));
    if (i % 10 == 0) {
      for (double t : ask(s, peer, folder, body, 3)) theirs.push_back(t);
    }
  }
  bench::report({"recipe", "prompt_32k_cold", bench::median(seconds) * 1e3, "ms", scaled(theirs, 1e3), kPeerName, 5, false, false});
}

std::optional<Setup> make_setup(const std::string& folder) {
  std::optional<std::string> json = testing::full_tokenizer_json(".");
  if (!json) {
    fmt::print(stderr, "measured with the bundled vocabulary: the full one {}\n", testing::kFullTokenizerHint);
    Result<std::string> file = read_file("models/tiny/tokenizer.json", text::Tokenizer::kMaxFileBytes);
    if (!file.ok()) return std::nullopt;
    json = std::move(file).value();
  }
  const std::string path = folder + "/tokenizer.json";
  std::ofstream(path, std::ios::binary) << *json;
  Result<text::Tokenizer> tokenizer = text::Tokenizer::parse(*json);
  if (!tokenizer.ok()) return std::nullopt;
  Result<recipe::SpecialIds> specials = recipe::SpecialIds::find(tokenizer.value(), recipe::Version::kV41);
  if (!specials.ok()) return std::nullopt;
  recipe::RequestOptions options;
  options.models = {{kModel, recipe::Version::kV41}};
  return Setup{std::move(tokenizer).value(), path, specials.value(), options};
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const bench::Options options = bench::parse(argc, argv);
  const int rounds = options.quick ? 10 : 60;
  std::string folder = (std::filesystem::temp_directory_path() / "deepinfer-bench-recipe-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    fmt::print(stderr, "cannot make a folder for the benchmark's files\n");
    return 1;
  }
  int result = 0;
  if (const std::optional<Setup> setup = make_setup(folder)) {
    std::optional<bench::Peer> peer =
        bench::Peer::start("build/test-data/recipe-venv", "deepseek-recipe==0.2.0", "bench/peers/recipe_encode.py");
    chat_cases(*setup, peer, folder, rounds);
    long_chat_case(*setup, rounds);
    long_prompt_case(*setup, peer, folder, rounds / 2);
  } else {
    fmt::print(stderr, "no tokenizer can be loaded\n");
    result = 1;
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}
