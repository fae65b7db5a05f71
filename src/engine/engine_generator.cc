#include "engine/engine_generator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "checkpoint/checkpoint.h"
#include "engine/model_executor.h"

namespace deepinfer::engine {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kRowsMax = 256, kSpareBlocks = 2;

double seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

EndReason end_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kMaxTokens:
      return EndReason::kMaxTokens;
    case FinishReason::kContextFull:
    case FinishReason::kKvFull:
      return EndReason::kContextFull;
    case FinishReason::kCancelled:
      return EndReason::kCancelled;
    default:
      return EndReason::kStopToken;
  }
}

// Wakes a reader that also has something else to look at.
class Bell {
 public:
  void ring() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, 50ms, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

}  // namespace

Result<std::unique_ptr<EngineGenerator>> EngineGenerator::create(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::unique_ptr<ops::Ops> ops, int64_t context,
    uint64_t ram_bytes, const DraftOptions& drafts) {
  const auto blocks = static_cast<int>((context + kv::kBlockTokens - 1) / kv::kBlockTokens) + kSpareBlocks;
  DI_ASSIGN_OR_RETURN(
      std::unique_ptr<ModelExecutor> executor,
      ModelExecutor::create(
          std::move(checkpoint), std::move(ops),
          {.context_max = context, .sequences_max = 1, .rows_max = kRowsMax, .outputs_max = 1, .blocks = blocks,
           .drafts_max = drafts.mode == DraftMode::kOff ? 0 : drafts.drafts_max, .ram_bytes = ram_bytes}));
  EngineOptions options;
  options.keep_extra = ModelExecutor::kBacktrack;
  options.drafts = drafts;
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::create(std::move(executor), std::nullopt, options));
  return std::unique_ptr<EngineGenerator>(new EngineGenerator(std::move(engine)));
}

Result<GenerateResult> EngineGenerator::generate(const GenerateRequest& request, const Generator::Sink& sink,
                                                 const std::atomic<bool>* stop) {
  const int64_t context = engine_->info().context_max;
  DI_RETURN_IF_ERROR(check_prompt(request.prompt, context, engine_->info().vocab_size));
  Request r;
  r.prompt.assign(request.prompt.begin(), request.prompt.end());
  r.sampling = request.sampling;
  r.seed = request.seed;
  r.max_tokens = static_cast<int32_t>(std::min<int64_t>(request.max_tokens, std::numeric_limits<int32_t>::max()));
  r.stop_tokens = request.stop_tokens;
  r.text = false;
  r.full_prefill = request.prefill == Prefill::kFull;
  const Clock::time_point begin = Clock::now();
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine_->submit(std::move(r)));
  Bell bell;
  stream->on_events([&bell] { bell.ring(); });

  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  Clock::time_point first = begin, last = begin;
  bool open = true, cancelled = false;
  Status error;
  Event e;
  while (!stream->done()) {
    if (!stream->try_next(&e)) {
      bell.wait();
      cancelled = open && (cancelled || (stop != nullptr && stop->load(std::memory_order_relaxed)));
      if (cancelled) stream->cancel();
      continue;
    }
    if (e.token >= 0 && open && !cancelled) {
      last = Clock::now();
      if (++result.output_tokens == 1) first = last;
      if (!e.ends_answer && !sink(e.token)) {
        open = false;
        stream->cancel();
      }
      cancelled = open && stop != nullptr && stop->load(std::memory_order_relaxed);
      if (cancelled) stream->cancel();
    }
    if (!e.finished) continue;
    if (e.reason == FinishReason::kFailed) error = e.error;
    result.end = open ? end_reason(e.reason) : EndReason::kSink;
    result.cached_tokens = e.usage.cached_tokens;
  }
  stream->on_events(nullptr);
  DI_RETURN_IF_ERROR(error);
  if (cancelled) result.end = EndReason::kCancelled;
  if (result.output_tokens > 0) {
    result.prefill_s = seconds(begin, first);
    result.decode_s = seconds(first, last);
  }
  return result;
}

}  // namespace deepinfer::engine
