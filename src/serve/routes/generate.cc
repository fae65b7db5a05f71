// The endpoints that generate: Chat Completions, plain completions, Messages.
#include "serve/generation.h"
#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::Protocol;

struct Endpoint {
  const char* path;
  Protocol protocol;
  std::string_view id_prefix;
};

constexpr Endpoint kEndpoints[] = {
    {"/v1/chat/completions", Protocol::kChat, "chatcmpl-"},   {"/chat/completions", Protocol::kChat, "chatcmpl-"},
    {"/beta/chat/completions", Protocol::kChat, "chatcmpl-"}, {"/v1/completions", Protocol::kCompletions, "cmpl-"},
    {"/completions", Protocol::kCompletions, "cmpl-"},        {"/beta/completions", Protocol::kCompletions, "cmpl-"},
    {"/v1/messages", Protocol::kMessages, "msg_"},            {"/anthropic/v1/messages", Protocol::kMessages, "msg_"},
};

}  // namespace

void add_generation_routes(Router& router, Service& service) {
  for (const Endpoint& e : kEndpoints) {
    router.add({.method = "POST",
                .path = e.path,
                .protocol = e.protocol,
                .handler = [&service, &e](const std::shared_ptr<Exchange>& x) {
                  start_generation(service, x, {.protocol = e.protocol, .id_prefix = e.id_prefix});
                }});
  }
}

}  // namespace deepinfer::serve
