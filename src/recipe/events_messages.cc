#include "recipe/events_messages.h"

#include "recipe/choices_stream.h"
#include "recipe/json_check.h"
#include "recipe/json_writer.h"
#include "recipe/stream_choice.h"

namespace deepinfer::recipe {
namespace {

std::string_view stop_reason_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kToolCalls: return "tool_use";
    case FinishReason::kStopSequence: return "stop_sequence";
    case FinishReason::kLength: return "max_tokens";
    case FinishReason::kContextFull: return "model_context_window_exceeded";
    case FinishReason::kContentFilter: return "refusal";
    default: return "end_turn";
  }
}

void append_event(std::string& out, std::string_view type, std::string_view members) {
  out.append("event: ")
      .append(type)
      .append("\ndata: {\"type\":\"")
      .append(type)
      .append("\"")
      .append(members)
      .append("}\n\n");
}

class MessageOutput final : public StreamChoice {
 public:
  MessageOutput(const ApiStreamOptions& options, const OutputVocabulary* vocabulary)
      : StreamChoice(options, vocabulary, 0),
        thinks_(options.thinking && (options.parser.initial == InitialStage::kReasoningStart ||
                                     options.parser.initial == InitialStage::kReasoning)) {}

  // In thinking mode the thinking block stands open before the first token.
  void begin(std::string& out) {
    if (thinks_ && options_.stream) open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})", out);
  }

  void close(std::string& out) {
    if (block_ == Block::kNone || !options_.stream) return;
    if (block_ == Block::kThinking) {
      write_delta("signature_delta", "signature", options_.id, out);
    }
    std::string members = ",\"index\":";
    append_int(members, index_of_block_);
    append_event(out, "content_block_stop", members);
    block_ = Block::kNone;
  }

  std::string whole_content() const {
    std::string out = "[";
    const auto next = [&] { out += out.size() > 1 ? "," : ""; };
    if (thinks_ || !fold_.reasoning.empty()) {
      out += "{\"type\":\"thinking\"";
      append_member(out, "thinking", fold_.reasoning);
      append_member(out, "signature", options_.id);
      out += '}';
    }
    if (!fold_.content.empty()) {
      next();
      out += "{\"type\":\"text\"";
      append_member(out, "text", fold_.content);
      out += '}';
    }
    for (const FoldedCall& call : fold_.calls) {
      next();
      out += "{\"type\":\"tool_use\"";
      append_member(out, "id", call.id);
      append_member(out, "name", call.name);
      // The text as it is, so that numbers keep their form.
      const std::string arguments = call.without_repeated_keys();
      append_raw_member(out, "input", is_json(arguments) ? std::string_view(arguments) : "{}");
      out += '}';
    }
    out += ']';
    return out;
  }

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kToolUse };

  void on_call_begin(int, std::string_view name) override {
    const FoldedCall& call = record_call(name);
    if (!options_.stream) return;
    std::string start = "{\"type\":\"tool_use\"";
    append_member(start, "id", call.id);
    append_member(start, "name", name);
    start += ",\"input\":{}}";
    open(Block::kToolUse, start, *out_);
  }

  void on_call_end(int call, bool complete) override {
    flush();
    fold_.calls[call].complete = complete;
    close(*out_);
  }

  void write_pending(std::string& out) override {
    switch (pending_) {
      case Pending::kReasoning:
        if (block_ != Block::kThinking)
          open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})", out);
        return write_delta("thinking_delta", "thinking", delta_, out);
      case Pending::kContent:
        if (block_ != Block::kText) open(Block::kText, R"({"type":"text","text":""})", out);
        return write_delta("text_delta", "text", delta_, out);
      case Pending::kArguments: return write_delta("input_json_delta", "partial_json", delta_, out);
      case Pending::kNone: return;
    }
  }

  void open(Block block, std::string_view start, std::string& out) {
    close(out);
    block_ = block;
    ++index_of_block_;
    std::string members = ",\"index\":";
    append_int(members, index_of_block_);
    append_raw_member(members, "content_block", start);
    append_event(out, "content_block_start", members);
    if (index_of_block_ == 0) append_event(out, "ping", {});
  }

  void write_delta(std::string_view type, std::string_view key, std::string_view text, std::string& out) {
    out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
    append_int(out, index_of_block_);
    out.append(",\"delta\":{\"type\":\"").append(type).append("\",\"").append(key).append("\":\"");
    append_json_escaped(out, text);
    out += "\"}}\n\n";
  }

  const bool thinks_;
  Block block_ = Block::kNone;
  int64_t index_of_block_ = -1;
};

class MessagesStream final : public ChoicesStream {
 public:
  MessagesStream(ApiStreamOptions options, const OutputVocabulary* vocabulary)
      : ChoicesStream(std::move(options), vocabulary) {
    choices_.push_back(std::make_unique<MessageOutput>(options_, vocabulary));
  }

  void begin(const Usage& prompt, std::string& out) override {
    prompt_ = prompt;
    if (!options_.stream) return;
    std::string members = ",\"message\":{";
    append_message(members, "[]", "null", "null");
    members += '}';
    append_event(out, "message_start", members);
    output().begin(out);
  }

  std::string body() const override {
    if (error_) return error_object(*error_);
    std::string out = "{";
    append_message(out, output().whole_content(), quoted(stop_reason_of(output().reason())), stop_sequence());
    out += '}';
    return out;
  }

 private:
  MessageOutput& output() { return static_cast<MessageOutput&>(*choices_[0]); }
  const MessageOutput& output() const { return static_cast<const MessageOutput&>(*choices_[0]); }

  static std::string quoted(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
  }
  std::string stop_sequence() const {
    return output().tokens().stopped() ? quoted(output().tokens().stop_sequence()) : "null";
  }

  void append_message(std::string& out, std::string_view content, std::string_view stop_reason,
                      std::string_view stop) const {
    out += "\"id\":";
    append_json_string(out, options_.id);
    out += ",\"type\":\"message\",\"role\":\"assistant\"";
    append_member(out, "model", options_.model);
    append_raw_member(out, "content", content);
    append_raw_member(out, "stop_reason", stop_reason);
    append_raw_member(out, "stop_sequence", stop);
    out += ",\"usage\":";
    append_messages_usage(out, usage());
  }

  void write_finish(StreamChoice& choice, bool, std::string& out) override {
    if (choice.reason() == FinishReason::kEndOfStream) {
      return fail({500, "The model's output ended without a reason. Please send the request again."}, out);
    }
    if (choice.reason() == FinishReason::kOutOfCapacity) {
      return fail({529, "The server is out of capacity. Please send the request again later."}, out);
    }
    if (!options_.stream) return;
    output().close(out);
    std::string members = ",\"delta\":{\"stop_reason\":";
    members.append(quoted(stop_reason_of(choice.reason())))
        .append(",\"stop_sequence\":")
        .append(stop_sequence())
        .append("},\"usage\":");
    append_messages_usage(members, usage());
    append_event(out, "message_delta", members);
    append_event(out, "message_stop", {});
  }

  void write_failure(const StreamError& error, std::string& out) override {
    if (options_.stream) out.append("event: error\ndata: ").append(error_object(error)).append("\n\n");
  }

  static std::string error_object(const StreamError& error) {
    return error_body(Protocol::kMessages, {error.status, error.message, "internal_error", "internal_error", ""});
  }
};

}  // namespace

std::unique_ptr<ApiStream> make_messages_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary) {
  return std::make_unique<MessagesStream>(std::move(options), vocabulary);
}

}  // namespace deepinfer::recipe
