// deepinfer encode FILE: the prompt, the token ids and the trusted spans that a request to one of the APIs becomes.
#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/run/find_model.h"
#include "app/run/printer.h"
#include "app/terminal/terminal.h"
#include "base/file.h"
#include "recipe/conversation_json.h"
#include "recipe/render.h"
#include "recipe/request.h"
#include "recipe/tokenize.h"
#include "text/utf8.h"

namespace deepinfer::app {
namespace {

using recipe::Json;
using recipe::PartKind;

struct EncodeFlags {
  std::string file;
  std::string api = "chat";
  std::string model;
  bool v4 = false;
  bool explain = false;
  bool json = false;
};

struct Encoded {
  recipe::Request request;
  recipe::Prompt prompt;
  std::vector<recipe::TokenSpan> tokens;
};

// Colours by what a part comes from (256-colour codes); the template stays plain.
int colour(PartKind kind) {
  switch (kind) {
    case PartKind::kTemplate: return 0;
    case PartKind::kEffort: return 245;
    case PartKind::kSystem: return 178;
    case PartKind::kTools: return 67;
    case PartKind::kFormat: return 133;
    case PartKind::kUser: return 71;
    case PartKind::kReminder: return 173;
    case PartKind::kReasoning: return 103;
    case PartKind::kAnswer: return 75;
    case PartKind::kCall: return 168;
    case PartKind::kToolResult: return 108;
  }
  return 0;
}

recipe::Protocol protocol_of(const std::string& api) {
  if (api == "responses") return recipe::Protocol::kResponses;
  if (api == "messages") return recipe::Protocol::kMessages;
  return api == "completions" ? recipe::Protocol::kCompletions : recipe::Protocol::kChat;
}

// The member of the request that a part was made from.
std::string origin(const recipe::Request& request, const recipe::PromptPart& part) {
  if (part.kind == PartKind::kTools && part.source < 0) return "tools";
  if (part.kind == PartKind::kFormat)
    return request.protocol == recipe::Protocol::kResponses ? "text.format" : "response_format";
  if (part.kind == PartKind::kEffort) return "reasoning effort";
  if (part.kind == PartKind::kTemplate) return "";
  if (request.completion) return "prompt, suffix";
  const bool responses = request.protocol == recipe::Protocol::kResponses;
  if (part.source < 0) return responses ? "instructions" : "system";
  return fmt::format("{}[{}]", responses ? "input" : "messages", part.source);
}

// Consecutive parts of one kind and origin, with their tokens. A token belongs to the part that its first byte lies in.
struct Stretch {
  PartKind kind;
  std::string from;
  size_t first_token, tokens, bytes;
};

std::vector<Stretch> stretches(const Encoded& e) {
  std::vector<Stretch> out;
  size_t token = 0;
  for (size_t i = 0; i < e.prompt.parts.size(); ++i) {
    const recipe::PromptPart& p = e.prompt.parts[i];
    const size_t end = i + 1 < e.prompt.parts.size() ? e.prompt.parts[i + 1].begin : e.prompt.text.size();
    const size_t first = token;
    while (token < e.tokens.size() && e.tokens[token].begin < end) ++token;
    const std::string from = origin(e.request, p);
    if (out.empty() || out.back().kind != p.kind || out.back().from != from) out.push_back({p.kind, from, first, 0, 0});
    out.back().tokens += token - first;
    out.back().bytes += end - p.begin;
  }
  std::erase_if(out, [](const Stretch& s) { return s.tokens == 0; });
  return out;
}

// A token's text; bytes of a cut character and control characters as \xNN, so that text cannot steer the terminal.
std::string shown(std::string_view text) {
  const bool whole = text::is_valid_utf8(text);
  std::string out;
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    if (whole && !control) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

std::string coloured(PartKind kind, std::string_view text, bool styled) {
  return styled && colour(kind) != 0 ? fmt::format("\033[38;5;{}m{}\033[39m", colour(kind), text) : std::string(text);
}

void print_explained(const Encoded& e, bool styled) {
  const std::vector<Stretch> list = stretches(e);
  std::string out;
  for (const Stretch& s : list) {
    if (!styled)
      out += fmt::format("[{}{}{}]\n", recipe::part_kind_name(s.kind), s.from.empty() ? "" : " from ", s.from);
    for (size_t i = s.first_token; i < s.first_token + s.tokens; ++i) {
      const std::string text =
          shown(std::string_view(e.prompt.text).substr(e.tokens[i].begin, e.tokens[i].end - e.tokens[i].begin));
      // Every other token is underlined on a terminal, so that borders show.
      out += !styled      ? text + "|"
             : i % 2 == 0 ? fmt::format("\033[4m{}\033[24m", coloured(s.kind, text, true))
                          : coloured(s.kind, text, true);
    }
    if (!styled) out += '\n';
  }
  fmt::print("{}\n\n{:>8}  {:>8}  {:<12} {}\n", out, "tokens", "bytes", "part", "from");
  for (const Stretch& s : list) {
    const std::string name = fmt::format("{:<12}", recipe::part_kind_name(s.kind));
    fmt::print("{:>8}  {:>8}  {} {}\n", s.tokens, s.bytes, coloured(s.kind, name, styled), s.from);
  }
  fmt::print("{:>8}  {:>8}  in all\n", e.tokens.size(), e.prompt.text.size());
}

Json spans_json(const Encoded& e) {
  Json spans = Json::array();
  for (const recipe::TrustedSpan& s : e.prompt.specials) {
    Json span = Json::object();
    span.set("begin", static_cast<int64_t>(s.begin));
    span.set("end", static_cast<int64_t>(s.begin + s.length));
    span.set("token", std::string_view(e.prompt.text).substr(s.begin, s.length));
    spans.as_array().push_back(std::move(span));
  }
  return spans;
}

void print_json(const Encoded& e) {
  Json out = Json::object();
  out.set("model", e.request.model);
  out.set("prompt", e.prompt.text);
  Json ids = Json::array();
  for (const recipe::TokenSpan& t : e.tokens) ids.as_array().emplace_back(static_cast<int64_t>(t.id));
  out.set("token_ids", std::move(ids));
  out.set("trusted_spans", spans_json(e));
  out.set("conversation", recipe::conversation_to_json(e.request.conversation));
  out.set("inference_options", recipe::inference_options_to_json(e.request.inference));
  out.set("parsing_options", recipe::parsing_options_to_json(e.request.parsing));
  fmt::print("{}\n", recipe::to_python_json(out));
}

void print_plain(const Encoded& e) {
  const std::string& prompt = e.prompt.text;
  fmt::print("{}\n\n{} tokens:", is_terminal(STDOUT_FILENO) ? without_controls(prompt) : prompt, e.tokens.size());
  for (const recipe::TokenSpan& t : e.tokens) fmt::print(" {}", t.id);
  fmt::print("\n\n{} trusted spans (bytes, token):\n", e.prompt.specials.size());
  for (const recipe::TrustedSpan& s : e.prompt.specials) {
    fmt::print("  {}-{} {}\n", s.begin, s.begin + s.length, std::string_view(e.prompt.text).substr(s.begin, s.length));
  }
}

Status tokenize(const EncodeFlags& flags, Encoded& e) {
  DI_ASSIGN_OR_RETURN(const std::string path, find_tokenizer(flags.model));
  DI_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(path));
  DI_ASSIGN_OR_RETURN(const recipe::SpecialIds specials, recipe::SpecialIds::find(tokenizer, e.request.version));
  DI_ASSIGN_OR_RETURN(e.tokens, recipe::encode_with_spans(e.prompt, tokenizer, specials));
  return {};
}

int encode(const EncodeFlags& flags) {
  recipe::RequestOptions options;
  options.models = {{"deepinfer", flags.v4 ? recipe::Version::kV4 : recipe::Version::kV41}};
  options.accept_any_model = true;
  const uint64_t bytes_max = options.limits.body_bytes_max;
  Result<std::string> body = flags.file == "-" ? read_standard_input(bytes_max) : read_file(flags.file, bytes_max);
  if (!body.ok()) return fail(body.status().message());
  Encoded e;
  const recipe::Protocol protocol = protocol_of(flags.api);
  if (const auto error = recipe::parse_request(protocol, body.value(), options, e.request)) {
    fmt::print(stderr, "{}\n", recipe::error_body(protocol, *error));
    return kExitBadInput;
  }
  if (recipe::prompt_count(e.request) != 1) return fail("prompt holds several prompts; encode takes one.");
  if (e.request.completion && !e.request.completion->prompts[0].ids.empty())
    return fail("prompt is a list of token ids: there is nothing to encode.");
  e.prompt = recipe::render_request(e.request);
  if (const Status status = tokenize(flags, e); !status.ok()) return fail(status.message());
  if (flags.json) {
    print_json(e);
  } else if (flags.explain) {
    print_explained(e, has_style(STDOUT_FILENO));
  } else {
    print_plain(e);
  }
  return kExitOk;
}

void setup_encode(CLI::App& app, Run* run) {
  auto flags = std::make_shared<EncodeFlags>();
  app.add_option("FILE", flags->file, "Request body, - for standard input")->required();
  app.add_option("--api", flags->api, "API that the request is written for")
      ->check(CLI::IsMember({"chat", "responses", "messages", "completions"}))
      ->capture_default_str();
  app.add_option("--model", flags->model,
                 "Model folder or tokenizer.json (default: DEEPINFER_HF_MODEL_DIR, else the bundled model)");
  app.add_flag("--v4", flags->v4, "Prompts of DeepSeek V4 instead of V4.1");
  app.add_flag("--explain", flags->explain,
               "Show which part of the request made which tokens, in colour on a terminal");
  app.add_flag("--json", flags->json, "One JSON object: prompt, ids, spans, conversation and options");
  *run = [flags] { return encode(*flags); };
}

const Command kEncode("encode", "Show the prompt and token ids of a request", &setup_encode);

}  // namespace
}  // namespace deepinfer::app
