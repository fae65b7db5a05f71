#include "app/run/session.h"

#include "recipe/constants.h"
#include "recipe/output_vocabulary.h"
#include "recipe/render.h"
#include "recipe/token_output.h"
#include "recipe/tokenize.h"
#include "text/utf8.h"

namespace deepinfer::app {
namespace {

// Collects what the parser finds and passes it on.
class Collector : public recipe::OutputSink {
 public:
  Collector(Answer& answer, AnswerSink& sink) : answer_(answer), sink_(sink) {}

  void on_reasoning(std::string_view text, recipe::SourceRange) override {
    answer_.reasoning += text;
    open_ = open_ && sink_.on_reasoning(text);
  }
  void on_content(std::string_view text, recipe::SourceRange) override {
    answer_.content += text;
    open_ = open_ && sink_.on_content(text);
  }
  void on_call_begin(int, std::string_view) override {}  // no tools are offered, so that calls are not looked for
  void on_call_arguments(int, std::string_view) override {}
  void on_call_end(int, bool) override {}

  bool open() const { return open_; }

 private:
  Answer& answer_;
  AnswerSink& sink_;
  bool open_ = true;
};

recipe::FinishReason finish_reason(engine::EndReason end) {
  switch (end) {
    case engine::EndReason::kMaxTokens:
      return recipe::FinishReason::kLength;
    case engine::EndReason::kContextFull:
      return recipe::FinishReason::kContextFull;
    default:
      return recipe::FinishReason::kStop;
  }
}

int64_t default_max_tokens(const recipe::Conversation& c) {
  if (!c.thinking) return recipe::kMaxTokensDefaultOff;
  return c.effort == recipe::Effort::kMax ? recipe::kMaxTokensDefaultMaxEffort : recipe::kMaxTokensDefaultThinking;
}

}  // namespace

Status check_utf8(std::string_view text, std::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Step step = text::read_utf8(text.substr(at));
    if (step.head != text::Utf8Head::kCharacter) {
      return make_error(
          Code::kInvalidArgument,
          "{} is not valid UTF-8: byte {} (0x{:02x}) does not belong to a character. Convert it to UTF-8 first.", what,
          at + 1, static_cast<unsigned char>(text[at]));
    }
    at += step.length;
  }
  return Status();
}

struct Session::Impl {
  text::Tokenizer tokenizer;
  recipe::OutputVocabulary vocabulary;
  std::unique_ptr<recipe::PromptEncoder> encoder;  // made by the first chat: raw text needs no chat tokens
  SessionSettings settings;
  engine::EngineGenerator& generator;

  Impl(engine::EngineGenerator& g, text::Tokenizer t, SessionSettings s)
      : tokenizer(std::move(t)), vocabulary(tokenizer), settings(std::move(s)), generator(g) {}

  Status make_encoder() {
    if (encoder) return Status();
    DI_ASSIGN_OR_RETURN(recipe::SpecialIds specials, recipe::SpecialIds::find(tokenizer, recipe::Version::kV41));
    encoder = std::make_unique<recipe::PromptEncoder>(tokenizer, specials, recipe::PromptEncoder::Options());
    return Status();
  }

  Result<Answer> run(std::span<const int32_t> ids, recipe::ParserOptions parsing, int64_t max_tokens, AnswerSink& sink,
                     const std::atomic<bool>* stop) {
    parsing.markers = true;
    parsing.stop_sequences = settings.stop;
    DI_RETURN_IF_ERROR(parsing.check());
    Answer answer;
    Collector collector(answer, sink);
    recipe::TokenOutput output(parsing, &vocabulary, &collector, false);
    const auto on_token = [&](int32_t token) {
      output.push_ids({&token, 1});
      return collector.open() && !output.stopped();
    };
    const engine::GenerateRequest request{.prompt = ids,
                                          .sampling = settings.sampling,
                                          .seed = settings.seed,
                                          .max_tokens = max_tokens,
                                          .stop_tokens = settings.stop_tokens,
                                          .prefill = settings.prefill};
    DI_ASSIGN_OR_RETURN(answer.figures, generator.generate(request, on_token, stop));
    answer.cancelled = answer.figures.end == engine::EndReason::kCancelled;
    answer.in_reasoning = output.in_reasoning();
    answer.finish = output.finish(finish_reason(answer.figures.end));
    answer.reasoning_tokens = output.reasoning_tokens().value_or(0);
    return answer;
  }
};

Session::Session(engine::EngineGenerator& generator, text::Tokenizer tokenizer, SessionSettings settings)
    : impl_(std::make_unique<Impl>(generator, std::move(tokenizer), std::move(settings))) {}
Session::~Session() = default;

SessionSettings& Session::settings() { return impl_->settings; }

Result<Answer> Session::chat(const recipe::Conversation& conversation, AnswerSink& sink,
                             const std::atomic<bool>* stop) {
  for (const recipe::Message& m : conversation.messages) {
    DI_RETURN_IF_ERROR(check_utf8(m.content.text, m.role == recipe::Role::kSystem ? "The system text" : "The prompt"));
    if (m.role == recipe::Role::kUser && m.content.text.empty()) {
      return Status(Code::kInvalidArgument, "The prompt is empty.");
    }
  }
  DI_RETURN_IF_ERROR(impl_->make_encoder());
  DI_ASSIGN_OR_RETURN(const recipe::EncodedPrompt encoded,
                      impl_->encoder->encode(recipe::render(conversation, recipe::Version::kV41)));
  recipe::ParserOptions parsing;
  parsing.initial = conversation.thinking ? recipe::InitialStage::kReasoningStart : recipe::InitialStage::kContentStart;
  const int64_t max_tokens =
      impl_->settings.max_tokens > 0 ? impl_->settings.max_tokens : default_max_tokens(conversation);
  return impl_->run(encoded.ids, parsing, max_tokens, sink, stop);
}

Result<Answer> Session::complete(const std::string& text, AnswerSink& sink, const std::atomic<bool>* stop) {
  DI_RETURN_IF_ERROR(check_utf8(text, "The prompt"));
  if (text.empty()) return Status(Code::kInvalidArgument, "The prompt is empty.");
  const std::string_view bos = recipe::special_text(recipe::SpecialToken::kBos);
  const std::optional<text::TokenId> bos_id = impl_->tokenizer.find_added(bos);
  std::vector<int32_t> ids = impl_->tokenizer.encode(text, text::AddedTokens::kRecognise);
  if (bos_id && !text.starts_with(bos)) ids.insert(ids.begin(), *bos_id);
  recipe::ParserOptions parsing;
  parsing.initial = recipe::InitialStage::kContent;
  parsing.plain = true;
  return impl_->run(ids, parsing, impl_->settings.max_tokens, sink, stop);
}

}  // namespace deepinfer::app
