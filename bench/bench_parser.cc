// Parsing speed: output text to parser events and to server-sent events of the three APIs, beside deepseek-recipe; and
// that one large chunk takes linear time. All on one core, thread CPU time, medians of interleaved rounds.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "bench/bench.h"
#include "bench/peer.h"
#include "recipe/api_stream.h"
#include "recipe/json.h"
#include "text/tokenizer.h"

namespace {

using namespace deepinfer;
using recipe::Protocol;

struct Silence : recipe::OutputSink {
  size_t bytes = 0;
  void on_reasoning(std::string_view t, recipe::SourceRange) override { bytes += t.size(); }
  void on_content(std::string_view t, recipe::SourceRange) override { bytes += t.size(); }
  void on_call_begin(int, std::string_view t) override { bytes += t.size(); }
  void on_call_arguments(int, std::string_view t) override { bytes += t.size(); }
  void on_call_end(int, bool) override {}
};

std::string repeat(const std::string& piece, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

std::string english(size_t bytes) {
  const std::string paragraph =
      "The gauge at station B7 stood at 3.4 metres this morning, which is 12 cm less than yesterday.\nIf x < 4, then "
      "the lower "
      "gate stays shut; otherwise it opens (see the table \"Levels\").\n\n* upstream: 3.1 m\n* downstream: 2.9 m\n\n";
  return repeat(paragraph, bytes / 2) + "</think>\n\n" + repeat(paragraph, bytes / 2);
}

std::string chinese(size_t bytes) {
  const std::string paragraph =
      "今天早上，七号站的水位是三点四米，比昨天低了十二厘米。\n如果水位低于四米，下游的闸门保持关闭；否则打开。\n\n";
  return repeat(paragraph, bytes / 2) + "</think>\n\n" + repeat(paragraph, bytes / 2);
}

std::string calls(size_t bytes) {
  const std::string call =
      "<｜DSML｜ invoke name=\"read_gauge\">\n<｜DSML｜ parameter name=\"station\" string=\"true\">B7, the one "
      "\"behind\" the "
      "weir;\nask for the last value\tonly</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" "
      "string=\"false\">[12, 13, "
      "{\"from\": 1.5}]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n";
  return "look it up</think>\n\n<｜DSML｜ calls>\n" + repeat(call, bytes) + "</｜DSML｜ calls>";
}

// The same cuts as the peer's: every `size` code points.
std::vector<std::string_view> cut(const std::string& text, size_t size) {
  if (size == 0) return {text};
  std::vector<std::string_view> pieces;
  size_t begin = 0, count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (count++ == size) {
      pieces.push_back(std::string_view(text).substr(begin, i - begin));
      begin = i;
      count = 1;
    }
  }
  pieces.push_back(std::string_view(text).substr(begin));
  return pieces;
}

recipe::ParserOptions parser_options() {
  recipe::ParserOptions o;
  o.initial = recipe::InitialStage::kReasoningStart;
  o.parse_tool_calls = true;
  return o;
}

double parse_seconds(const std::vector<std::string_view>& pieces, const std::vector<std::string>& stops = {}) {
  Silence sink;
  recipe::ParserOptions options = parser_options();
  if (!stops.empty()) options.initial = recipe::InitialStage::kContent;  // stop sequences count only in the answer
  options.stop_sequences = stops;
  recipe::OutputParser parser(options, &sink);
  const double begin = bench::thread_cpu_seconds();
  for (const std::string_view piece : pieces) parser.feed(piece);
  parser.finish(recipe::FinishReason::kStop);
  const double seconds = bench::thread_cpu_seconds() - begin;
  if (sink.bytes == 0) std::exit(1);
  return seconds;
}

std::unique_ptr<recipe::ApiStream> open_stream(Protocol protocol, bool ids, const recipe::OutputVocabulary& vocabulary,
                                               bool logprobs) {
  recipe::ApiStreamOptions o;
  o.protocol = protocol;
  o.parser = parser_options();
  o.token_ids = ids;
  o.logprobs = logprobs;
  o.id = "2f1d6c1e-93ab-4c58-9d1e-5f0c4a4b7d11";
  o.model = "deepseek-v4.1-flash";
  o.system_fingerprint = "fp_test";
  return std::move(recipe::ApiStream::create(o, &vocabulary)).value();
}

double sse_seconds(const std::vector<std::string_view>& pieces) {
  static const recipe::OutputVocabulary kNone;
  auto stream = open_stream(Protocol::kChat, false, kNone, false);
  std::string out;
  const double begin = bench::thread_cpu_seconds();
  stream->begin({.prompt_tokens = 1}, out);
  for (const std::string_view piece : pieces) {
    stream->push_text(0, piece, 1, out);
    if (out.size() > (1u << 16)) out.clear();  // as if sent
  }
  stream->finish(0, recipe::FinishReason::kStop, out);
  return bench::thread_cpu_seconds() - begin;
}

struct PeerTime {
  double seconds = 0;
  int64_t events = 0;
};

std::optional<PeerTime> ask(std::optional<bench::Peer>& peer, const std::string& file, size_t chunk, bool json) {
  if (!peer) return std::nullopt;
  const std::string answer =
      peer->ask(fmt::format(R"({{"file":"{}","chunk":{},"thinking":true,"json":{}}})", file, chunk, json));
  Result<recipe::Json> value = recipe::parse_json(answer);
  if (!value.ok()) {
    fmt::print(stderr, "NO PEER: it ended: {}\n", answer);
    peer.reset();
    return std::nullopt;
  }
  return PeerTime{value.value().find("seconds")->as_double(), *value.value().find("events")->to_int64()};
}

std::optional<double> rate(double amount, const std::vector<double>& seconds) {
  if (seconds.empty()) return std::nullopt;
  return amount / bench::median(seconds);
}

constexpr char kPeerName[] = "deepseek-recipe 0.2.0";

void text_case(const char* name, const std::string& text, const std::string& file, std::optional<bench::Peer>& peer,
               int rounds) {
  std::ofstream(file, std::ios::binary) << text;
  const std::vector<std::string_view> pieces = cut(text, 64);
  std::vector<double> parse, sse, theirs;
  for (int i = 0; i < rounds; ++i) {
    parse.push_back(parse_seconds(pieces));
    sse.push_back(sse_seconds(pieces));
    if (i % 3 == 0) {
      if (const auto t = ask(peer, file, 64, false)) theirs.push_back(t->seconds);
    }
  }
  const double mb = static_cast<double>(text.size()) * 1e-6;
  bench::report(
      {"parser", fmt::format("{}_parsed", name), mb / bench::median(parse), "MB/s", rate(mb, theirs), kPeerName, 100});
  bench::report(
      {"parser", fmt::format("{}_to_sse", name), mb / bench::median(sse), "MB/s", rate(mb, theirs), kPeerName, 100});
}

// As many stop sequences as a request may have, with first letters that the text is full of.
void stops_case(const std::string& text, int rounds) {
  const std::vector<std::string> stops = {"\n\nUser:", "\n\nHuman:", "Observation:", "###",   " the end", "<|im_end|>",
                                          "STOP",      "END",        "Question:",    "```",   "\n---",    "Thought:",
                                          "Action:",   "Final",      "stop here",    "it ends"};
  const std::vector<std::string_view> pieces = cut(text, 64);
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) seconds.push_back(parse_seconds(pieces, stops));
  const double mb = static_cast<double>(text.size()) * 1e-6;
  bench::report({"parser", "english_64_16_stops_parsed", mb / bench::median(seconds), "MB/s", std::nullopt, "", 100});
}

// One chunk of thousands of calls. The peer takes quadratic time, so it gets a small one.
void one_chunk_case(const std::string& file, std::optional<bench::Peer>& peer, int rounds) {
  const std::string small = calls(2'000'000), large = calls(16'000'000), for_peer = calls(250'000);
  std::ofstream(file, std::ios::binary) << for_peer;
  std::vector<double> small_time, large_time, theirs;
  for (int i = 0; i < rounds; ++i) {
    small_time.push_back(parse_seconds({small}));
    large_time.push_back(parse_seconds({large}));
    if (i == 0) {
      if (const auto t = ask(peer, file, 0, false)) theirs.push_back(t->seconds);
    }
  }
  const double mb = static_cast<double>(large.size()) * 1e-6, speed = mb / bench::median(large_time);
  bench::report({"parser", "one_chunk_16MB", speed, "MB/s", rate(static_cast<double>(for_peer.size()) * 1e-6, theirs),
                 "deepseek-recipe 0.2.0 on 0.25 MB", 100});
  const double small_speed = static_cast<double>(small.size()) * 1e-6 / bench::median(small_time);
  bench::report(
      {"parser", "time_per_byte_16MB_over_2MB", small_speed / speed, "ratio", std::nullopt, "", 1.25, false, false});
}

double token_seconds(Protocol protocol, const std::vector<recipe::TokenLogprob>& tokens,
                     const recipe::OutputVocabulary& vocabulary, bool logprobs, size_t* frames) {
  auto stream = open_stream(protocol, true, vocabulary, logprobs);
  std::string out;
  *frames = 0;
  const auto take = [&] {
    if (out.size() < (1u << 16)) return;
    for (size_t at = out.find("\n\n"); at != std::string::npos; at = out.find("\n\n", at + 2)) ++*frames;
    out.clear();
  };
  double counting = 0;
  const double begin = bench::thread_cpu_seconds();
  stream->begin({.prompt_tokens = 1}, out);
  for (const recipe::TokenLogprob& token : tokens) {
    stream->push(0, {&token, 1}, out);
    if (out.size() >= (1u << 16)) {
      const double t = bench::thread_cpu_seconds();
      take();
      counting += bench::thread_cpu_seconds() - t;
    }
  }
  stream->finish(0, recipe::FinishReason::kStop, out);
  const double seconds = bench::thread_cpu_seconds() - begin - counting;
  out.append(1u << 16, ' ');
  take();
  return seconds;
}

void token_cases(const std::string& file, std::optional<bench::Peer>& peer, int rounds) {
  Result<text::Tokenizer> tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json");
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.status().message());
    std::exit(1);
  }
  const recipe::OutputVocabulary vocabulary(tokenizer.value());
  const std::string text = english(400'000);
  const auto ids = tokenizer.value().encode(text, text::AddedTokens::kRecognise);
  std::vector<recipe::TopLogprob> top;
  for (int i = 0; i < 5; ++i) top.push_back({ids[i], -0.1f * static_cast<float>(i + 1)});
  std::vector<recipe::TokenLogprob> tokens;
  for (const text::TokenId id : ids) tokens.push_back({id, -0.3f, top});
  std::ofstream(file, std::ios::binary) << text;
  const size_t chunk = std::max<size_t>(1, text.size() / ids.size());

  struct Kind {
    const char* name;
    Protocol protocol;
    bool logprobs;
  };
  const Kind kinds[] = {{"sse_from_tokens_chat", Protocol::kChat, false},
                        {"sse_from_tokens_responses", Protocol::kResponses, false},
                        {"sse_from_tokens_messages", Protocol::kMessages, false},
                        {"sse_from_tokens_chat_logprobs", Protocol::kChat, true}};
  std::vector<double> ours[4], theirs;
  for (int i = 0; i < rounds; ++i) {
    for (int k = 0; k < 4; ++k) {
      size_t frames = 0;
      const double seconds = token_seconds(kinds[k].protocol, tokens, vocabulary, kinds[k].logprobs, &frames);
      ours[k].push_back(static_cast<double>(frames) / seconds);
    }
    if (i % 3 == 0) {
      if (const auto t = ask(peer, file, chunk, true)) theirs.push_back(static_cast<double>(t->events) / t->seconds);
    }
  }
  for (int k = 0; k < 4; ++k) {
    const std::optional<double> ceiling =
        k == 0 && !theirs.empty() ? std::optional(bench::median(theirs)) : std::nullopt;
    bench::report({"parser", kinds[k].name, bench::median(ours[k]), "events/s", ceiling,
                   k == 0 ? "deepseek-recipe 0.2.0 with JSON" : "", 50'000});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  const size_t bytes = options.quick ? 200'000 : 4'000'000;
  const int rounds = options.quick ? 3 : 15;
  std::optional<bench::Peer> peer =
      bench::Peer::start("build/test-data/recipe-venv", "deepseek-recipe==0.2.0", "bench/peers/recipe_parser.py");
  const std::string file =
      (std::filesystem::temp_directory_path() / fmt::format("bench-parser-{}.txt", getpid())).string();
  text_case("english_64", english(bytes), file, peer, rounds);
  stops_case(english(bytes), rounds);
  text_case("chinese_64", chinese(bytes), file, peer, rounds);
  text_case("calls_64", calls(bytes), file, peer, rounds);
  one_chunk_case(file, peer, options.quick ? 1 : 5);
  token_cases(file, peer, rounds);
  std::filesystem::remove(file);
}
