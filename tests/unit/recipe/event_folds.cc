#include "tests/unit/recipe/event_folds.h"

#include <fmt/format.h>

#include "recipe/json.h"
#include "tests/fixtures/stream_cases.h"

namespace deepinfer::recipe::test {
namespace {

struct Folded {
  std::string reasoning, content, end, usage, faults;
  std::vector<std::pair<std::string, std::string>> calls;  // id, name and kind; arguments or input

  std::string print() const {
    std::string out = "reasoning " + reasoning + "\ncontent " + content + "\n";
    for (const auto& [head, arguments] : calls) out += "call " + head + " " + arguments + "\n";
    return out + "end " + end + "\nusage " + usage + "\n" + faults;
  }
};

std::string text_at(const Json& object, std::string_view key) {
  return std::string(fixtures::text_member(object, key));
}

std::string usage_at(const Json& object) {
  const Json* usage = object.find("usage");
  if (usage == nullptr || usage->is_null()) return "";
  std::string all;
  for (const JsonMember& m : usage->as_object()) {
    // Tokens are counted per push in these tests, so the completion side depends on the cuts.
    if (m.key.find("output") == std::string::npos && m.key.find("completion") == std::string::npos &&
        m.key != "total_tokens") {
      all += m.key + "=" + to_compact_json(m.value) + " ";
    }
  }
  return all;
}

void fold_chat_call(const Json& call, Folded& f) {
  const bool custom = call.find("custom") != nullptr;
  const Json& inner = *call.find(custom ? "custom" : "function");
  const auto index = static_cast<size_t>(*call.find("index")->to_int64());
  if (call.find("id") != nullptr)
    f.calls.emplace_back(text_at(call, "id") + " " + text_at(call, "type") + " " + text_at(inner, "name"), "");
  if (index + 1 != f.calls.size()) f.faults += "call out of order\n";
  f.calls.back().second += text_at(inner, custom ? "input" : "arguments");
}

Folded fold_chat(const std::vector<std::pair<std::string, std::string>>& frames) {
  Folded f;
  bool done = false;
  for (const auto& [name, data] : frames) {
    if (done) f.faults += "a frame after [DONE]\n";
    if (data == "[DONE]") {
      done = true;
      continue;
    }
    const Json event = std::move(parse_json(data)).value();
    const Json& choice = event.find("choices")->as_array()[0];
    if (const Json* delta = choice.find("delta")) {
      f.content += text_at(*delta, "content");
      f.reasoning += text_at(*delta, "reasoning_content");
      if (const Json* calls = delta->find("tool_calls")) fold_chat_call(calls->as_array()[0], f);
    } else {
      f.content += text_at(choice, "text");
    }
    if (!f.end.empty()) f.faults += "a delta after the finish\n";
    f.end += text_at(choice, "finish_reason");
    f.usage += usage_at(event);
  }
  if (!done) f.faults += "no [DONE]\n";
  return f;
}

Folded fold_messages(const std::vector<std::pair<std::string, std::string>>& frames) {
  Folded f;
  int64_t open = -1, next = 0;
  for (const auto& [name, data] : frames) {
    const Json event = std::move(parse_json(data)).value();
    const std::string type = text_at(event, "type");
    if (type != name) f.faults += "name and type differ\n";
    const Json* index = event.find("index");
    if (type == "content_block_start") {
      if (open >= 0 || *index->to_int64() != next) f.faults += "block out of order\n";
      open = next++;
      const Json& block = *event.find("content_block");
      if (text_at(block, "type") == "tool_use")
        f.calls.emplace_back(text_at(block, "id") + " " + text_at(block, "name"), "");
    } else if (type == "content_block_delta" || type == "content_block_stop") {
      if (*index->to_int64() != open) f.faults += "delta of a block that is not open\n";
      if (type == "content_block_stop") open = -1;
      if (const Json* delta = event.find("delta")) {
        f.reasoning += text_at(*delta, "thinking");
        f.content += text_at(*delta, "text");
        if (!f.calls.empty()) f.calls.back().second += text_at(*delta, "partial_json");
      }
    } else if (type == "message_delta") {
      f.end = text_at(*event.find("delta"), "stop_reason") + " " + text_at(*event.find("delta"), "stop_sequence");
      f.usage = usage_at(event);
    } else if (type == "error") {
      f.end = text_at(*event.find("error"), "message");
    }
  }
  return f;
}

void fold_item(const Json& item, Folded& f) {
  const std::string type = text_at(item, "type");
  const std::string head = text_at(item, "id") + " " + text_at(item, "status") + " ";
  if (type == "reasoning" || type == "message") {
    std::string& to = type == "reasoning" ? f.reasoning : f.content;
    to += head + text_at(item, "phase");
    for (const Json& part : item.find("content")->as_array()) to += " " + text_at(part, "text");
  } else {
    f.calls.emplace_back(
        head + type + " " + text_at(item, "call_id") + " " + text_at(item, "namespace") + "/" + text_at(item, "name"),
        text_at(item, type == "function_call" ? "arguments" : "input"));
  }
}

Folded fold_response(const Json& response) {
  Folded f;
  for (const Json& item : response.find("output")->as_array()) fold_item(item, f);
  f.end = text_at(response, "status") + to_compact_json(*response.find("incomplete_details")) +
          to_compact_json(*response.find("error"));
  f.usage = usage_at(response);
  return f;
}

Folded fold_responses(const std::vector<std::pair<std::string, std::string>>& frames) {
  Folded items, last;
  std::string deltas, faults;
  int64_t sequence = 0;
  for (const auto& [name, data] : frames) {
    const Json event = std::move(parse_json(data)).value();
    if (text_at(event, "type") != name) faults += "name and type differ\n";
    if (*event.find("sequence_number")->to_int64() != sequence++) faults += "sequence number\n";
    if (name.ends_with(".delta")) deltas += text_at(event, "delta");
    for (const char* key : {"text", "arguments", "input"}) {
      if (!name.ends_with(".done") || name.find("part") != std::string::npos || event.find(key) == nullptr) continue;
      if (text_at(event, key) != deltas) faults += "deltas are not the text of " + name + "\n";
      deltas.clear();
    }
    if (name == "response.output_item.done") fold_item(*event.find("item"), items);
    if (event.find("response") != nullptr) last = fold_response(*event.find("response"));
  }
  if (items.calls != last.calls || items.content != last.content || items.reasoning != last.reasoning)
    faults += "items differ\n";
  last.faults = faults;
  return last;
}

}  // namespace

namespace {

Folded fold_frames(Protocol protocol, std::string_view frames) {
  const auto split = fixtures::split_frames(frames);
  switch (protocol) {
    case Protocol::kResponses: return fold_responses(split);
    case Protocol::kMessages: return fold_messages(split);
    default: return fold_chat(split);
  }
}

}  // namespace

std::string fold(Protocol protocol, std::string_view frames) { return fold_frames(protocol, frames).print(); }

bool comparable(Protocol protocol, std::string_view frames) {
  const bool messages = protocol == Protocol::kMessages;
  if (messages && frames.find("event: error") != std::string_view::npos) return false;
  for (const auto& [head, arguments] : fold_frames(protocol, frames).calls) {
    for (const char* key : {"\"a\": ", "\"b\": ", "\"input\": "}) {
      if (arguments.find(key) != arguments.rfind(key)) return false;
    }
    Result<Json> value = parse_json(arguments);
    // Numbers are compared as text, so only arguments in printed form can be.
    if (messages && !(value.ok() && to_python_json(value.value()) == arguments)) return false;
  }
  return true;
}

std::string fold_body(Protocol protocol, std::string_view text) {
  const Json body = std::move(parse_json(text)).value();
  Folded f;
  if (protocol == Protocol::kResponses) return fold_response(body).print();
  if (protocol == Protocol::kMessages) {
    if (const Json* error = body.find("error")) {
      f.end = text_at(*error, "message");
      return f.print();
    }
    for (const Json& block : body.find("content")->as_array()) {
      f.reasoning += text_at(block, "thinking");
      f.content += text_at(block, "text");
      if (const Json* input = block.find("input")) {
        f.calls.emplace_back(text_at(block, "id") + " " + text_at(block, "name"), to_python_json(*input));
      }
    }
    f.end = text_at(body, "stop_reason") + " " + text_at(body, "stop_sequence");
    f.usage = usage_at(body);
    return f.print();
  }
  const Json& choice = body.find("choices")->as_array()[0];
  if (const Json* message = choice.find("message")) {
    f.content = text_at(*message, "content");
    f.reasoning = text_at(*message, "reasoning_content");
    if (const Json* calls = message->find("tool_calls")) {
      for (const Json& call : calls->as_array()) fold_chat_call(call, f);
    }
  } else {
    f.content = text_at(choice, "text");
  }
  f.end = text_at(choice, "finish_reason");
  f.usage = usage_at(body);
  return f.print();
}

}  // namespace deepinfer::recipe::test
