#include "recipe/events_completions.h"

#include <algorithm>

#include <fmt/format.h>

#include "recipe/choices_stream.h"
#include "recipe/events_chat.h"
#include "recipe/json_writer.h"
#include "recipe/logprobs.h"
#include "recipe/stream_choice.h"

namespace deepinfer::recipe {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

int64_t characters(std::string_view text) {
  return static_cast<int64_t>(text.size()) - std::count_if(text.begin(), text.end(), continues_character);
}

// The four parallel lists of a completion's logprobs object, as comma-separated JSON.
struct LogprobLists {
  std::string tokens, logprobs, tops, offsets;

  void append_object(std::string& out) const {
    out.append("{\"tokens\":[").append(tokens).append("],\"token_logprobs\":[").append(logprobs);
    out.append("],\"top_logprobs\":[").append(tops).append("],\"text_offset\":[").append(offsets).append("]}");
  }
};

class CompletionChoice final : public StreamChoice {
 public:
  CompletionChoice(const ApiStreamOptions& options, const OutputVocabulary* vocabulary, int index)
      : StreamChoice(options, vocabulary, index),
        head_(fmt::format("data: {{{},\"choices\":[{{\"index\":{},\"text\":\"",
                          chat_identity(options, "text_completion"), index)),
        prefix_(options.completion_prefixes.empty()
                    ? std::string_view()
                    : options.completion_prefixes[static_cast<size_t>(index / options.n)]),
        offset_(characters(prefix_)) {}

  void write_prefix(std::string& out) {
    if (!prefix_.empty()) write_frame(prefix_, {}, "null", "null", out);
  }

  void write_closing(std::string_view usage, std::string& out) {
    std::string reason;
    append_json_string(reason, chat_finish_reason(reason_));
    write_frame({}, {}, reason, usage, out);
  }

  std::string whole() const {
    std::string out = fmt::format("{{\"index\":{},\"text\":\"", index_);
    append_json_escaped(out, prefix_);
    append_json_escaped(out, fold_.content);
    out += "\",\"logprobs\":";
    if (options_.logprobs) {
      all_.append_object(out);
    } else {
      out += "null";
    }
    append_member(out, "finish_reason", chat_finish_reason(reason_));
    out += '}';
    return out;
  }

 private:
  void on_call_begin(int, std::string_view) override {}
  void on_call_end(int, bool) override {}

  void on_logprob(const TokenLogprob& token, bool) override {
    const std::string_view bytes = vocabulary_->at(token.id).bytes;
    LogprobLists& lists = options_.stream ? step_ : all_;
    std::string text;
    append_json_string(text, printable(bytes));
    append_listed(lists.tokens, text);
    std::string number;
    append_logprob(number, token.logprob);
    append_listed(lists.logprobs, number);
    std::string top = "{";
    for (const TopLogprob& t : token.top) {
      if (top.size() > 1) top += ',';
      append_json_string(top, printable(vocabulary_->at(t.id).bytes));
      top += ':';
      append_logprob(top, t.logprob);
    }
    append_listed(lists.tops, top + "}");
    // A token inside a character has the character's offset.
    const bool inside = !bytes.empty() && continues_character(bytes[0]) && offset_ > 0;
    append_listed(lists.offsets, std::to_string(offset_ - (inside ? 1 : 0)));
    offset_ += characters(bytes);
  }

  void write_pending(std::string& out) override {
    std::string logprobs;
    if (!step_.tokens.empty()) step_.append_object(logprobs);
    write_frame(delta_, logprobs, "null", "null", out);
    step_ = {};
  }

  void write_frame(std::string_view text, std::string_view logprobs, std::string_view reason, std::string_view usage,
                   std::string& out) {
    out += head_;
    append_json_escaped(out, text);
    out.append("\",\"logprobs\":").append(logprobs.empty() ? "null" : logprobs);
    out.append(",\"finish_reason\":").append(reason).append("}],\"usage\":").append(usage).append("}\n\n");
  }

  const std::string head_;         // up to the text
  const std::string_view prefix_;  // of the options, which outlive this
  LogprobLists step_, all_;
  int64_t offset_;  // of the next token, in characters
};

class CompletionsStream final : public ChoicesStream {
 public:
  CompletionsStream(ApiStreamOptions options, const OutputVocabulary* vocabulary)
      : ChoicesStream(std::move(options), vocabulary) {
    for (int i = 0; i < options_.prompts * options_.n; ++i)
      choices_.push_back(std::make_unique<CompletionChoice>(options_, vocabulary, i));
  }

  void begin(const Usage& prompt, std::string& out) override {
    prompt_ = prompt;
    if (!options_.stream) return;
    for (const auto& choice : choices_) static_cast<CompletionChoice&>(*choice).write_prefix(out);
  }

  void add_prompt(const Usage& prompt) override {
    prompt_.prompt_tokens += prompt.prompt_tokens;
    prompt_.cached_tokens += prompt.cached_tokens;
  }

  std::string body() const override {
    if (error_) return error_object(*error_);
    std::string out = fmt::format("{{{},\"choices\":[", chat_identity(options_, "text_completion"));
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      out += static_cast<const CompletionChoice&>(*choices_[i]).whole();
    }
    out += "],\"usage\":";
    append_chat_usage(out, usage());
    out += '}';
    return out;
  }

 private:
  void write_finish(StreamChoice& choice, bool last, std::string& out) override {
    if (!options_.stream) return;
    std::string counts;
    append_chat_usage(counts, usage());
    const bool on_finish = last && options_.usage_chunk == UsageChunk::kFinal && !options_.include_usage;
    static_cast<CompletionChoice&>(choice).write_closing(on_finish ? std::string_view(counts) : "null", out);
    if (!last) return;
    if (options_.include_usage) {
      out.append("data: {").append(chat_identity(options_, "text_completion")).append(",\"choices\":[],\"usage\":");
      out.append(counts).append("}\n\n");
    }
    out += "data: [DONE]\n\n";
  }

  void write_failure(const StreamError& error, std::string& out) override {
    if (options_.stream) out.append("data: ").append(error_object(error)).append("\n\n");
  }

  static std::string error_object(const StreamError& error) {
    return error_body(Protocol::kCompletions, {error.status, error.message, "internal_error", "internal_error", ""});
  }
};

}  // namespace

std::unique_ptr<ApiStream> make_completions_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary) {
  return std::make_unique<CompletionsStream>(std::move(options), vocabulary);
}

}  // namespace deepinfer::recipe
