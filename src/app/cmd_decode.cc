// deepinfer decode [FILE]: a model's output, as token ids or text, to the message it holds or to an API's events or
// body.
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/run/find_model.h"
#include "base/file.h"
#include "recipe/api_stream.h"
#include "recipe/json.h"
#include "recipe/output_vocabulary.h"
#include "text/tokenizer.h"

namespace deepinfer::app {
namespace {

using recipe::Json;
using recipe::Protocol;

constexpr uint64_t kInputBytesMax = 256u << 20;

struct DecodeFlags {
  std::string input = "-";
  bool ids = false;
  std::string tokenizer;
  std::string api;
  bool events = false;
  std::string request;
  std::string start = "reasoning_start";
  bool tools = false;
  bool json_mode = false;
  std::vector<std::string> stops;
  std::string finish = "stop";
  int64_t step = 1;
  std::string id = "decoded", model = "deepseek-v4.1-flash";
  int64_t prompt_tokens = 0, cached_tokens = 0;
};

const std::map<std::string, Protocol> kApis = {{"chat", Protocol::kChat},
                                               {"responses", Protocol::kResponses},
                                               {"messages", Protocol::kMessages},
                                               {"completions", Protocol::kCompletions}};
const std::map<std::string, recipe::InitialStage> kStarts = {{"reasoning_start", recipe::InitialStage::kReasoningStart},
                                                             {"reasoning", recipe::InitialStage::kReasoning},
                                                             {"content_start", recipe::InitialStage::kContentStart},
                                                             {"content", recipe::InitialStage::kContent},
                                                             {"tool_calls", recipe::InitialStage::kToolCalls}};
const std::map<std::string, recipe::FinishReason> kFinishes = {{"stop", recipe::FinishReason::kStop},
                                                               {"length", recipe::FinishReason::kLength},
                                                               {"content_filter", recipe::FinishReason::kContentFilter},
                                                               {"none", recipe::FinishReason::kEndOfStream}};

// Integers separated by white space, commas or brackets.
Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  const auto is_separator = [](char c) { return std::string_view(" \t\r\n,[]").find(c) != std::string_view::npos; };
  for (size_t at = 0; at < text.size();) {
    if (is_separator(text[at])) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto parsed = std::from_chars(text.data() + at, text.data() + text.size(), id);
    const size_t end = parsed.ptr - text.data();
    if (parsed.ec != std::errc() || id < 0 || (end < text.size() && !is_separator(text[end]))) {
      return make_error(Code::kInvalidArgument, "The input has something that is no token id at byte {}: \"{}\".", at,
                        text.substr(at, 20));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

Status check_ids(const std::vector<int32_t>& ids, const text::Tokenizer& tokenizer, const std::string& path) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.exists(ids[i])) continue;
    if (ids[i] < tokenizer.vocab_size()) {
      return make_error(Code::kInvalidArgument, "Id {} of the input is {}, which {} leaves unused.", i + 1, ids[i],
                        path);
    }
    return make_error(Code::kInvalidArgument, "Id {} of the input is {}, but the ids of {} go from 0 to {}.", i + 1,
                      ids[i], path, tokenizer.vocab_size() - 1);
  }
  return {};
}

struct Message : recipe::OutputSink {
  std::string reasoning, content;
  Json calls = Json::array();
  void on_reasoning(std::string_view t, recipe::SourceRange) override { reasoning += t; }
  void on_content(std::string_view t, recipe::SourceRange) override { content += t; }
  void on_call_begin(int, std::string_view name) override {
    Json call = Json::object();
    call.set("name", name);
    call.set("arguments", "");
    calls.as_array().push_back(std::move(call));
  }
  void on_call_arguments(int call, std::string_view json) override {
    calls.as_array()[call].find("arguments")->as_string() += json;
  }
  void on_call_end(int call, bool complete) override { calls.as_array()[call].set("complete", complete); }
};

struct Input {
  std::string text;
  std::vector<int32_t> ids;
  recipe::OutputVocabulary vocabulary;
};

// Calls push(begin, end) with ranges of the input that belong to one step; text is cut between characters.
template <class Push>
void for_each_step(const DecodeFlags& flags, const Input& input, Push push) {
  const size_t total = flags.ids ? input.ids.size() : input.text.size();
  size_t begin = 0;
  int64_t count = 0;
  for (size_t i = 0; i < total; ++i) {
    if (!flags.ids && (static_cast<unsigned char>(input.text[i]) & 0xC0) == 0x80) continue;
    if (flags.step > 0 && count == flags.step) {
      push(begin, i);
      begin = i;
      count = 0;
    }
    ++count;
  }
  if (begin < total) push(begin, total);
}

void print_message(const DecodeFlags& flags, const recipe::ParserOptions& options, const Input& input) {
  Message message;
  recipe::TokenOutput output(options, &input.vocabulary, &message, false);
  if (flags.ids) {
    output.push_ids(input.ids);
  } else {
    output.push_text(input.text, 0);
  }
  const recipe::FinishReason reason = output.finish(kFinishes.at(flags.finish));
  Json printed = Json::object();
  printed.set("reasoning", message.reasoning);
  printed.set("content", message.content);
  printed.set("tool_calls", std::move(message.calls));
  printed.set("finish", recipe::finish_reason_name(reason));
  printed.set("stop_sequence", output.stopped() ? Json(output.stop_sequence()) : Json());
  fmt::print("{}\n", recipe::to_python_json(printed));
}

Status print_api(const DecodeFlags& flags, recipe::ApiStreamOptions options, const Input& input) {
  options.stream = flags.events;
  options.token_ids = flags.ids;
  options.id = flags.id;
  options.model = flags.model;
  DI_ASSIGN_OR_RETURN(std::unique_ptr<recipe::ApiStream> stream, recipe::ApiStream::create(options, &input.vocabulary));
  std::string out;
  stream->begin({.prompt_tokens = flags.prompt_tokens, .cached_tokens = flags.cached_tokens}, out);
  for_each_step(flags, input, [&](size_t begin, size_t end) {
    if (flags.ids) {
      stream->push_ids(0, std::span(input.ids).subspan(begin, end - begin), out);
    } else {
      stream->push_text(0, std::string_view(input.text).substr(begin, end - begin), 0, out);
    }
    std::fwrite(out.data(), 1, out.size(), stdout);
    out.clear();
  });
  for (int choice = 0; choice < options.n; ++choice) stream->finish(choice, kFinishes.at(flags.finish), out);
  if (!flags.events) out = stream->body() + "\n";
  std::fwrite(out.data(), 1, out.size(), stdout);
  return {};
}

Result<recipe::ApiStreamOptions> stream_options(const DecodeFlags& flags) {
  const Protocol protocol = flags.api.empty() ? Protocol::kChat : kApis.at(flags.api);
  recipe::ApiStreamOptions options;
  if (!flags.request.empty()) {
    DI_ASSIGN_OR_RETURN(std::string body, read_file(flags.request, kInputBytesMax));
    recipe::RequestOptions request_options;
    request_options.models = {{flags.model, recipe::Version::kV41}};
    request_options.accept_any_model = true;
    recipe::Request request;
    if (const auto error = recipe::parse_request(protocol, body, request_options, request)) {
      return make_error(Code::kInvalidArgument, "{} is refused: {}", flags.request, error->message);
    }
    options = recipe::make_stream_options(request);
    options.n = options.prompts = 1;
    return options;
  }
  options.protocol = protocol;
  options.parser.initial = kStarts.at(flags.start);
  options.parser.parse_tool_calls = flags.tools;
  options.parser.json_mode = flags.json_mode;
  options.parser.stop_sequences = flags.stops;
  options.thinking = flags.start.starts_with("reasoning");
  if (protocol == Protocol::kResponses) options.echo = recipe::responses_echo({});
  return options;
}

int run_decode(const DecodeFlags& flags) {
  if (flags.events && flags.api.empty()) return fail("--events needs --api chat, responses, messages or completions");
  Result<recipe::ApiStreamOptions> options = stream_options(flags);
  if (!options.ok()) return fail(options.status().message());
  if (const Status s = options.value().parser.check(); !s.ok()) return fail(s.message());
  Result<std::string> text =
      flags.input == "-" ? read_standard_input(kInputBytesMax) : read_file(flags.input, kInputBytesMax);
  if (!text.ok()) return fail(text.status().message());
  Input input;
  input.text = std::move(text).value();
  if (flags.ids) {
    Result<std::vector<int32_t>> ids = parse_ids(input.text);
    if (!ids.ok()) return fail(ids.status().message());
    input.ids = std::move(ids).value();
    const Result<std::string> path = find_tokenizer(flags.tokenizer);
    if (!path.ok()) return fail(path.status().message());
    Result<text::Tokenizer> tokenizer = text::Tokenizer::load(path.value());
    if (!tokenizer.ok()) return fail(tokenizer.status().message());
    if (const Status s = check_ids(input.ids, tokenizer.value(), path.value()); !s.ok()) return fail(s.message());
    input.vocabulary = recipe::OutputVocabulary(tokenizer.value());
  }
  if (flags.api.empty()) {
    options.value().parser.markers = flags.ids;
    print_message(flags, options.value().parser, input);
    return kExitOk;
  }
  if (const Status s = print_api(flags, std::move(options).value(), input); !s.ok()) return fail(s.message());
  return kExitOk;
}

void setup_decode(CLI::App& app, Run* run) {
  auto flags = std::make_shared<DecodeFlags>();
  app.add_option("input", flags->input, "File with the model's output; - for standard input")->capture_default_str();
  app.add_flag("--ids", flags->ids, "The input is token ids (separated by spaces, commas or line ends), not text");
  app.add_option("--tokenizer", flags->tokenizer,
                 "Model folder or tokenizer.json for --ids (default: DEEPINFER_HF_MODEL_DIR, else the bundled model)");
  app.add_option("--api", flags->api, "Print this API's body instead of the parsed message")
      ->transform(CLI::IsMember(kApis));
  app.add_flag("--events", flags->events, "Print the API's server-sent events instead of the whole body");
  app.add_option("--step", flags->step, "Tokens (or characters of text) in each step of --events; 0 for all at once")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  auto* request = app.add_option("--request", flags->request,
                                 "Request body that the output answers: sets thinking, tools, stop sequences");
  for (CLI::Option* o : {
           app.add_option("--start", flags->start, "Where the output begins")
               ->capture_default_str()
               ->transform(CLI::IsMember(kStarts)),
           app.add_flag("--tools", flags->tools, "Tools are in effect: parse calls"),
           app.add_flag("--json-mode", flags->json_mode, "The answer is JSON (response_format json_object)"),
           app.add_option("--stop", flags->stops, "A stop sequence; may be given several times")
               ->allow_extra_args(false),
       }) {
    o->excludes(request);
  }
  app.add_option("--finish", flags->finish, "Why the engine ended")
      ->capture_default_str()
      ->transform(CLI::IsMember(kFinishes));
  app.add_option("--id", flags->id, "Id of the response")->capture_default_str();
  app.add_option("--model", flags->model, "Model name in the response")->capture_default_str();
  const CLI::Range tokens(0, 1 << 30);
  app.add_option("--prompt-tokens", flags->prompt_tokens, "Prompt tokens in the usage")->check(tokens);
  app.add_option("--cached-tokens", flags->cached_tokens, "Of them, from the cache")->check(tokens);
  *run = [flags] { return run_decode(*flags); };
}

const Command kDecode("decode", "Parse a model's output into its message, or into an API's events", &setup_decode);

}  // namespace
}  // namespace deepinfer::app
