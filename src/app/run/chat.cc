#include "app/run/chat.h"

#include <unistd.h>

#include <charconv>
#include <cstring>

#include "app/commands.h"
#include "app/environment.h"
#include "app/run/printer.h"
#include "app/terminal/terminal.h"
#include "base/file.h"
#include "recipe/json.h"

namespace deepinfer::app {
namespace {

constexpr const char* kHelp =
    "/help           this text\n"
    "/reset          begin a new conversation\n"
    "/system [TEXT]  show the system text, or set it and begin a new conversation; - removes it\n"
    "/seed [N]       show the seed, or set it; the same seed gives the same answers\n"
    "/stats          tokens and speed so far\n"
    "/save FILE      write the conversation as JSON\n"
    "/quit           end (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next one. Arrow keys and Ctrl-R walk through "
    "earlier lines.";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

recipe::Json message_json(const recipe::Message& m) {
  recipe::Json json = recipe::Json::object();
  json.set("role", m.role == recipe::Role::kSystem ? "system" : m.role == recipe::Role::kUser ? "user" : "assistant");
  json.set("content", m.content.text);
  if (m.reasoning && !m.reasoning->empty()) json.set("reasoning_content", *m.reasoning);
  return json;
}

}  // namespace

Chat::Chat(Session& session, Interrupt& interrupt, ChatOptions options)
    : session_(session),
      interrupt_(interrupt),
      options_(std::move(options)),
      editor_(options_.history_path, interrupt) {}

void Chat::say(const std::string& text) const {
  const bool style = has_style(STDERR_FILENO);
  write_out(STDERR_FILENO, fmt::format("{}{}{}\n", style ? "\x1b[2m" : "", text, style ? "\x1b[0m" : ""));
}

int Chat::run() {
  say(fmt::format("{}: type a message, /help for commands, Ctrl-D to end.", options_.model));
  std::string input;
  bool history_works = true;
  while (true) {
    std::string line;
    const LineEditor::Event event = editor_.read(input.empty() ? "> " : ". ", &line);
    if (event == LineEditor::Event::kEnd) break;
    if (event == LineEditor::Event::kInterrupted) {
      write_out(STDERR_FILENO, "\n");
      input.clear();
      continue;
    }
    if (const Status kept = editor_.remember(line); !kept.ok() && history_works) {
      history_works = false;
      say("The history of this chat is not kept: " + kept.message());
    }
    if (line.ends_with('\\')) {
      input += line.substr(0, line.size() - 1) + "\n";
      continue;
    }
    input += line;
    if (!handle(input)) break;
    input.clear();
  }
  if (!options_.quiet && totals_.answers > 0) say("\n" + totals_.to_string());
  return output_gone_ ? kExitBadInput : kExitOk;
}

bool Chat::handle(const std::string& line) {
  if (trim(line).empty()) return true;
  if (line.front() == '/') return command(line);
  answer(line);
  return !output_gone_;
}

bool Chat::command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, space), rest(trim(std::string_view(line).substr(space)));
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    say(kHelp);
  } else if (name == "/reset") {
    reset();
    say("A new conversation begins.");
  } else if (name == "/system") {
    set_system(rest);
  } else if (name == "/seed") {
    set_seed(rest);
  } else if (name == "/stats") {
    const std::string guesses = options_.guesses ? options_.guesses() : "";
    say(totals_.to_string() + (guesses.empty() ? "" : "\n" + guesses.substr(0, guesses.find('\n'))));
  } else if (name == "/save") {
    save(rest);
  } else {
    say(fmt::format("There is no command {}; /help lists them. Begin with a space to say it to the model.", name));
  }
  return true;
}

void Chat::answer(const std::string& line) {
  recipe::Conversation& c = options_.conversation;
  if (!options_.raw) c.messages.push_back({.role = recipe::Role::kUser, .content = {.text = line}});
  Printer printer(STDOUT_FILENO);
  const Result<Answer> answer = options_.raw ? session_.complete(line, printer, &interrupt_.flag())
                                             : session_.chat(c, printer, &interrupt_.flag());
  printer.finish();
  if (printer.write_error() != 0) {
    output_gone_ = true;
    fail(fmt::format("Cannot write the answer: {}.", std::strerror(printer.write_error())));
  }
  if (!answer.ok()) {
    if (!options_.raw) c.messages.pop_back();
    say(answer.status().message());
    return;
  }
  totals_.add(answer.value().figures);
  if (const std::string why = why_cut(answer.value()); !why.empty()) say(why);
  if (!options_.raw) add_answer(answer.value());
}

// A stopped answer stays as far as it came; without any of it the question goes, too.
void Chat::add_answer(const Answer& answer) {
  recipe::Conversation& c = options_.conversation;
  if (answer.content.empty() && answer.cancelled) {
    c.messages.pop_back();
    return;
  }
  recipe::Message m{.role = recipe::Role::kAssistant, .content = {.text = answer.content}};
  if (!answer.reasoning.empty()) m.reasoning = answer.reasoning;
  c.messages.push_back(std::move(m));
}

void Chat::reset() {
  std::vector<recipe::Message>& messages = options_.conversation.messages;
  const bool has_system = !messages.empty() && messages.front().role == recipe::Role::kSystem;
  messages.resize(has_system ? 1 : 0);
}

void Chat::set_system(const std::string& text) {
  std::vector<recipe::Message>& messages = options_.conversation.messages;
  const bool has_system = !messages.empty() && messages.front().role == recipe::Role::kSystem;
  if (text.empty()) {
    say(has_system ? messages.front().content.text : "There is no system text.");
    return;
  }
  messages.clear();
  if (text != "-") messages.push_back({.role = recipe::Role::kSystem, .content = {.text = text}});
  say("A new conversation begins.");
}

void Chat::set_seed(const std::string& text) {
  uint64_t seed = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (!text.empty() && (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())) {
    say(fmt::format("\"{}\" is not a seed; write a number from 0 to 18446744073709551615.", text));
    return;
  }
  if (!text.empty()) session_.settings().seed = seed;
  say(fmt::format("Seed {}.", session_.settings().seed));
}

void Chat::save(const std::string& path) const {
  if (path.empty()) {
    say("Name the file: /save FILE");
    return;
  }
  if (options_.raw) {
    say("Raw texts are no conversation; there is nothing to save.");
    return;
  }
  recipe::Json root = recipe::Json::object();
  root.set("model", options_.model);
  root.set("seed", session_.settings().seed);
  recipe::Json messages = recipe::Json::array();
  for (const recipe::Message& m : options_.conversation.messages) messages.as_array().push_back(message_json(m));
  root.set("messages", std::move(messages));
  const std::string file = path.starts_with("~/") ? environment("HOME") + path.substr(1) : path;
  const Status written = write_file_atomically(file, recipe::to_python_json(root) + "\n");
  say(written.ok() ? fmt::format("Saved to {}.", file) : fmt::format("Not saved: {}.", written.message()));
}

}  // namespace deepinfer::app
