// Folds event streams and whole bodies of each API into one printable form, as a client would: text, reasoning, calls,
// how it ended, usage.
#pragma once

#include <string>
#include <string_view>

#include "recipe/conversation.h"

namespace deepinfer::recipe::test {

// Also checks the order of events: what it finds wrong becomes part of the result.
std::string fold(Protocol protocol, std::string_view frames);
std::string fold_body(Protocol protocol, std::string_view body);

// False where the specification lets stream and body differ (8.6): a repeated key in a call, a Messages input that is
// no JSON object, and a failed message.
bool comparable(Protocol protocol, std::string_view frames);

}  // namespace deepinfer::recipe::test
