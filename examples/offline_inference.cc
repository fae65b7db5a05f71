// Answers several prompts at once, without a server:   build/release/examples/offline_inference [MODEL_DIR]
#include <cstdio>
#include <string>

#include "engine/llm.h"

using namespace deepinfer;

static Status run(const std::string& model) {
  DI_ASSIGN_OR_RETURN(const auto llm, LLM::open({.model = model, .context = 2048}));

  const std::vector<PromptInput> prompts = {"The capital of France is", "Once upon a time", "One, two, three,"};
  engine::Request parameters{.sampling = {.temperature = 0.6}, .seed = 7, .max_tokens = 32};
  DI_ASSIGN_OR_RETURN(const auto completions, llm->generate(prompts, std::span(&parameters, 1)));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Generation& answer = completions[i].answers[0];
    std::printf("%s%s  [%s, %d tokens]\n", prompts[i].text.c_str(), answer.text.c_str(),
                engine::finish_reason_name(answer.reason).data(), answer.usage.output_tokens);
  }

  recipe::Conversation conversation;
  conversation.thinking = false;
  conversation.messages.push_back({.role = recipe::Role::kUser, .content = {.text = "Say hello."}});
  DI_ASSIGN_OR_RETURN(const auto chats, llm->chat({conversation}, parameters));
  std::printf("Say hello. -> %s\n", chats[0].answers[0].text.c_str());
  return Status();
}

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "models/tiny");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
