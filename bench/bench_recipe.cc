// Request bytes to token ids, beside deepseek-recipe: a chat with tools cold and with its previous turn cached, the
// next turn of a 200-turn chat, and a 32k-token prompt on two threads. Every round has new text, from this repository.
// CPU time, the long prompt wall time; medians of interleaved rounds. The ids of both are compared.
#include <algorithm>
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

// This repository's own texts: real prose and real code that no cache has seen as a whole.
const std::string& corpus() {
  static const std::string text = [] {
    std::vector<std::filesystem::path> files;
    for (const char* folder : {"docs", "src"}) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        const std::string extension = entry.path().extension();
        if (extension == ".md" || extension == ".h" || extension == ".cc") files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    std::string all;
    for (const auto& file : files) {
      if (Result<std::string> content = read_file(file.string(), 16 << 20); content.ok()) all += content.value();
    }
    return all;
  }();
  return text;
}

// About `bytes` bytes of whole lines, from another place for every seed.
std::string words(uint64_t seed, size_t bytes) {
  const std::string& all = corpus();
  size_t begin = (seed * 0x9e3779b97f4a7c15u >> 20) % (all.size() - bytes - 1);
  begin = all.find('\n', begin) + 1;
  const size_t end = std::min(all.find('\n', begin + bytes), all.size());
  return all.substr(begin, end - begin);
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
    std::string schema =
        R"({"type":"object","properties":{"station":{"type":"string","description":"Code of the station, such as B7"},)"
        R"("days":{"type":"integer","minimum":1,"maximum":31},"unit":{"type":"string","enum":["m","ft"]},)"
        R"("options":{"type":"object","properties":{"smooth":{"type":"boolean"},"window":{"type":"array","items":{"type":"number"}}}}},)"
        R"("required":["station"]})";
    Json function = Json::object();
    function.set("name", "tool_" + std::to_string(i));
    function.set("description", words(static_cast<uint64_t>(i) + 90, 60));
    function.set("parameters", recipe::parse_json(schema).value());
    Json tool = Json::object();
    tool.set("type", "function");
    tool.set("function", std::move(function));
    list.as_array().push_back(std::move(tool));
  }
  return list;
}

// A chat of `count` messages, the last by the user; with tools, some turns call one.
std::string chat(int count, size_t bytes, int tool_count, uint64_t seed) {
  Json messages = Json::array();
  JsonArray& list = messages.as_array();
  list.push_back(message("system", words(seed, bytes)));
  for (int i = 1; static_cast<int>(list.size()) < count; ++i) {
    ++seed;
    list.push_back(message("user", words(seed, bytes)));
    if (static_cast<int>(list.size()) >= count) break;
    Json answer = message("assistant", words(seed * 31, bytes / 2));
    answer.set("reasoning_content", words(seed * 37, bytes / 2));
    const bool calls = tool_count > 0 && i % 3 == 0 && static_cast<int>(list.size()) + 3 < count;
    if (calls) {
      answer.set(
          "tool_calls",
          recipe::parse_json(
              R"([{"id":"c)" + std::to_string(i) +
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

// CPU time of this thread, which does all the work of an encoder with one thread.
double encode_seconds(const Setup& s, const recipe::PromptEncoder& encoder, const std::string& body) {
  const double begin = bench::thread_cpu_seconds();
  encode(s, encoder, body);
  return bench::thread_cpu_seconds() - begin;
}

// The peer's times for a body; also checks that both make the same ids.
std::vector<double> ask(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder,
                        const std::string& body, int rounds, const char* clock) {
  if (!peer) return {};
  const std::string file = folder + "/request.json";
  std::ofstream(file, std::ios::binary) << body;
  const std::string answer =
      peer->ask(fmt::format(R"({{"request":"{}","tokenizer":"{}","rounds":{}}})", file, s.tokenizer_file, rounds));
  Result<Json> value = recipe::parse_json(answer);
  if (!value.ok()) {
    fmt::print(stderr, "NO PEER: it ended: {}\n", answer);
    peer.reset();
    return {};
  }
  std::vector<text::TokenId> theirs;
  for (const Json& id : value.value().find("ids")->as_array())
    theirs.push_back(static_cast<text::TokenId>(*id.to_int64()));
  const recipe::PromptEncoder encoder(s.tokenizer, s.specials, {.cache_bytes_max = 0});
  if (theirs != encode(s, encoder, body)) {
    fmt::print(stderr, "the peer makes other ids of the same request\n");
    std::exit(1);
  }
  std::vector<double> seconds;
  for (const Json& t : value.value().find(clock)->as_array()) seconds.push_back(t.as_double());
  return seconds;
}

std::optional<double> scaled(const std::vector<double>& seconds, double factor) {
  return seconds.empty() ? std::nullopt : std::optional<double>(bench::median(seconds) * factor);
}

void chat_cases(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder, int rounds) {
  const recipe::PromptEncoder cold(s.tokenizer, s.specials, {.cache_bytes_max = 0});
  std::vector<double> cold_seconds, warm_seconds, theirs, bytes, ids;
  for (int i = 0; i < rounds; ++i) {
    const std::string body = chat(20, 630, 10, static_cast<uint64_t>(i) * 1000 + 1), next = next_turn(body);
    bytes.push_back(static_cast<double>(body.size()));
    const double begin = bench::thread_cpu_seconds();
    const size_t count = encode(s, cold, body).size();
    cold_seconds.push_back(bench::thread_cpu_seconds() - begin);
    ids.push_back(static_cast<double>(count));
    const recipe::PromptEncoder warm(s.tokenizer, s.specials, {});
    encode(s, warm, body);
    warm_seconds.push_back(encode_seconds(s, warm, next));
    if (i % 5 == 0) {
      for (double t : ask(s, peer, folder, body, 4, "cpu")) theirs.push_back(t);
    }
  }
  fmt::print(stderr, "20 messages, 10 tools: {:.0f} bytes, {:.0f} ids\n", bench::median(bytes), bench::median(ids));
  bench::report({"recipe", "chat20_cold", bench::median(cold_seconds) * 1e6, "us", scaled(theirs, 1e6), kPeerName, 0.1,
                 true, false});
  bench::report({"recipe", "chat20_next_turn", bench::median(warm_seconds) * 1e6, "us", scaled(theirs, 1e6), kPeerName,
                 200, false, false});
}

void long_chat_case(const Setup& s, int rounds) {
  const recipe::PromptEncoder cold(s.tokenizer, s.specials, {.cache_bytes_max = 0}), warm(s.tokenizer, s.specials, {});
  std::vector<double> cold_seconds, warm_seconds;
  for (int i = 0; i < rounds; ++i) {
    const std::string body = chat(400, 200, 0, static_cast<uint64_t>(i) * 1000 + 7), next = next_turn(body);
    encode(s, warm, body);
    cold_seconds.push_back(encode_seconds(s, cold, next));
    warm_seconds.push_back(encode_seconds(s, warm, next));
  }
  bench::report({"recipe", "chat200_next_turn", bench::median(warm_seconds) * 1e6, "us",
                 bench::median(cold_seconds) * 1e6, "the same prompt cold", std::nullopt, false, false});
}

void long_prompt_case(const Setup& s, std::optional<bench::Peer>& peer, const std::string& folder, int rounds) {
  const recipe::PromptEncoder encoder(s.tokenizer, s.specials, {.cache_bytes_max = 0, .threads = 2});
  const auto body_of = [](uint64_t seed, size_t bytes) {
    Json body = Json::object();
    body.set("model", kModel);
    body.set("messages", JsonArray{message("user", words(seed, bytes))});
    return recipe::to_compact_json(body);
  };
  // The size at which such text has 32k tokens.
  size_t bytes = 80'000;
  while (encode(s, encoder, body_of(1, bytes)).size() < 32'768) bytes += 4'000;
  std::vector<double> seconds, theirs;
  for (int i = 0; i < rounds; ++i) {
    const std::string body = body_of(static_cast<uint64_t>(i) + 2, bytes);
    const double begin = bench::wall_seconds();
    encode(s, encoder, body);
    seconds.push_back(bench::wall_seconds() - begin);
    if (i % 10 == 0) {
      for (double t : ask(s, peer, folder, body, 2, "seconds")) theirs.push_back(t);
    }
  }
  bench::report({"recipe", "prompt_32k_cold", bench::median(seconds) * 1e3, "ms", scaled(theirs, 1e3), kPeerName, 5,
                 false, false});
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
