// The input file of a batch -> its lines.
//
//   std::vector<BatchLine> lines;
//   if (std::string errors = read_batch_input(content, "/v1/chat/completions", limits, ids, lines); !errors.empty())
//   ...
//
// A line is {"custom_id": text, "method": "POST", "url": the batch's endpoint, "body": request}; empty lines are left
// out. What is wrong with one line becomes that line's error (its state is kFailed, its result is there). What is wrong
// with all of it (no line, too many) is returned as the JSON list of the batch's errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/ids.h"
#include "serve/state_store.h"

namespace deepinfer::serve {

inline constexpr std::string_view kBatchEndpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                                       "/v1/messages"};

std::string read_batch_input(std::string_view content, std::string_view endpoint, const BatchLimits& limits,
                             IdSource& ids, std::vector<BatchLine>& lines);

// A line of the error file for a request that was not carried out.
std::string failed_line(std::string_view id, std::string_view custom_id, std::string_view code,
                        std::string_view message);

// A JSON list with one error of a whole batch.
std::string batch_errors(std::string_view code, std::string_view message, std::string_view param);

}  // namespace deepinfer::serve
