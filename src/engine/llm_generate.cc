#include <chrono>
#include <condition_variable>
#include <list>

#include "engine/llm_impl.h"
#include "recipe/constants.h"
#include "recipe/render.h"
#include "recipe/token_output.h"

namespace deepinfer {
namespace {

using namespace std::chrono_literals;

// What the parser of a chat's output finds.
class ChatSink : public recipe::OutputSink {
 public:
  explicit ChatSink(ChatAnswer& answer) : answer_(answer) {}
  void on_reasoning(std::string_view text, recipe::SourceRange) override { answer_.reasoning += text; }
  void on_content(std::string_view text, recipe::SourceRange) override { answer_.text += text; }
  void on_call_begin(int, std::string_view name) override {
    answer_.tool_calls.emplace_back();
    answer_.tool_calls.back().name = name;
  }
  void on_call_arguments(int, std::string_view json) override { answer_.tool_calls.back().arguments += json; }
  void on_call_end(int, bool) override {}

 private:
  ChatAnswer& answer_;
};

// Wakes the caller's thread when an answer has something new.
struct Wake {
  std::mutex mutex;
  std::condition_variable changed;
  bool events = false;

  void ring() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      events = true;
    }
    changed.notify_one();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, 100ms, [this] { return events; });
    events = false;
  }
};

// One prompt in work.
class Work {
 public:
  Work(Completion& out, engine::Request r, bool logits) : out_(out), request_(std::move(r)) {
    out_.answers.resize(static_cast<size_t>(std::max(request_.n, 1)));
    if (logits) {
      request_.on_logits = [this](int32_t sample, int32_t position, std::span<const float> row) {
        if (position < static_cast<int32_t>(out_.prompt_ids.size())) return;
        std::vector<float>& all = out_.answers[static_cast<size_t>(sample)].logits;
        all.insert(all.end(), row.begin(), row.end());
      };
    }
  }
  ~Work() {
    if (!stream_) return;
    stream_->cancel();
    for (engine::Event e; stream_->next(&e);) {  // the engine uses what this object holds until then
    }
  }

  void start(engine::Engine& engine, Wake& wake) {
    request_.prompt = out_.prompt_ids;
    Result<std::unique_ptr<engine::Stream>> stream = engine.submit(std::move(request_));
    if (!stream.ok()) return fail(stream.status());
    stream_ = std::move(stream).value();
    stream_->on_events([&wake] { wake.ring(); });
  }
  void fail(const Status& status) {
    for (Generation& g : out_.answers) g.error = status;
    done_ = true;
  }
  // True if anything came.
  bool read(GenerateProgress* progress) {
    bool any = false;
    for (engine::Event e; !done_ && stream_->try_next(&e); any = true) take(std::move(e), progress);
    done_ = done_ || stream_->done();
    if (done_ && stream_) out_.prompt_logprobs = stream_->prompt_logprobs();
    return any;
  }
  bool done() const { return done_; }

 private:
  void take(engine::Event&& e, GenerateProgress* progress) {
    Generation& g = out_.answers[static_cast<size_t>(e.sample)];
    g.text += e.text;
    if (e.token >= 0) {
      if (g.token_ids.empty() && e.sample == 0) progress->prompt_tokens += e.usage.prompt_tokens;
      g.token_ids.push_back(e.token);
      ++progress->output_tokens;
      if (e.has_logprob) {
        g.logprobs.push_back(e.logprob);
        g.top_logprobs.push_back(std::move(e.top));
      }
    }
    if (!e.finished) return;
    g.reason = e.reason;
    g.stop_text = std::move(e.stop_text);
    g.error = e.error;
    g.usage = e.usage;
  }

  Completion& out_;
  engine::Request request_;
  std::unique_ptr<engine::Stream> stream_;
  bool done_ = false;
};

const engine::Request& parameters_of(std::span<const engine::Request> parameters, size_t i) {
  return parameters[parameters.size() == 1 ? 0 : i];
}

// The end of thinking, tool calls and stop texts are the parser's, which knows what is answer and what is not.
void parse_chat(const recipe::Conversation& c, const engine::Request& r, const recipe::OutputVocabulary& vocabulary,
                Generation&& raw, ChatAnswer* out) {
  static_cast<Generation&>(*out) = std::move(raw);
  out->text.clear();
  recipe::ParserOptions parsing;
  parsing.markers = true;
  parsing.parse_tool_calls = c.has_tools();
  parsing.initial = c.thinking ? recipe::InitialStage::kReasoningStart : recipe::InitialStage::kContentStart;
  parsing.stop_sequences = r.stop;
  ChatSink sink(*out);
  recipe::TokenOutput output(parsing, &vocabulary, &sink, false);
  size_t used = 0;
  while (used < out->token_ids.size() && !output.stopped()) output.push_ids({&out->token_ids[used++], 1});
  output.finish(recipe::FinishReason::kStop);
  if (!output.stopped()) return;
  out->reason = engine::FinishReason::kStopText;
  out->stop_text = output.stop_sequence();
  out->token_ids.resize(used);
  if (out->logprobs.size() > used) out->logprobs.resize(used);
  if (out->top_logprobs.size() > used) out->top_logprobs.resize(used);
}

}  // namespace

Status LLM::Impl::check_parameters(std::span<const engine::Request> parameters, size_t prompts) const {
  if (parameters.size() != 1 && parameters.size() != prompts) {
    return make_error(Code::kInvalidArgument,
                      "There are {} sets of parameters for {} prompts; give one, or one a prompt.", parameters.size(),
                      prompts);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    engine::Request r = parameters[i];
    r.prompt = {0};
    const Status status = engine::check_request(r, engine->limits());
    if (status.ok()) continue;
    return parameters.size() == 1 ? status : status.with_context(fmt::format("Parameters {}", i));
  }
  return Status();
}

Result<std::vector<Completion>> LLM::generate(std::span<const PromptInput> prompts,
                                              std::span<const engine::Request> parameters,
                                              const GenerateControl& control) {
  DI_RETURN_IF_ERROR(impl_->check_parameters(parameters, prompts.size()));
  std::vector<Completion> out(prompts.size());
  Wake wake;  // outlives the work
  std::list<Work> works;
  GenerateProgress progress{.prompts = static_cast<int64_t>(prompts.size())};
  const size_t in_work_max = 4 * static_cast<size_t>(impl_->options.sequences);
  size_t next = 0;
  while (next < prompts.size() || !works.empty()) {
    if (control.stop != nullptr && control.stop->load()) return Status(Code::kCancelled, "Stopped.");
    for (; next < prompts.size() && works.size() < in_work_max; ++next) {
      Work& work = works.emplace_back(out[next], parameters_of(parameters, next), control.logits);
      Result<std::vector<int32_t>> ids =
          prompts[next].is_tokens ? Result<std::vector<int32_t>>(prompts[next].tokens) : tokenize(prompts[next].text);
      if (ids.ok()) {
        out[next].prompt_ids = std::move(ids).value();
        work.start(*impl_->engine, wake);
      } else {
        work.fail(ids.status());
      }
    }
    bool any = false;
    for (Work& w : works) any |= !w.done() && w.read(&progress);
    const auto ended = static_cast<int64_t>(std::erase_if(works, [](const Work& w) { return w.done(); }));
    progress.prompts_done += ended;
    any |= ended > 0;
    if (control.on_progress) control.on_progress(progress);
    if (!any) wake.wait();
  }
  return out;
}

Result<std::vector<Completion>> LLM::generate(std::initializer_list<PromptInput> prompts,
                                              const engine::Request& parameters, const GenerateControl& control) {
  return generate(std::span(prompts.begin(), prompts.size()), std::span(&parameters, 1), control);
}

Result<std::vector<ChatCompletion>> LLM::chat(std::span<const recipe::Conversation> conversations,
                                              std::span<const engine::Request> parameters,
                                              const GenerateControl& control) {
  DI_RETURN_IF_ERROR(impl_->make_encoder());
  DI_RETURN_IF_ERROR(impl_->check_parameters(parameters, conversations.size()));
  std::vector<PromptInput> prompts;
  std::vector<engine::Request> requests;
  for (size_t i = 0; i < conversations.size(); ++i) {
    DI_ASSIGN_OR_RETURN(recipe::EncodedPrompt encoded,
                        impl_->encoder->encode(recipe::render(conversations[i], recipe::Version::kV41)));
    prompts.emplace_back(std::move(encoded.ids));
    engine::Request& r = requests.emplace_back(parameters_of(parameters, i));
    r.stop.clear();
    r.text = false;
  }
  DI_ASSIGN_OR_RETURN(std::vector<Completion> done, generate(prompts, requests, control));
  std::vector<ChatCompletion> out(done.size());
  for (size_t i = 0; i < done.size(); ++i) {
    out[i].prompt_ids = std::move(done[i].prompt_ids);
    for (Generation& g : done[i].answers) {
      parse_chat(conversations[i], parameters_of(parameters, i), impl_->vocabulary, std::move(g),
                 &out[i].answers.emplace_back());
    }
  }
  return out;
}

Result<std::vector<ChatCompletion>> LLM::chat(std::initializer_list<recipe::Conversation> conversations,
                                              const engine::Request& parameters, const GenerateControl& control) {
  return chat(std::span(conversations.begin(), conversations.size()), std::span(&parameters, 1), control);
}

}  // namespace deepinfer
