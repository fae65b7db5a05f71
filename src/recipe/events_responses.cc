#include "recipe/events_responses.h"

#include <fmt/format.h>

#include "recipe/choices_stream.h"
#include "recipe/custom_input.h"
#include "recipe/json_writer.h"
#include "recipe/sealed.h"
#include "recipe/stream_choice.h"

namespace deepinfer::recipe {
namespace {

constexpr std::string_view kInProgress = "in_progress", kCompleted = "completed", kIncomplete = "incomplete",
                           kFailed = "failed", kCancelled = "cancelled";

std::string_view status_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kToolCalls:
    case FinishReason::kStopSequence: return kCompleted;
    case FinishReason::kLength:
    case FinishReason::kContextFull:
    case FinishReason::kContentFilter: return kIncomplete;
    case FinishReason::kCancelled: return kCancelled;
    case FinishReason::kEndOfStream:
    case FinishReason::kOutOfCapacity: break;
  }
  return kFailed;
}

// Numbers events and writes their frames.
class EventWriter {
 public:
  // `members` is JSON text that starts with a comma.
  void write(std::string& out, std::string_view type, std::string_view members) {
    open(out, type);
    out += members;
    close(out);
  }
  void open(std::string& out, std::string_view type) {
    out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\"");
  }
  void close(std::string& out) {
    out += ",\"sequence_number\":";
    append_int(out, next_++);
    out += "}\n\n";
  }

 private:
  int64_t next_ = 0;
};

// The items of one response. An item opens at its first byte and closes when the next one opens or the output ends.
class ResponseOutput final : public StreamChoice {
 public:
  ResponseOutput(const ApiStreamOptions& options, const OutputVocabulary* vocabulary, EventWriter* events)
      : StreamChoice(options, vocabulary, 0), events_(events) {}

  // How the item that is open at the end of the output ends.
  void set_last_status(std::string_view status) { last_status_ = status; }

  void close(std::string_view status) {
    if (open_ == Item::kNone || open_ == Item::kCall) return;
    const bool reasoning = open_ == Item::kReasoning;
    const std::string part = text_part(reasoning, true);
    if (options_.stream) {
      std::string done = place() + ",\"content_index\":0";
      append_member(done, "text", reasoning ? fold_.reasoning : fold_.content);
      if (!reasoning) done.append(",\"logprobs\":[").append(fold_.content_logprobs).append("]");
      events_->write(*out_, reasoning ? "response.reasoning_text.done" : "response.output_text.done", done);
      events_->write(*out_, "response.content_part.done", place() + ",\"content_index\":0,\"part\":" + part);
    }
    finish_item(reasoning ? reasoning_item(status, part) : message_item(status, part));
  }

  // All closed items, as JSON.
  std::string items() const { return "[" + items_ + "]"; }

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall };

  void on_reasoning(std::string_view text, SourceRange source) override {
    if (open_ != Item::kReasoning) open_text(Item::kReasoning);
    StreamChoice::on_reasoning(text, source);
  }

  void on_content(std::string_view text, SourceRange source) override {
    if (open_ != Item::kMessage) open_text(Item::kMessage);
    StreamChoice::on_content(text, source);
  }

  void on_call_begin(int, std::string_view name) override {
    const FoldedCall& call = record_call(name);
    commentary_ = true;
    close(kCompleted);
    open_ = Item::kCall;
    custom_ = options_.custom_tools.contains(name);
    custom_input_ = {};
    input_.clear();
    if (options_.stream) write_added(call_item(call, kInProgress, ""));
  }

  void on_call_end(int number, bool complete) override {
    flush();
    FoldedCall& call = fold_.calls[number];
    call.complete = complete;
    std::string text = options_.stream ? call.arguments : call.without_repeated_keys();
    if (custom_) {
      if (!options_.stream) custom_input_.push(text, input_);
      const size_t before = input_.size();
      custom_input_.finish(input_);
      if (options_.stream && input_.size() > before) write_call_delta(std::string_view(input_).substr(before));
      text = input_;
    }
    if (options_.stream) {
      std::string done = place();
      append_member(done, custom_ ? "input" : "arguments", text);
      events_->write(*out_, custom_ ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
                     done);
    }
    finish_item(call_item(call, complete ? kCompleted : last_status_, text));
  }

  void write_pending(std::string& out) override {
    if (pending_ == Pending::kArguments) {
      if (!custom_) return write_call_delta(delta_);
      const size_t before = input_.size();
      custom_input_.push(delta_, input_);
      if (input_.size() > before) write_call_delta(std::string_view(input_).substr(before));
      return;
    }
    const bool reasoning = pending_ == Pending::kReasoning;
    events_->open(out, reasoning ? "response.reasoning_text.delta" : "response.output_text.delta");
    out.append(place()).append(",\"content_index\":0,\"delta\":\"");
    append_json_escaped(out, delta_);
    out += '"';
    if (!reasoning) out.append(",\"logprobs\":[").append(delta_logprobs_).append("]");
    events_->close(out);
  }

  void open_text(Item item) {
    flush();
    close(kCompleted);
    open_ = item;
    if (!options_.stream) return;
    const bool reasoning = item == Item::kReasoning;
    write_added(reasoning ? reasoning_item(kInProgress, "") : message_item(kInProgress, ""));
    events_->write(*out_, "response.content_part.added",
                   place() + ",\"content_index\":0,\"part\":" + text_part(reasoning, false));
  }

  void write_added(const std::string& item) {
    events_->write(*out_, "response.output_item.added",
                   fmt::format(",\"item\":{},\"output_index\":{}", item, index_of_item_));
  }

  void finish_item(const std::string& item) {
    append_listed(items_, item);
    if (options_.stream) {
      events_->write(*out_, "response.output_item.done",
                     fmt::format(",\"item\":{},\"output_index\":{}", item, index_of_item_));
    }
    open_ = Item::kNone;
    ++index_of_item_;
  }

  void write_call_delta(std::string_view text) {
    events_->open(*out_, custom_ ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta");
    out_->append(place()).append(",\"delta\":\"");
    append_json_escaped(*out_, text);
    *out_ += '"';
    events_->close(*out_);
  }

  std::string item_id(std::string_view prefix) const {
    std::string id;
    append_json_string(id, fmt::format("{}_{}_{}", prefix, options_.id, index_of_item_));
    return id;
  }
  std::string_view prefix() const {
    switch (open_) {
      case Item::kReasoning: return "rs";
      case Item::kCall: return custom_ ? "ctc" : "fc";
      default: return "msg";
    }
  }
  // `,"item_id":..,"output_index":..` of the open item.
  std::string place() const {
    return fmt::format(",\"item_id\":{},\"output_index\":{}", item_id(prefix()), index_of_item_);
  }

  std::string text_part(bool reasoning, bool filled) const {
    std::string part = reasoning ? "{\"type\":\"reasoning_text\"" : "{\"type\":\"output_text\",\"annotations\":[]";
    if (!reasoning) part.append(",\"logprobs\":[").append(filled ? fold_.content_logprobs : "").append("]");
    append_member(part, "text", !filled ? "" : reasoning ? fold_.reasoning : fold_.content);
    return part + "}";
  }

  // `part` is empty while the item is open.
  std::string reasoning_item(std::string_view status, std::string_view part) const {
    std::string item =
        fmt::format("{{\"type\":\"reasoning\",\"id\":{},\"status\":\"{}\",\"content\":[{}],\"summary\":[]",
                    item_id("rs"), status, part);
    if (options_.sealer != nullptr && !part.empty())
      append_member(item, "encrypted_content", options_.sealer->seal(fold_.reasoning));
    return item + "}";
  }

  std::string message_item(std::string_view status, std::string_view part) const {
    return fmt::format(
        "{{\"type\":\"message\",\"id\":{},\"status\":\"{}\",\"role\":\"assistant\",\"phase\":\"{}\",\"content\":[{}]}}",
        item_id("msg"), status, commentary_ ? "commentary" : "final_answer", part);
  }

  std::string call_item(const FoldedCall& call, std::string_view status, std::string_view text) const {
    std::string item = fmt::format("{{\"type\":\"{}\",\"id\":{},\"status\":\"{}\"",
                                   custom_ ? "custom_tool_call" : "function_call", item_id(prefix()), status);
    append_member(item, "call_id", call.id);
    const size_t split = call.name.find("::");
    append_member(item, "name", split == std::string::npos ? call.name : call.name.substr(split + 2));
    if (split != std::string::npos) append_member(item, "namespace", call.name.substr(0, split));
    append_member(item, custom_ ? "input" : "arguments", text);
    return item + "}";
  }

  EventWriter* events_;
  Item open_ = Item::kNone;
  int64_t index_of_item_ = 0;
  bool commentary_ = false;  // a call follows the message
  bool custom_ = false;      // the open call is one of a custom tool
  CustomInput custom_input_;
  std::string input_;  // of the open custom call
  std::string items_;
  std::string_view last_status_ = kCompleted;
};

class ResponsesStream final : public ChoicesStream {
 public:
  ResponsesStream(ApiStreamOptions options, const OutputVocabulary* vocabulary)
      : ChoicesStream(std::move(options), vocabulary) {
    choices_.push_back(std::make_unique<ResponseOutput>(options_, vocabulary, &events_));
  }

  void begin(const Usage& prompt, std::string& out) override {
    prompt_ = prompt;
    if (!options_.stream) return;
    const std::string response = ",\"response\":" + response_object(kInProgress);
    events_.write(out, "response.created", response);
    events_.write(out, "response.in_progress", response);
  }

  std::string body() const override { return response_object(final_status()); }
  std::string running_object() const { return response_object(kInProgress); }

 private:
  ResponseOutput& output() { return static_cast<ResponseOutput&>(*choices_[0]); }
  const ResponseOutput& output() const { return static_cast<const ResponseOutput&>(*choices_[0]); }

  std::string_view final_status() const { return error_ ? kFailed : status_of(output().reason()); }

  void before_end(FinishReason engine_reason) override {
    const std::string_view status = status_of(engine_reason);
    output().set_last_status(status == kCompleted ? kCompleted : kIncomplete);
  }

  void write_finish(StreamChoice& choice, bool, std::string& out) override {
    const std::string_view status = status_of(choice.reason());
    output().close(status == kCompleted ? kCompleted : kIncomplete);
    finished_at_ = options_.now ? options_.now() : options_.created;
    if (status == kFailed) {
      const bool capacity = choice.reason() == FinishReason::kOutOfCapacity;
      return fail({capacity ? 503 : 500,
                   capacity ? "The server is out of capacity. Please send the request again later."
                            : "The model's output ended without a reason. Please send the request again."},
                  out);
    }
    if (options_.stream) {
      events_.write(out, status == kCompleted ? "response.completed" : "response.incomplete",
                    ",\"response\":" + response_object(status));
    }
  }

  void write_failure(const StreamError& error, std::string& out) override {
    finished_at_ = options_.now ? options_.now() : options_.created;
    if (!output().finished()) {
      output().set_last_status(kIncomplete);
      output().end_output(FinishReason::kEndOfStream, out);
      output().close(kIncomplete);
    }
    if (!options_.stream) return;
    std::string members = ",\"code\":\"server_error\"";
    append_member(members, "message", error.message);
    events_.write(out, "error", members + ",\"param\":null");
    events_.write(out, "response.failed", ",\"response\":" + response_object(kFailed));
  }

  std::string response_object(std::string_view status) const {
    const bool ended = status != kInProgress;
    std::string out = "{\"id\":";
    append_json_string(out, options_.id);
    fmt::format_to(std::back_inserter(out),
                   ",\"object\":\"response\",\"created_at\":{},\"status\":\"{}\",\"completed_at\":{}", options_.created,
                   status, ended ? std::to_string(finished_at_) : "null");
    append_member(out, "model", options_.model);
    out += ",\"error\":";
    if (error_) {
      out += "{\"code\":\"server_error\"";
      append_member(out, "message", error_->message);
      out += '}';
    } else {
      out += "null";
    }
    out += ",\"incomplete_details\":";
    if (status != kIncomplete) {
      out += "null";
    } else if (output().reason() == FinishReason::kContentFilter) {
      out += "{\"reason\":\"content_filter\"}";
    } else {
      out += "{\"reason\":\"max_output_tokens\"}";
    }
    append_raw_member(out, "output", ended ? output().items() : "[]");
    if (!options_.echo.empty()) out.append(",").append(options_.echo);
    out += ",\"usage\":";
    if (ended) {
      append_responses_usage(out, usage());
    } else {
      out += "null";
    }
    out += '}';
    return out;
  }

  EventWriter events_;
  int64_t finished_at_ = 0;
};

}  // namespace

std::string running_response(const ApiStreamOptions& options) {
  return ResponsesStream(options, nullptr).running_object();
}

std::unique_ptr<ApiStream> make_responses_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary) {
  return std::make_unique<ResponsesStream>(std::move(options), vocabulary);
}

}  // namespace deepinfer::recipe
