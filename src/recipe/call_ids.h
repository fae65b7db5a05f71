// Ids of tool calls (spec/protocol.md 9.4): "call_NN_" or, for a call made in thinking mode after an empty thought and
// no text, "call_NN_ET_", then 24 letters and digits. NN is the call's number in the response.
//
//   call_id("chatcmpl-1", /*choice=*/0, /*call=*/2, /*empty_thought=*/false)   // "call_02_5ZpG..."
//
// The letters are a hash of the response id, the choice and the number, so that a replayed response has the same ids.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::recipe {

std::string call_id(std::string_view response_id, int choice, int call, bool empty_thought);

}  // namespace deepinfer::recipe
