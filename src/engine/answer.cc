#include "engine/answer.h"

#include <algorithm>

#include "engine/speculation.h"

namespace deepinfer::engine {

class Answer::Text : public recipe::OutputSink {
 public:
  void on_reasoning(std::string_view text, recipe::SourceRange) override { pending += text; }
  void on_content(std::string_view text, recipe::SourceRange) override { pending += text; }
  void on_call_begin(int, std::string_view) override {}
  void on_call_arguments(int, std::string_view) override {}
  void on_call_end(int, bool) override {}

  std::string pending;
};

Answer::Answer(Live& l, int i, int vocab_size, const recipe::OutputVocabulary* vocabulary) : live(l), index(i) {
  const Request& r = live.request;
  usage.prompt_tokens = static_cast<int32_t>(r.prompt.size());
  if (r.sampling.has_penalties()) {
    history_.emplace(vocab_size);
    history_->reserve(r.prompt.size() + static_cast<size_t>(r.max_tokens > 0 ? r.max_tokens : vocab_size));
    history_->add_prompt(r.prompt);
  }
  if (r.grammar) {
    matcher_.emplace(r.grammar);
    mask_.resize((static_cast<size_t>(vocab_size) + 31) / 32);
  }
  if (!r.grammar_after.empty()) trigger_.emplace(r.grammar_after, r.grammar_bound);
  if (trigger_ && !r.before_grammar_banned.empty()) {
    before_grammar_ = live.end_tokens;
    before_grammar_.insert(before_grammar_.end(), r.before_grammar_banned.begin(), r.before_grammar_banned.end());
  }
  if (vocabulary == nullptr) return;
  recipe::ParserOptions options;
  options.initial = recipe::InitialStage::kContent;
  options.markers = true;
  options.plain = true;
  options.stop_sequences = r.stop;
  text_ = std::make_unique<Text>();
  output_ = std::make_unique<recipe::TokenOutput>(options, vocabulary, text_.get(), false);
}

Answer::~Answer() = default;

void Answer::prepare() {
  if (constrained()) fill_mask();
}

void Answer::fill_mask() {
  std::ranges::fill(mask_, 0);
  mask_status_ =
      matcher_->fill_mask(std::span<uint32_t>(mask_).first(live.request.grammar->vocabulary().mask_words()));
  for (size_t i = 0; i < live.allowed.size(); ++i) mask_[i] &= live.allowed[i];
}

Result<int32_t> Answer::sample(ops::Sampler& sampler, std::span<const float> logits, int32_t position) {
  const Request& r = live.request;
  if (constrained()) DI_RETURN_IF_ERROR(mask_status_);
  ops::SampleRow row{.logits = logits,
                     .params = &r.sampling,
                     .place = {live.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(index)},
                     .history = history_ ? &*history_ : nullptr,
                     .allowed = constrained() ? mask_ : live.allowed};
  if (output_tokens() + static_cast<int32_t>(drafted_.size()) < r.min_tokens) row.forbidden = live.end_tokens;
  if (!before_grammar_.empty() && !constrained()) row.forbidden = before_grammar_;
  const bool plain = r.sampling.greedy() && r.sampling.logit_bias.empty() && !history_ && row.allowed.empty() &&
                     row.forbidden.empty() && !r.processed_logprobs;
  int32_t token = plain ? ops::Sampler::likeliest(logits) : sampler.sample(row);
  // A grammar that is complete leaves nothing but the end: it goes before min_tokens.
  if (token < 0 && constrained() && !row.forbidden.empty()) {
    row.forbidden = {};
    token = sampler.sample(row);
  }
  if (token >= 0) return token;
  if (constrained() || !live.allowed.empty()) {
    return Status(Code::kFailedPrecondition, "No token is left that the grammar and allowed_tokens permit.");
  }
  return Status(Code::kDataLoss,
                "The model gave no finite logit. Its weights may be damaged; try --backend reference.");
}

Result<int32_t> Answer::draw(ops::Sampler& sampler, std::span<const float> logits, int32_t position) {
  const Request& r = live.request;
  const auto drawn = static_cast<size_t>(output_tokens());
  int32_t token = drawn < r.forced_tokens.size() ? r.forced_tokens[drawn] : -1;
  if (token < 0 && trigger_) token = trigger_->forced();
  if (token < 0 || r.processed_logprobs) {
    DI_ASSIGN_OR_RETURN(const int32_t sampled, sample(sampler, logits, position));
    if (token < 0) token = sampled;
    if (r.processed_logprobs) {
      processed_logprobs(sampler, r.sampling.greedy(), token, r.top_logprobs, &processed, &processed_top);
    }
  }
  return token;
}

Status Answer::advance(int32_t token) {
  DI_RETURN_IF_ERROR(match(token));
  if (history_) history_->add_output(token);
  if (trigger_) trigger_->take(token);
  ++advanced_;
  if (constrained()) fill_mask();
  return Status();
}

// The drafts of a round are taken by the history and the matcher one by one, and taken back at its end.
void Answer::begin_drafts(int32_t last_token) {
  drafted_.clear();
  matched_ = 0;
  drafts_fit_ = push_draft(last_token);
}

bool Answer::push_draft(int32_t token) {
  if (constrained()) {
    if (!matcher_->accept(static_cast<uint32_t>(token))) return false;
    ++matched_;
  }
  if (history_) history_->add_output(token);
  drafted_.push_back(token);
  return true;
}

int32_t Answer::draw_draft(ops::Sampler& sampler, std::span<const float> logits, int32_t position) {
  if (!drafts_fit_) return -1;
  if (constrained()) {
    if (matcher_->is_ended()) return -1;
    fill_mask();
  }
  const Result<int32_t> token = sample(sampler, logits, position);
  if (!token.ok()) return -1;
  drafts_fit_ = push_draft(token.value());
  return token.value();
}

void Answer::end_drafts() {
  if (matched_ > 0) matcher_->rollback(static_cast<size_t>(matched_));
  if (history_) {
    for (auto token = drafted_.rbegin(); token != drafted_.rend(); ++token) history_->pop_output(*token);
  }
  drafted_.clear();
  matched_ = 0;
}

Status Answer::accept(int32_t token) { return advanced_ > 0 ? Status() : match(token); }

Status Answer::match(int32_t token) {
  if (!constrained() || matcher_->accept(static_cast<uint32_t>(token))) return Status();
  DI_RETURN_IF_ERROR(matcher_->status());
  return make_error(Code::kInvalidArgument, "forced_tokens[{}] = {} does not fit the grammar.", output_tokens(),
                    token);
}

bool Answer::ends_with(int32_t token) const {
  return std::ranges::find(live.end_tokens, token) != live.end_tokens.end() || (matcher_ && matcher_->is_ended());
}

bool Answer::draws_likeliest() const {
  const Request& r = live.request;
  return r.sampling.greedy() && r.sampling.logit_bias.empty() && !history_ && !matcher_ && live.allowed.empty() &&
         before_grammar_.empty() && r.min_tokens == 0;
}

bool Answer::take(int32_t token, Event* event) {
  ++usage.output_tokens;
  event->token = token;
  if (advanced_ > 0) {
    --advanced_;
  } else {
    if (history_) history_->add_output(token);
    if (trigger_) trigger_->take(token);
  }
  if (advanced_ == 0 && ends_with(token)) {  // the matcher stands behind the last token that was drawn
    event->ends_answer = true;
    reason_ = FinishReason::kStopToken;
    return true;
  }
  if (!output_) return false;
  output_->push_ids({&token, 1});
  event->text.swap(text_->pending);
  text_->pending.clear();
  if (!output_->stopped()) return false;
  reason_ = FinishReason::kStopText;
  return true;
}

std::string Answer::finish_text() {
  if (!output_) return {};
  output_->finish(recipe::FinishReason::kStop);
  return std::move(text_->pending);
}

}  // namespace deepinfer::engine
