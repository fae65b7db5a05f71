#include "recipe/api_stream.h"

#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "recipe/echo.h"
#include "recipe/json.h"
#include "recipe/sealed.h"
#include "tests/fixtures/stream_cases.h"
#include "tests/support/full_tokenizer.h"
#include "tests/unit/recipe/event_folds.h"

namespace deepinfer::recipe {
namespace {

const OutputVocabulary& no_vocabulary() {
  static const OutputVocabulary kNone;
  return kNone;
}

Json json(std::string_view text) {
  Result<Json> value = parse_json(text);
  EXPECT_TRUE(value.ok()) << text << value.status().message();
  return value.ok() ? std::move(value).value() : Json();
}

ApiStreamOptions options_for(Protocol protocol, bool stream = true) {
  ApiStreamOptions o;
  o.protocol = protocol;
  o.stream = stream;
  o.token_ids = false;
  o.thinking = true;
  o.parser.initial = InitialStage::kReasoningStart;
  o.parser.parse_tool_calls = true;
  o.id = "r1";
  o.model = "m";
  o.created = 7;
  return o;
}

struct Response {
  std::string frames, body;
  int status = 200;
};

Response run(const ApiStreamOptions& options, const std::vector<std::string>& pieces,
             FinishReason reason = FinishReason::kStop) {
  Result<std::unique_ptr<ApiStream>> stream = ApiStream::create(options, &no_vocabulary());
  EXPECT_TRUE(stream.ok());
  Response r;
  stream.value()->begin({.prompt_tokens = 10, .cached_tokens = 4}, r.frames);
  for (const std::string& piece : pieces) stream.value()->push_text(0, piece, 1, r.frames);
  stream.value()->finish(0, reason, r.frames);
  r.body = stream.value()->body();
  r.status = stream.value()->http_status();
  return r;
}

std::string call_text(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜ invoke>\n";
}
std::string block(const std::string& calls) { return "<｜DSML｜ calls>\n" + calls + "</｜DSML｜ calls>"; }
std::string parameter(const std::string& key, const std::string& is_string, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + key + "\" string=\"" + is_string + "\">" + value + "</｜DSML｜ parameter>\n";
}

TEST(ApiStreamTest, FixturesPass) {
  std::optional<OutputVocabulary> vocabulary;
  if (const auto tokenizer = testing::load_full_tokenizer(".")) vocabulary.emplace(*tokenizer);
  int run_cases = 0;
  for (const char* name : {"streams.json", "oracle_streams.json", "completions.json", "logprobs_streams.json"}) {
    Result<std::string> file = read_file(std::string(DEEPINFER_TEST_DATA "/recipe/") + name, 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const Json root = json(file.value());
    for (const Json& c : root.find("cases")->as_array()) {
      if (!vocabulary && fixtures::needs_vocabulary(c)) continue;
      const fixtures::Outcome o = fixtures::check_stream_case(c, vocabulary ? &*vocabulary : nullptr);
      EXPECT_FALSE(o) << fixtures::text_member(c, "name") << " " << o->what << "\n" << o->expected << "\n" << o->got;
      ++run_cases;
    }
  }
  EXPECT_EQ(run_cases, vocabulary ? 55 : 39) << (vocabulary ? "" : testing::kFullTokenizerHint);
}

std::string random_output(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"<｜DSML｜ calls>\n",
                                                   "<｜DSML｜ invoke name=\"f\">\n",
                                                   "<｜DSML｜ invoke name=\"sh\">\n",
                                                   "<｜DSML｜ invoke name=\"n::g\">\n",
                                                   "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                                   "<｜DSML｜ parameter name=\"a\" string=\"false\">",
                                                   "<｜DSML｜ parameter name=\"input\" string=\"true\">",
                                                   "<｜DSML｜ parameter name=\"b\">",
                                                   "</｜DSML｜ parameter>\n",
                                                   "</｜DSML｜ invoke>\n",
                                                   "</｜DSML｜ calls>",
                                                   "</think>",
                                                   "\n",
                                                   "text",
                                                   "é😀",
                                                   "\"",
                                                   "\\",
                                                   "\x01",
                                                   "\xE7",
                                                   "12",
                                                   "{\"x\": [1]}",
                                                   "null",
                                                   "</",
                                                   "<",
                                                   "STOP"};
  std::string text;
  for (int n = static_cast<int>(random() % 20); n >= 0; --n) text += kPieces[random() % kPieces.size()];
  return text;
}

TEST(ApiStreamTest, WholeIsTheFoldOfTheStreamHoweverItIsCut) {
  std::mt19937_64 random(99);
  int compared = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_output(random);
    const Protocol protocol =
        std::array{Protocol::kChat, Protocol::kResponses, Protocol::kMessages, Protocol::kCompletions}[round % 4];
    ApiStreamOptions options = options_for(protocol);
    options.thinking = random() % 2 == 0;
    options.parser.initial = options.thinking ? InitialStage::kReasoningStart : InitialStage::kContentStart;
    if (random() % 2 == 0) options.parser.stop_sequences = {"STOP"};
    if (random() % 2 == 0 && protocol != Protocol::kMessages) options.custom_tools = {"sh"};
    const auto reason = static_cast<FinishReason>(random() % 8);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 9;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const Response in_pieces = run(options, pieces, reason), at_once = run(options, {text}, reason);
    options.stream = false;
    const Response whole = run(options, {text}, reason);
    EXPECT_EQ(whole.frames, "");
    const std::string folded = test::fold(protocol, in_pieces.frames);
    ASSERT_EQ(folded, test::fold(protocol, at_once.frames)) << round << ": " << text;
    if (!test::comparable(protocol, in_pieces.frames)) continue;
    ++compared;
    ASSERT_EQ(folded, test::fold_body(protocol, whole.body)) << round << ": " << text << "\n" << in_pieces.frames;
  }
  EXPECT_GT(compared, 3000);
}

TEST(ApiStreamTest, RepeatedKeysCountOnceInWholeBodies) {
  const std::string text =
      "</think>" +
      block(call_text("f", parameter("a", "false", "1") + parameter("b", "true", "x") + parameter("a", "true", "y")));
  const Json chat = json(run(options_for(Protocol::kChat, false), {text}).body);
  const Json& call = chat.find("choices")->as_array()[0].find("message")->find("tool_calls")->as_array()[0];
  EXPECT_EQ(call.find("function")->find("arguments")->as_string(), "{\"a\": \"y\", \"b\": \"x\"}");
  const Json message = json(run(options_for(Protocol::kMessages, false), {text}).body);
  EXPECT_EQ(to_compact_json(*message.find("content")->as_array()[1].find("input")), "{\"a\":\"y\",\"b\":\"x\"}");
}

TEST(ApiStreamTest, CallCutByLength) {
  std::string text = "</think>" + block(call_text("f", parameter("a", "true", "xyz")));
  text.resize(text.find("xyz") + 2);
  const Json chat = json(run(options_for(Protocol::kChat, false), {text}, FinishReason::kLength).body);
  const Json& choice = chat.find("choices")->as_array()[0];
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "length");
  EXPECT_EQ(choice.find("message")->find("tool_calls")->as_array()[0].find("function")->find("arguments")->as_string(),
            "{\"a\": \"xy");
  const Json message = json(run(options_for(Protocol::kMessages, false), {text}, FinishReason::kLength).body);
  EXPECT_EQ(message.find("stop_reason")->as_string(), "max_tokens");
  EXPECT_EQ(to_compact_json(*message.find("content")->as_array()[1].find("input")), "{}");
  const Json response = json(run(options_for(Protocol::kResponses, false), {text}, FinishReason::kLength).body);
  EXPECT_EQ(response.find("status")->as_string(), "incomplete");
  EXPECT_EQ(response.find("output")->as_array()[0].find("status")->as_string(), "incomplete");
}

TEST(ApiStreamTest, ValuesThatEndLikeTags) {  // fixtures/bugs case 6
  for (const std::string value : {"cat log 2>&1", "<", "</", "</｜", "x</｜DSM", "a\n<｜DSML｜ parameter"}) {
    const std::string text = "r</think>" + block(call_text("sh", parameter("command", "true", value)));
    std::string arguments = "{\"command\": ";
    append_json_string(arguments, value);
    arguments += "}\n";
    for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
      for (size_t cut = 0; cut <= text.size(); ++cut) {
        const Response r = run(options_for(protocol), {text.substr(0, cut), text.substr(cut)});
        ASSERT_NE(test::fold(protocol, r.frames).find(arguments), std::string::npos) << cut << " " << r.frames;
      }
    }
  }
}

TEST(ApiStreamTest, LogprobsOfACharacterOverFourTokens) {  // fixtures/bugs case 8
  OutputVocabulary v;
  const std::string crab = "🦀";
  for (int i = 0; i < 4; ++i) v.set(i, crab.substr(i, 1), TokenKind::kText);
  v.set(4, "!", TokenKind::kText);
  for (const bool streaming : {true, false}) {
    ApiStreamOptions o = options_for(Protocol::kChat, streaming);
    o.token_ids = true;
    o.logprobs = true;
    o.parser.initial = InitialStage::kContentStart;
    auto stream = std::move(ApiStream::create(o, &v)).value();
    std::string out;
    stream->begin({}, out);
    for (int32_t id = 0; id < 5; ++id) {
      const TopLogprob top[] = {{id, -0.5}, {(id + 1) % 5, -1.5}, {(id + 2) % 5, -2.5}};
      const TokenLogprob token{id, -0.5, top};
      stream->push(0, {&token, 1}, out);
    }
    stream->finish(0, FinishReason::kStop, out);
    if (!streaming) out = "data: " + stream->body() + "\n\n";
    std::string bytes;
    int entries = 0;
    for (const auto& [name, data] : fixtures::split_frames(out)) {
      if (data == "[DONE]") continue;
      const Json frame = json(data);
      const Json* logprobs = frame.find("choices")->as_array()[0].find("logprobs");
      if (logprobs->find("content") == nullptr) continue;
      for (const Json& entry : logprobs->find("content")->as_array()) {
        ++entries;
        EXPECT_EQ(entry.find("top_logprobs")->as_array().size(), 3u);
        for (const Json& byte : entry.find("bytes")->as_array()) bytes += static_cast<char>(*byte.to_int64());
      }
    }
    EXPECT_EQ(entries, 5);
    EXPECT_EQ(bytes, "🦀!");
  }
}

TEST(ApiStreamTest, StopStringOverTokens) {  // fixtures/bugs case 10
  OutputVocabulary v;
  for (int32_t i = 0; i < 26; ++i) v.set(i, std::string(1, static_cast<char>('A' + i)), TokenKind::kText);
  ApiStreamOptions o = options_for(Protocol::kChat);
  o.token_ids = true;
  o.thinking = false;
  o.id = o.model = "-";
  o.parser.initial = InitialStage::kContentStart;
  for (const bool matches : {true, false}) {
    o.parser.stop_sequences = {matches ? "DEFGHIJ" : "DEFZ"};
    auto stream = std::move(ApiStream::create(o, &v)).value();
    std::string out;
    stream->begin({.prompt_tokens = 1}, out);
    for (int32_t id = 0; id < 26 && !stream->stopped(0); ++id) stream->push_ids(0, {&id, 1}, out);
    stream->finish(0, FinishReason::kStop, out);
    const std::string folded = test::fold(Protocol::kChat, out);
    EXPECT_NE(folded.find(matches ? "content ABC\nend stop\n" : "content ABCDEFGHIJKLMNOPQRSTUVWXYZ\nend stop\n"),
              std::string::npos)
        << folded;
    EXPECT_NE(out.find(matches ? "\"completion_tokens\":10," : "\"completion_tokens\":26,"), std::string::npos);
  }
}

TEST(ApiStreamTest, BigNumbersKeepTheirFormInMessages) {
  const std::string text =
      "</think>" + block(call_text("f", parameter("a", "false", "123456789012345678901234567890.50")));
  EXPECT_NE(
      run(options_for(Protocol::kMessages, false), {text}).body.find("{\"a\": 123456789012345678901234567890.50}"),
      std::string::npos);
}

TEST(ApiStreamTest, EmptyThoughtIsMarkedInCallIds) {
  const std::string call = block(call_text("f", ""));
  const auto id_of = [&](const std::string& text, bool thinking) {
    ApiStreamOptions o = options_for(Protocol::kChat, false);
    o.thinking = thinking;
    o.parser.initial = thinking ? InitialStage::kReasoningStart : InitialStage::kContentStart;
    const Json body = json(run(o, {text}).body);
    return body.find("choices")
        ->as_array()[0]
        .find("message")
        ->find("tool_calls")
        ->as_array()[0]
        .find("id")
        ->as_string();
  };
  EXPECT_EQ(id_of("\n</think>\n\n" + call, true).substr(0, 11), "call_00_ET_");
  EXPECT_NE(id_of("r</think>" + call, true).substr(0, 11), "call_00_ET_");
  EXPECT_NE(id_of("</think>text" + call, true).substr(0, 11), "call_00_ET_");
  EXPECT_NE(id_of(call, false).substr(0, 11), "call_00_ET_");
  EXPECT_EQ(id_of(call, false).size(), 8u + 24);
}

TEST(ApiStreamTest, ChoicesShareOneUsage) {
  ApiStreamOptions o = options_for(Protocol::kChat);
  o.n = 2;
  o.thinking = false;
  o.parser.initial = InitialStage::kContentStart;
  auto stream = std::move(ApiStream::create(o, &no_vocabulary())).value();
  std::string out;
  stream->begin({.prompt_tokens = 10}, out);
  stream->push_text(1, block(call_text("f", "")), 5, out);
  stream->push_text(0, block(call_text("f", "")), 6, out);
  stream->finish(1, FinishReason::kStop, out);
  EXPECT_EQ(out.find("[DONE]"), std::string::npos);
  EXPECT_EQ(out.find("completion_tokens"), std::string::npos);
  stream->push_text(1, "late", 9, out);  // ignored
  stream->finish(0, FinishReason::kStop, out);
  EXPECT_NE(out.find("\"completion_tokens\":11"), std::string::npos);
  EXPECT_TRUE(out.ends_with("data: [DONE]\n\n"));
  std::set<std::string> ids;
  for (size_t at = out.find("\"id\":\"call_"); at != std::string::npos; at = out.find("\"id\":\"call_", at + 1))
    ids.insert(out.substr(at, 40));
  EXPECT_EQ(ids.size(), 2u);
}

TEST(ApiStreamTest, UsageOnASeparateChunkOnlyIfAskedFor) {
  ApiStreamOptions o = options_for(Protocol::kChat);
  o.usage_chunk = UsageChunk::kSeparate;
  EXPECT_EQ(run(o, {"a"}).frames.find("total_tokens"), std::string::npos);
  o.include_usage = true;
  const std::string frames = run(o, {"a"}).frames;
  EXPECT_NE(frames.find("\"choices\":[],\"usage\":{\"prompt_tokens\":10"), std::string::npos);
  EXPECT_EQ(frames.find("total_tokens"), frames.rfind("total_tokens"));
}

TEST(ApiStreamTest, FailuresInEachApi) {
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages, Protocol::kCompletions}) {
    for (const bool streaming : {true, false}) {
      auto stream = std::move(ApiStream::create(options_for(protocol, streaming), &no_vocabulary())).value();
      std::string out;
      stream->begin({}, out);
      stream->push_text(0, "thought", 1, out);
      stream->fail({503, "The engine stopped."}, out);
      stream->push_text(0, "more", 1, out);
      stream->finish(0, FinishReason::kStop, out);
      EXPECT_EQ(stream->http_status(), 503);
      const std::string& text = streaming ? out : stream->body();
      EXPECT_NE(text.find("The engine stopped."), std::string::npos);
      EXPECT_EQ(out.find("[DONE]"), std::string::npos);
      EXPECT_EQ(out.find("message_stop"), std::string::npos);
      EXPECT_EQ(out.find("more"), std::string::npos);
      if (streaming) {
        for (const auto& [name, data] : fixtures::split_frames(out)) json(data);
      }
    }
  }
  const Response responses = run(options_for(Protocol::kResponses), {"thought"}, FinishReason::kEndOfStream);
  EXPECT_NE(responses.frames.find("event: error\n"), std::string::npos);
  EXPECT_NE(responses.frames.find("event: response.failed\n"), std::string::npos);
  EXPECT_EQ(run(options_for(Protocol::kMessages), {"t"}, FinishReason::kOutOfCapacity).status, 529);
  EXPECT_NE(run(options_for(Protocol::kMessages), {"t"}, FinishReason::kOutOfCapacity).frames.find("overloaded_error"),
            std::string::npos);
}

TEST(ApiStreamTest, ReasoningIsSealedOnlyWhenAskedFor) {
  Result<Sealer> sealer = Sealer::create({Sealer::Key{1, 2, 3}}, "deepseek-v4.1");
  ASSERT_TRUE(sealer.ok());
  ApiStreamOptions o = options_for(Protocol::kResponses, false);
  EXPECT_EQ(run(o, {"secret thought</think>x"}).body.find("encrypted_content"), std::string::npos);
  o.sealer = &sealer.value();
  const Json body = json(run(o, {"secret thought</think>x"}).body);
  const Json& item = body.find("output")->as_array()[0];
  Result<std::string> opened = sealer.value().open(item.find("encrypted_content")->as_string());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened.value(), "secret thought");
}

TEST(ApiStreamTest, CustomToolInput) {
  const std::string patch = "*** Begin\n\"q\" \\ é\x01</｜DSM";
  const std::string text = "</think>" + block(call_text("sh", parameter("input", "true", patch)));
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses}) {
    ApiStreamOptions o = options_for(protocol, false);
    o.custom_tools = {"sh"};
    const Json body = json(run(o, {text}).body);
    const Json& input = protocol == Protocol::kChat ? *body.find("choices")
                                                           ->as_array()[0]
                                                           .find("message")
                                                           ->find("tool_calls")
                                                           ->as_array()[0]
                                                           .find("custom")
                                                           ->find("input")
                                                    : *body.find("output")->as_array()[0].find("input");
    EXPECT_EQ(input.as_string(), patch);
  }
  // Another shape passes through.
  ApiStreamOptions o = options_for(Protocol::kResponses, false);
  o.custom_tools = {"sh"};
  const Json body = json(run(o, {"</think>" + block(call_text("sh", parameter("cmd", "true", "ls")))}).body);
  EXPECT_EQ(body.find("output")->as_array()[0].find("input")->as_string(), "{\"cmd\": \"ls\"}");
}

TEST(ApiStreamTest, CompletionsWithLogprobs) {
  OutputVocabulary v;
  v.set(1, "a\xC3", TokenKind::kText);
  v.set(2, "\xA9z", TokenKind::kText);
  v.set(3, "</think>", TokenKind::kThinkClose);
  ApiStreamOptions o = options_for(Protocol::kCompletions, false);
  o.token_ids = true;
  o.logprobs = true;
  o.completion_prefixes = {"P:"};
  auto stream = std::move(ApiStream::create(o, &v)).value();
  std::string out;
  const TopLogprob top[] = {{2, -0.5}};
  const TokenLogprob tokens[] = {{1, -0.25, top}, {2, -0.5, {}}, {3, -1.0, {}}};
  stream->begin({.prompt_tokens = 2}, out);
  stream->push(0, tokens, out);
  stream->finish(0, FinishReason::kStop, out);
  const Json body = json(stream->body());
  const Json& choice = body.find("choices")->as_array()[0];
  EXPECT_EQ(choice.find("text")->as_string(), "P:aéz</think>");
  EXPECT_EQ(to_compact_json(*choice.find("logprobs")->find("text_offset")), "[2,3,5]");
  EXPECT_EQ(to_compact_json(*choice.find("logprobs")->find("token_logprobs")), "[-0.25,-0.5,-1.0]");
  EXPECT_EQ(body.find("object")->as_string(), "text_completion");
}

TEST(ApiStreamTest, CompletionsOfSeveralPrompts) {
  ApiStreamOptions o = options_for(Protocol::kCompletions, false);
  o.prompts = 2;
  o.n = 2;
  o.completion_prefixes = {"P", "Q"};
  auto stream = std::move(ApiStream::create(o, nullptr)).value();
  std::string out;
  stream->begin({.prompt_tokens = 3, .cached_tokens = 1}, out);
  stream->push_text(1, "b", 1, out);
  stream->add_prompt({.prompt_tokens = 4, .cached_tokens = 2});
  stream->push_text(2, "c", 1, out);
  for (const int choice : {3, 1, 0, 2}) stream->finish(choice, FinishReason::kStop, out);
  const Json body = json(stream->body());
  const char* texts[] = {"P", "Pb", "Qc", "Q"};
  ASSERT_EQ(body.find("choices")->as_array().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const Json& choice = body.find("choices")->as_array()[i];
    EXPECT_EQ(choice.find("text")->as_string(), texts[i]);
    EXPECT_EQ(choice.find("index")->to_int64(), static_cast<int64_t>(i));
  }
  EXPECT_EQ(body.find("usage")->find("prompt_tokens")->to_int64(), 7);
  EXPECT_EQ(body.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->to_int64(), 3);
  EXPECT_EQ(body.find("usage")->find("completion_tokens")->to_int64(), 2);
  o.protocol = Protocol::kChat;
  EXPECT_EQ(ApiStream::create(o, nullptr).status().code(), Code::kInvalidArgument);
}

// A token may be a hundred times as long as what names it.
TEST(ApiStreamTest, EchoedPromptsAreBounded) {
  constexpr size_t kToken = 128;
  OutputVocabulary v;
  v.set(1, std::string(kToken, ' '), TokenKind::kText);
  Request request;
  request.completion = Completion{.prompts = {{.text = "a"}, {.ids = {1, 1}}}, .echo = true};
  EXPECT_EQ(echoed_prompts(request, v).value(), (std::vector<std::string>{"a", std::string(2 * kToken, ' ')}));
  const std::vector<int32_t> fourth(kEchoBytesMax / kToken / 4, 1);
  request.completion->prompts = {{.ids = fourth}, {.ids = fourth}, {.ids = fourth}, {.ids = fourth}};
  EXPECT_TRUE(echoed_prompts(request, v).ok());
  request.inference.n = 2;
  EXPECT_EQ(echoed_prompts(request, v).status().code(), Code::kInvalidArgument);
  request.inference.n = 1;
  request.completion->prompts.push_back({.text = "a"});
  EXPECT_EQ(echoed_prompts(request, v).status().code(), Code::kInvalidArgument);
  request.completion->echo = false;
  EXPECT_TRUE(echoed_prompts(request, v).value().empty());
}

TEST(ApiStreamTest, EchoOfAnUnspecifiedRequest) {
  Request request;
  request.protocol = Protocol::kResponses;
  const Json echo = json("{" + responses_echo(request) + "}");
  EXPECT_EQ(to_compact_json(*echo.find("text")), "{\"format\":{\"type\":\"text\"},\"verbosity\":null}");
  EXPECT_EQ(to_compact_json(*echo.find("reasoning")), "{\"effort\":null,\"summary\":null}");
  EXPECT_EQ(to_compact_json(*echo.find("tools")), "[]");
  EXPECT_EQ(echo.find("tool_choice")->as_string(), "auto");
  EXPECT_EQ(echo.find("temperature")->as_double(), 1.0);
  EXPECT_EQ(echo.find("top_p")->as_double(), 1.0);
  EXPECT_EQ(to_compact_json(*echo.find("top_logprobs")), "0");
}

TEST(ApiStreamTest, OptionsAreChecked) {
  ApiStreamOptions o = options_for(Protocol::kMessages);
  o.n = 2;
  EXPECT_FALSE(ApiStream::create(o, &no_vocabulary()).ok());
  o = options_for(Protocol::kChat);
  o.parser.stop_sequences = {""};
  EXPECT_FALSE(ApiStream::create(o, &no_vocabulary()).ok());
}

}  // namespace
}  // namespace deepinfer::recipe
