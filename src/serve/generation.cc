#include "serve/generation.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "serve/image_check.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kInlineBodyBytes = 32 << 10;  // larger ones are parsed and tokenized by a worker

recipe::FinishReason api_reason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kMaxTokens: return recipe::FinishReason::kLength;
    case engine::FinishReason::kContextFull: return recipe::FinishReason::kContextFull;
    case engine::FinishReason::kKvFull: return recipe::FinishReason::kOutOfCapacity;
    case engine::FinishReason::kCancelled: return recipe::FinishReason::kCancelled;
    default: return recipe::FinishReason::kStop;
  }
}

double milliseconds(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

class Generation final : public GenerationControl, public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, std::shared_ptr<Exchange> exchange, GenerationOptions options)
      : service_(service), exchange_(std::move(exchange)), options_(std::move(options)) {
    ++service_.generations;
  }
  ~Generation() override { service_.generations -= prompts_; }

  void start() {
    exchange_->on_gone = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->cancel();
    };
    if (too_many()) return;
    if (exchange_->body().size() <= kInlineBodyBytes && !may_read_disk()) {
      prepare_error_ = prepare(service_, options_.protocol, exchange_->body(), exchange_->key_name, prepared_);
      return prepared();
    }
    const bool queued = service_.workers.submit([self = shared_from_this()] {
      self->guard_worker([&] {
        self->prepare_error_ = prepare(self->service_, self->options_.protocol, self->exchange_->body(),
                                       self->exchange_->key_name, self->prepared_);
      });
      self->exchange_->loop().post([self] { self->guard([&] { self->prepared(); }); });
    });
    if (!queued)
      fail({.status = 503,
            .message = "Too many large requests are waiting. Try again later.",
            .type = "server_error",
            .code = "overloaded"});
  }

  void stop() override {
    exchange_->loop().post([self = shared_from_this()] {
      self->guard([&] {
        if (self->over_) return;
        for (const auto& stream : self->streams_) stream->cancel();
      });
    });
  }

 private:
  bool too_many() {
    if (service_.generations <= service_.config.limits->requests_max) return false;
    service_.metrics.limit_hit("requests_max");
    fail({.status = 503,
          .message = fmt::format("{} generations are in work or waiting, which is requests_max. Try again later.",
                                 service_.config.limits->requests_max),
          .type = "server_error",
          .code = "overloaded"});
    return true;
  }

  bool never_fits() {
    const int requests_max = service_.config.limits->requests_max;
    if (prompts_ <= requests_max) return false;
    service_.metrics.limit_hit("requests_max");
    fail({.status = 400,
          .message = fmt::format("The request has {} prompts, more than requests_max = {} of this server.", prompts_,
                                 requests_max),
          .param = "prompt"});
    return true;
  }

  // A stored response may have to be fetched first.
  bool may_read_disk() const {
    return options_.protocol == recipe::Protocol::kResponses && service_.responses.persistent() &&
           exchange_->body().find("previous_response_id") != std::string::npos;
  }

  // The client is gone.
  void cancel() {
    if (over_) return;
    over_ = true;
    images_.reset();
    job_.reset();
    streams_.clear();  // cancels
    exchange_->figures.finish = "cancelled";
    if (begun_ && started_) {
      for (size_t i = 0; i < ended_.size(); ++i) {
        if (ended_[i] == 0) answer_->finish(static_cast<int>(i), recipe::FinishReason::kCancelled, unused_);
      }
    }
    notify_finished(begun_);
    exchange_->abort();
  }

  void notify_finished(bool has_body) {
    if (begun_) exchange_->figures.output_s = std::chrono::duration<double>(last_token_ - first_token_).count();
    if (std::exchange(started_, false) && options_.finished)
      options_.finished(prepared_, has_body ? answer_.get() : nullptr);
  }

  // A failure in here ends this generation only.
  template <class F>
  void guard(F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      fail({.status = 500,
            .message = fmt::format("The service failed: {}.", e.what()),
            .type = "internal_error",
            .code = "internal_error"});
    }
  }
  template <class F>
  void guard_worker(F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      prepare_error_ = recipe::ApiError{.status = 500,
                                        .message = fmt::format("The service failed: {}.", e.what()),
                                        .type = "internal_error",
                                        .code = "internal_error"};
    }
  }

  void prepared() {
    if (over_) return;
    if (prepare_error_) return fail(*prepare_error_);
    exchange_->body() = std::string();
    prompts_ += static_cast<int>(prepared_.others.size());
    service_.generations += prompts_ - 1;
    if (prompts_ > 1 && (never_fits() || too_many())) return;
    exchange_->figures.rule = prepared_.request.rule;
    if (!prepared_.request.rule.empty())
      exchange_->extra_headers.emplace_back("x-deepinfer-rule", prepared_.request.rule);
    if (!prepared_.images.empty()) return check_images();
    const auto tenant = service_.find_tenant(prepared_.scope);
    if (tenant) {
      prepared_.engine.tenant = *tenant;
      return compile();
    }
    const bool queued = service_.workers.submit([self = shared_from_this()] {
      Result<int32_t> added = self->service_.resolve_tenant(self->prepared_.scope);
      // Beyond the number of namespaces a user's requests share nothing, not even with themselves.
      self->prepared_.engine.cache = added.ok();
      self->prepared_.engine.tenant = added.ok() ? added.value() : 0;
      self->exchange_->loop().post([self] { self->guard([&] { self->compile(); }); });
    });
    if (!queued)
      fail({.status = 503,
            .message = "Too many requests are waiting. Try again later.",
            .type = "server_error",
            .code = "overloaded"});
  }

  void check_images() {
    images_ = serve::check_images(
        service_, exchange_->loop(), std::move(prepared_.images),
        [self = shared_from_this()](const recipe::ApiError& error) { self->guard([&] { self->fail(error); }); });
    if (!images_) fail(too_many_images());
  }

  void compile() {
    if (over_) return;
    if (!prepared_.constraint) return submit();
    auto job = service_.compiler->submit(*prepared_.constraint, [self = shared_from_this(), &loop = exchange_->loop()] {
      loop.post([self] { self->guard([&] { self->compiled(); }); });
    });
    if (!job.ok()) return fail(api_error(job.status()));
    job_ = std::move(job).value();
  }

  void compiled() {
    if (over_ || !job_) return;
    Result<std::shared_ptr<grammar::Compiled>> result = job_->result();
    job_.reset();
    if (!result.ok()) {
      recipe::ApiError error = api_error(result.status());
      if (error.status == 400) {
        const bool regex = prepared_.constraint->kind == grammar::ConstraintKind::kRegex;
        error.message = (regex ? "Invalid regex: " : "Invalid json schema: ") + error.message;
      }
      return fail(error);
    }
    prepared_.engine.grammar = std::move(result).value();
    submit();
  }

  void submit() {
    if (over_) return;
    prepared_.answer.id = service_.ids.next(options_.id_prefix);
    n_ = prepared_.engine.n;
    choices_open_ = prompts_ * n_;
    ended_.assign(static_cast<size_t>(choices_open_), 0);
    prompt_begun_.assign(static_cast<size_t>(prompts_), 0);
    Result<std::unique_ptr<recipe::ApiStream>> answer =
        recipe::ApiStream::create(prepared_.answer, &service_.vocabulary);
    if (!answer.ok()) return fail(api_error(answer.status()));
    answer_ = std::move(answer).value();
    started_ = true;
    if (options_.started) options_.started(prepared_, shared_from_this());
    submitted_ = Clock::now();
    prepared_.engine.priority = exchange_->priority;
    if (!submit_prompts()) return;
    exchange_->on_writable = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->guard([&] { self->pump(); });
    };
    exchange_->on_quiet = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->guard([&] { self->show_life(); });
    };
    // Keeps the generation alive until the streams are gone.
    for (const auto& stream : streams_) {
      stream->on_events([self = shared_from_this(), &loop = exchange_->loop()] {
        if (self->noted_.exchange(true)) return;
        loop.post([self] {
          self->noted_ = false;
          self->guard([&] { self->pump(); });
        });
      });
    }
  }

  bool submit_prompts() {
    std::vector<int32_t> first = std::move(prepared_.engine.prompt);
    prepared_.engine.prompt.clear();
    for (int i = 0; i < prompts_; ++i) {
      engine::Request request = prepared_.engine;
      if (i == 0) {
        request.prompt = std::move(first);
      } else {
        Prepared::Prompt& other = prepared_.others[static_cast<size_t>(i) - 1];
        request.prompt = std::move(other.ids);
        request.max_tokens = other.max_tokens;
      }
      Result<std::unique_ptr<engine::Stream>> stream = service_.backend->submit(std::move(request));
      if (stream.status().code() == Code::kResourceExhausted) service_.metrics.limit_hit("waiting_max");
      if (!stream.ok()) {
        fail(api_error(stream.status()));
        return false;
      }
      streams_.push_back(std::move(stream).value());
    }
    return true;
  }

  void pump() {
    if (over_ || streams_.empty()) return;
    const size_t unsent_max = service_.config.limits->unsent_bytes_max;
    engine::Event event;
    for (int prompt = 0; prompt < prompts_; ++prompt) {
      engine::Stream& stream = *streams_[static_cast<size_t>(prompt)];
      while (exchange_->unsent() <= unsent_max && stream.try_next(&event)) {
        take(prompt, event);
        if (over_) return;
      }
    }
    if (choices_open_ == 0) return finish();
    if (exchange_->begun()) exchange_->flush();
  }

  std::string& out() { return prepared_.request.stream && exchange_->begun() ? exchange_->stream_out() : unused_; }

  void begin(int prompt, const engine::Event& e) {
    prompt_begun_[static_cast<size_t>(prompt)] = 1;
    exchange_->figures.prompt_tokens += e.usage.prompt_tokens;
    exchange_->figures.cached_tokens += e.usage.cached_tokens;
    const recipe::Usage usage{.prompt_tokens = e.usage.prompt_tokens, .cached_tokens = e.usage.cached_tokens};
    if (begun_) return answer_->add_prompt(usage);
    begun_ = true;
    exchange_->figures.first_token_s = e.usage.first_token_s;
    first_token_ = Clock::now();
    if (prepared_.request.stream && !exchange_->begun()) exchange_->begin_stream(stream_head());
    answer_->begin(usage, out());
  }

  Response stream_head() const {
    return {.content_type = kEventStream, .headers = {{"Cache-Control", "no-cache"}, {"Server-Timing", timing(false)}}};
  }

  std::string timing(bool total) const {
    std::string text = fmt::format("prepare;dur={:.3f}", milliseconds(submitted_ - received_));
    if (begun_) text += fmt::format(", first;dur={:.3f}", milliseconds(first_token_ - submitted_));
    if (total) text += fmt::format(", total;dur={:.3f}", milliseconds(Clock::now() - received_));
    return text;
  }

  void take(int prompt, const engine::Event& e) {
    const int choice = prompt * n_ + e.sample;
    const auto at = static_cast<size_t>(choice);
    if (e.finished && !e.error.ok() && ended_[at] == 0) return fail(api_error(e.error));
    if (e.finished && e.reason == engine::FinishReason::kTimeout) {
      service_.metrics.limit_hit("request_timeout_s");
      return fail({.status = 504,
                   .message = "The answer was not complete within request_timeout_s.",
                   .type = "server_error",
                   .code = "timeout"});
    }
    if (prompt_begun_[static_cast<size_t>(prompt)] == 0) begin(prompt, e);
    if (e.token >= 0 && ended_[at] == 0) push(prompt, choice, e);
    if (!e.finished || ended_[at] != 0) return;
    end_choice(choice, api_reason(e.reason));
  }

  void push(int prompt, int choice, const engine::Event& e) {
    ++exchange_->figures.output_tokens;
    last_token_ = Clock::now();
    if (e.has_logprob) {
      top_.clear();
      for (const engine::TokenLogprob& t : e.top) top_.push_back({t.token, t.logprob});
      const recipe::TokenLogprob token{.id = e.token, .logprob = e.logprob.logprob, .top = top_};
      answer_->push(choice, {&token, 1}, out());
    } else {
      answer_->push_ids(choice, {&e.token, 1}, out());
    }
    if (!answer_->stopped(choice)) return;
    end_choice(choice, recipe::FinishReason::kStop);
    const auto choices = std::span(ended_).subspan(static_cast<size_t>(prompt * n_), static_cast<size_t>(n_));
    if (std::ranges::find(choices, 0) == choices.end()) streams_[static_cast<size_t>(prompt)]->cancel();
  }

  void end_choice(int choice, recipe::FinishReason reason) {
    ended_[static_cast<size_t>(choice)] = 1;
    --choices_open_;
    answer_->finish(choice, reason, out());
    exchange_->figures.finish = recipe::finish_reason_name(reason);
  }

  void finish() {
    over_ = true;
    const auto self = shared_from_this();
    streams_.clear();
    notify_finished(true);
    if (prepared_.request.stream) return exchange_->end_stream();
    std::string body = answer_->body();
    if (!exchange_->begun()) {
      return exchange_->respond(
          {.status = answer_->http_status(), .body = std::move(body), .headers = {{"Server-Timing", timing(true)}}});
    }
    exchange_->stream_out() += body;
    exchange_->end_stream();
  }

  // Nothing to send yet: an empty line before a whole body, a comment in a stream (spec/protocol.md 14.2).
  void show_life() {
    if (over_) return;
    if (prepared_.request.stream) {
      if (!exchange_->begun()) exchange_->begin_stream(stream_head());
      exchange_->stream_out() += ": keep-alive\n\n";
    } else {
      if (!exchange_->begun()) exchange_->begin_stream({.headers = {{"Server-Timing", timing(false)}}});
      exchange_->stream_out() += "\n";
    }
    exchange_->flush();
  }

  void fail(const recipe::ApiError& error) {
    if (over_) return;
    over_ = true;
    const auto self = shared_from_this();
    images_.reset();
    job_.reset();
    streams_.clear();
    exchange_->figures.finish = "error";
    if (begun_) exchange_->figures.output_s = std::chrono::duration<double>(last_token_ - first_token_).count();
    if (!exchange_->begun()) {
      notify_finished(false);
      return respond_api_error(*exchange_, error);
    }
    if (prepared_.request.stream) {
      answer_->fail({.status = error.status, .message = error.message}, exchange_->stream_out());
    } else {
      exchange_->stream_out() += recipe::error_body(options_.protocol, error, exchange_->request_id);
    }
    notify_finished(prepared_.request.stream);
    exchange_->end_stream();
  }

  Service& service_;
  const std::shared_ptr<Exchange> exchange_;
  const GenerationOptions options_;
  const Clock::time_point received_ = Clock::now();
  Clock::time_point submitted_ = received_, first_token_ = received_, last_token_ = received_;
  Prepared prepared_;
  std::optional<recipe::ApiError> prepare_error_;
  std::unique_ptr<ImageCheck> images_;
  std::unique_ptr<grammar::CompileJob> job_;
  std::vector<std::unique_ptr<engine::Stream>> streams_;  // by prompt
  std::unique_ptr<recipe::ApiStream> answer_;
  std::vector<recipe::TopLogprob> top_;
  std::vector<uint8_t> prompt_begun_, ended_;  // by prompt; by choice, n_ of each prompt
  int prompts_ = 1, n_ = 1, choices_open_ = 0;
  bool started_ = false, begun_ = false, over_ = false;
  std::atomic<bool> noted_{false};  // a note for the loop is on its way
  std::string unused_;              // frames of a whole answer: there are none
};

}  // namespace

recipe::ApiError api_error(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kFailedPrecondition:
    case Code::kNotFound:
      return {.status = 400, .message = status.message()};
    case Code::kResourceExhausted:
    case Code::kUnavailable:
    case Code::kCancelled:
      return {.status = 503, .message = status.message(), .type = "server_error", .code = "overloaded"};
    case Code::kDeadlineExceeded:
      return {.status = 504, .message = status.message(), .type = "server_error", .code = "timeout"};
    default:
      return {.status = 500, .message = status.message(), .type = "internal_error", .code = "internal_error"};
  }
}

void respond_api_error(Exchange& x, const recipe::ApiError& error) {
  Headers headers;
  if (error.status == 503 || error.status == 429) headers.emplace_back("Retry-After", "1");
  respond_error(x, error.status, error.message, error.type, error.code, error.param, std::move(headers));
}

std::shared_ptr<GenerationControl> start_generation(Service& service, const std::shared_ptr<Exchange>& exchange,
                                                    GenerationOptions options) {
  const auto generation = std::make_shared<Generation>(service, exchange, std::move(options));
  generation->start();
  return generation;
}

}  // namespace deepinfer::serve
