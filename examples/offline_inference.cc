// Answers several prompts at once, without a server:   build/release/examples/offline_inference [MODEL_DIR]
#include <cstdio>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "ops/cpu/cpu_ops.h"

using namespace deepinfer;

static Status run(const std::string& dir) {
  DI_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(dir));
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(dir + "/tokenizer.json"));
  DI_ASSIGN_OR_RETURN(auto executor, engine::ModelExecutor::create(checkpoint, ops::make_plain_ops(available_cores()),
                                                                   {.context_max = 2048, .sequences_max = 8}));
  engine::EngineOptions options;
  options.end_tokens = {static_cast<int32_t>(checkpoint->config().eos_token_id)};
  DI_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(std::move(executor), tokenizer, options));

  const char* prompts[] = {"The capital of France is", "Once upon a time", "One, two, three,"};
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (const char* prompt : prompts) {
    engine::Request request;
    request.prompt = tokenizer.encode(prompt);
    request.prompt.insert(request.prompt.begin(), static_cast<int32_t>(checkpoint->config().bos_token_id));
    request.sampling.temperature = 0.6;
    request.seed = 7;  // the same seed gives the same answer, in any company
    request.max_tokens = 32;
    DI_ASSIGN_OR_RETURN(auto stream, engine->submit(std::move(request)));
    streams.push_back(std::move(stream));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    std::printf("%s", prompts[i]);
    for (engine::Event e; streams[i]->next(&e);) {
      std::printf("%s", e.text.c_str());
      if (e.finished)
        std::printf("  [%s, %d tokens]\n", engine::finish_reason_name(e.reason).data(), e.usage.output_tokens);
    }
  }
  return Status();
}

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "models/tiny");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
