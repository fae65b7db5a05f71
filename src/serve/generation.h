// The life of one generation: body -> prepared request -> grammar -> engine -> events -> bytes to the client.
//
//   start_generation(service, exchange, {.protocol = Protocol::kChat});
//
// Everything but preparing large bodies and compiling grammars runs on the exchange's loop. The engine's thread only
// posts a note there. A client that leaves cancels the work; one that reads slowly pauses its own answer.
#pragma once

#include <functional>
#include <memory>

#include "serve/exchange.h"
#include "serve/prepare.h"

namespace deepinfer::serve {

class Service;

struct GenerationOptions {
  recipe::Protocol protocol = recipe::Protocol::kChat;
  std::string_view id_prefix = "chatcmpl-";
  // The request was read and its response has an id.
  std::function<void(const Prepared&, const std::shared_ptr<class GenerationControl>&)> started;
  // The end of what has started. `answer` holds the body (of whole responses, and of Responses always); null after a
  // failure before the first token.
  std::function<void(const Prepared&, const recipe::ApiStream* answer)> finished;
};

// What others can do to a generation, from any thread.
class GenerationControl {
 public:
  virtual ~GenerationControl() = default;
  // Ends the answer where it is; the client gets what there is.
  virtual void stop() = 0;
};

std::shared_ptr<GenerationControl> start_generation(Service& service, const std::shared_ptr<Exchange>& exchange,
                                                    GenerationOptions options);

// HTTP status and the API's type of an engine's or compiler's failure.
recipe::ApiError api_error(const Status& status);
void respond_api_error(Exchange& exchange, const recipe::ApiError& error);

}  // namespace deepinfer::serve
