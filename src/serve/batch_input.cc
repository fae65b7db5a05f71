#include "serve/batch_input.h"

#include <algorithm>
#include <unordered_set>

#include "recipe/json.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr size_t kCustomIdBytesMax = 512;

struct LineFault {
  std::string_view code;
  std::string message;
};

bool is_text(const Json* value, std::string_view text) {
  return value != nullptr && value->is_string() && value->as_string() == text;
}

// Fills custom_id and body; a fault has no code if there is none.
LineFault read_line(std::string_view text, std::string_view endpoint, const BatchLimits& limits, BatchLine& line) {
  if (text.size() > limits.batch_line_bytes_max) {
    return {"line_too_long", fmt::format("The line has {} bytes; batch_line_bytes_max is {}.", text.size(),
                                         limits.batch_line_bytes_max)};
  }
  const Result<Json> parsed = recipe::parse_json(text);
  if (!parsed.ok()) return {"invalid_json_line", "The line is no JSON: " + parsed.status().message()};
  const Json& all = parsed.value();
  if (!all.is_object()) return {"invalid_json_line", "The line is no JSON object."};
  const Json* custom_id = all.find("custom_id");
  if (custom_id == nullptr || !custom_id->is_string() || custom_id->as_string().empty() ||
      custom_id->as_string().size() > kCustomIdBytesMax) {
    return {"invalid_custom_id", fmt::format("custom_id must be a text of 1 to {} bytes.", kCustomIdBytesMax)};
  }
  line.custom_id = custom_id->as_string();
  if (!is_text(all.find("method"), "POST")) return {"invalid_method", "method must be \"POST\"."};
  if (!is_text(all.find("url"), endpoint))
    return {"invalid_url", fmt::format("url must be the batch's endpoint, \"{}\".", endpoint)};
  const Json* body = all.find("body");
  if (body == nullptr || !body->is_object()) return {"invalid_body", "body must be an object, the request."};
  if (const Json* stream = body->find("stream"); stream != nullptr && stream->is_bool() && stream->as_bool()) {
    return {"invalid_body", "A request of a batch cannot ask for a stream; leave stream out."};
  }
  line.body = recipe::to_python_json(*body, true);
  return {};
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

}  // namespace

std::string failed_line(std::string_view id, std::string_view custom_id, std::string_view code,
                        std::string_view message) {
  Json error = Json::object(), line = Json::object();
  error.set("code", code);
  error.set("message", message);
  line.set("id", id);
  line.set("custom_id", custom_id.empty() ? Json() : Json(custom_id));
  line.set("response", Json());
  line.set("error", std::move(error));
  return recipe::to_compact_json(line);
}

std::string batch_errors(std::string_view code, std::string_view message, std::string_view param) {
  Json error = Json::object();
  error.set("code", code);
  error.set("message", message);
  error.set("param", param);
  error.set("line", Json());
  return recipe::to_compact_json(recipe::JsonArray{std::move(error)});
}

std::string read_batch_input(std::string_view content, std::string_view endpoint, const BatchLimits& limits,
                             IdSource& ids, std::vector<BatchLine>& lines) {
  std::unordered_set<std::string> seen;
  int64_t number = 0;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\n', at), content.size());
    const std::string_view text = trimmed(content.substr(at, end - at));
    at = end + 1;
    ++number;
    if (text.empty()) continue;
    if (static_cast<int64_t>(lines.size()) == limits.batch_lines_max) {
      return batch_errors("too_many_lines",
                          fmt::format("The input has more lines than batch_lines_max, {}.", limits.batch_lines_max),
                          "input_file_id");
    }
    BatchLine line;
    line.number = number;
    LineFault fault = read_line(text, endpoint, limits, line);
    if (fault.code.empty() && !seen.insert(line.custom_id).second) {
      fault = {"duplicate_custom_id", "An earlier line has the same custom_id."};
    }
    if (!fault.code.empty()) {
      line.state = LineState::kFailed;
      line.body.clear();
      line.result = failed_line(ids.next("batch_req_"), line.custom_id, fault.code,
                                fmt::format("Line {}: {}", number, fault.message));
    }
    lines.push_back(std::move(line));
  }
  return lines.empty() ? batch_errors("empty_file", "The input file has no line.", "input_file_id") : std::string();
}

}  // namespace deepinfer::serve
