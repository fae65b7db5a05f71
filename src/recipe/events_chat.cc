#include "recipe/events_chat.h"

#include <fmt/format.h>

#include "recipe/choices_stream.h"
#include "recipe/custom_input.h"
#include "recipe/json_writer.h"
#include "recipe/stream_choice.h"

namespace deepinfer::recipe {
namespace {

// {"content":[..],"reasoning_content":[..],"refusal":null}; a list without entries is left out.
void append_logprobs(std::string& out, std::string_view content, std::string_view reasoning) {
  out += '{';
  if (!content.empty()) out.append("\"content\":[").append(content).append("],");
  if (!reasoning.empty()) out.append("\"reasoning_content\":[").append(reasoning).append("],");
  out += "\"refusal\":null}";
}

class ChatChoice final : public StreamChoice {
 public:
  ChatChoice(const ApiStreamOptions& options, const OutputVocabulary* vocabulary, int index)
      : StreamChoice(options, vocabulary, index),
        head_(fmt::format("data: {{{},\"choices\":[{{\"index\":{},\"delta\":",
                          chat_identity(options, "chat.completion.chunk"), index)) {}

  void write_opening(std::string& out) {
    out += head_;
    out += options_.thinking ? R"({"role":"assistant","content":null,"reasoning_content":""})"
                             : R"({"role":"assistant","content":""})";
    write_tail(out, {}, "null");
  }

  void write_closing(std::string& out, std::string_view usage) {
    out += head_;
    out += options_.thinking ? R"({"content":"","reasoning_content":null})" : R"({"content":""})";
    write_tail(out, chat_finish_reason(reason_), usage);
  }

  std::string whole() const {
    std::string out = fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", index_);
    append_json_string(out, fold_.content);
    if (options_.thinking) {
      out += ",\"reasoning_content\":";
      append_json_string(out, fold_.reasoning);
    }
    for (size_t i = 0; i < fold_.calls.size(); ++i) {
      out += i == 0 ? ",\"tool_calls\":[" : ",";
      append_whole_call(out, i);
    }
    if (!fold_.calls.empty()) out += ']';
    out += "},\"logprobs\":";
    if (options_.logprobs) {
      append_logprobs(out, fold_.content_logprobs, fold_.reasoning_logprobs);
    } else {
      out += "null";
    }
    out.append(",\"finish_reason\":\"").append(chat_finish_reason(reason_)).append("\"}");
    return out;
  }

 private:
  void on_call_begin(int call, std::string_view name) override {
    const FoldedCall& recorded = record_call(name);
    custom_ = options_.custom_tools.contains(name);
    if (custom_) custom_input_ = {};
    if (!options_.stream) return;
    std::string& out = *out_;
    out += head_;
    out += "{\"tool_calls\":[{\"index\":";
    append_int(out, call);
    out += ",\"id\":";
    append_json_string(out, recorded.id);
    out += custom_ ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":";
    append_json_string(out, name);
    out += custom_ ? ",\"input\":\"\"}}]}" : ",\"arguments\":\"\"}}]}";
    write_tail(out, {}, "null");
  }

  void on_call_end(int call, bool complete) override {
    flush();
    fold_.calls[call].complete = complete;
    if (!custom_ || !options_.stream) return;
    std::string rest;
    custom_input_.finish(rest);
    if (!rest.empty()) write_call_delta(*out_, rest);
  }

  void write_pending(std::string& out) override {
    if (pending_ == Pending::kArguments) {
      if (!custom_) return write_call_delta(out, delta_);
      std::string input;
      custom_input_.push(delta_, input);
      if (!input.empty()) write_call_delta(out, input);
      return;
    }
    out += head_;
    if (pending_ == Pending::kReasoning) {
      out += "{\"content\":null,\"reasoning_content\":\"";
      append_json_escaped(out, delta_);
      out += "\"}";
    } else {
      out += "{\"content\":\"";
      append_json_escaped(out, delta_);
      out += options_.thinking ? "\",\"reasoning_content\":null}" : "\"}";
    }
    if (delta_logprobs_.empty()) return write_tail(out, {}, "null");
    out += ",\"logprobs\":";
    const bool reasoning = pending_ == Pending::kReasoning;
    append_logprobs(out, reasoning ? std::string_view() : delta_logprobs_,
                    reasoning ? delta_logprobs_ : std::string_view());
    out += ",\"finish_reason\":null}],\"usage\":null}\n\n";
  }

  void write_call_delta(std::string& out, std::string_view text) {
    out += head_;
    out += "{\"tool_calls\":[{\"index\":";
    append_int(out, static_cast<int64_t>(fold_.calls.size()) - 1);
    out += custom_ ? ",\"custom\":{\"input\":\"" : ",\"function\":{\"arguments\":\"";
    append_json_escaped(out, text);
    out += "\"}}]}";
    write_tail(out, {}, "null");
  }

  // Without a finish reason if it is empty.
  static void write_tail(std::string& out, std::string_view finish_reason, std::string_view usage) {
    out += ",\"logprobs\":null,\"finish_reason\":";
    if (finish_reason.empty()) {
      out += "null";
    } else {
      out.append("\"").append(finish_reason).append("\"");
    }
    out.append("}],\"usage\":").append(usage).append("}\n\n");
  }

  void append_whole_call(std::string& out, size_t i) const {
    const FoldedCall& call = fold_.calls[i];
    out += "{\"index\":";
    append_int(out, static_cast<int64_t>(i));
    out += ",\"id\":";
    append_json_string(out, call.id);
    const std::string arguments = call.without_repeated_keys();
    if (options_.custom_tools.contains(call.name)) {
      out += ",\"type\":\"custom\",\"custom\":{\"name\":";
      append_json_string(out, call.name);
      out += ",\"input\":";
      std::string input;
      CustomInput decoder;
      decoder.push(arguments, input);
      decoder.finish(input);
      append_json_string(out, input);
    } else {
      out += ",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(out, call.name);
      out += ",\"arguments\":";
      append_json_string(out, arguments);
    }
    out += "}}";
  }

  const std::string head_;  // up to the delta
  bool custom_ = false;     // the open call is one of a custom tool
  CustomInput custom_input_;
};

class ChatStream final : public ChoicesStream {
 public:
  ChatStream(ApiStreamOptions options, const OutputVocabulary* vocabulary)
      : ChoicesStream(std::move(options), vocabulary) {
    for (int i = 0; i < options_.n; ++i) choices_.push_back(std::make_unique<ChatChoice>(options_, vocabulary, i));
  }

  void begin(const Usage& prompt, std::string& out) override {
    prompt_ = prompt;
    if (!options_.stream) return;
    for (const auto& choice : choices_) static_cast<ChatChoice&>(*choice).write_opening(out);
  }

  std::string body() const override {
    if (error_) return error_object(*error_);
    std::string out = fmt::format("{{{},\"choices\":[", chat_identity(options_, "chat.completion"));
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      out += static_cast<const ChatChoice&>(*choices_[i]).whole();
    }
    out += "],\"usage\":";
    append_chat_usage(out, usage());
    out += '}';
    return out;
  }

 private:
  void write_finish(StreamChoice& choice, bool last, std::string& out) override {
    if (!options_.stream) return;
    std::string counts = "null";
    const bool separate = options_.usage_chunk == UsageChunk::kSeparate;
    if (last && !separate) {
      counts.clear();
      append_chat_usage(counts, usage());
    }
    static_cast<ChatChoice&>(choice).write_closing(out, counts);
    if (!last) return;
    if (separate && options_.include_usage) {
      out.append("data: {")
          .append(chat_identity(options_, "chat.completion.chunk"))
          .append(",\"choices\":[],\"usage\":");
      append_chat_usage(out, usage());
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }

  void write_failure(const StreamError& error, std::string& out) override {
    if (options_.stream) out.append("data: ").append(error_object(error)).append("\n\n");
  }

  static std::string error_object(const StreamError& error) {
    return error_body(Protocol::kChat, {error.status, error.message, "internal_error", "internal_error", ""});
  }
};

}  // namespace

std::string_view chat_finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kCancelled:
    case FinishReason::kStopSequence: return "stop";
    case FinishReason::kToolCalls: return "tool_calls";
    case FinishReason::kLength:
    case FinishReason::kContextFull: return "length";
    case FinishReason::kContentFilter: return "content_filter";
    case FinishReason::kOutOfCapacity: return "insufficient_system_resource";
    case FinishReason::kEndOfStream: break;
  }
  return "error";
}

std::string chat_identity(const ApiStreamOptions& o, std::string_view object) {
  std::string out = "\"id\":";
  append_json_string(out, o.id);
  out.append(",\"object\":\"").append(object).append("\",\"created\":");
  append_int(out, o.created);
  out += ",\"model\":";
  append_json_string(out, o.model);
  out += ",\"system_fingerprint\":";
  if (o.system_fingerprint.empty()) {
    out += "null";
  } else {
    append_json_string(out, o.system_fingerprint);
  }
  return out;
}

std::unique_ptr<ApiStream> make_chat_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary) {
  return std::make_unique<ChatStream>(std::move(options), vocabulary);
}

}  // namespace deepinfer::recipe
