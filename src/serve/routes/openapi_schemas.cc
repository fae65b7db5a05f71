#include "serve/routes/openapi_schemas.h"

#include <algorithm>
#include <string>

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr std::string_view kSchemas = R"({
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
  "properties": {"prompt_tokens": {"type": "integer", "minimum": 0},
    "completion_tokens": {"type": "integer", "minimum": 0},
    "total_tokens": {"type": "integer", "minimum": 0},
    "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer", "minimum": 0}}},
    "completion_tokens_details": {"type": "object",
      "properties": {"reasoning_tokens": {"type": "integer", "minimum": 0}}},
    "prompt_cache_hit_tokens": {"type": "integer", "minimum": 0},
    "prompt_cache_miss_tokens": {"type": "integer", "minimum": 0}}},
"ToolCall": {"type": "object", "required": ["id", "type"],
  "properties": {"id": {"type": "string"}, "type": {"enum": ["function", "custom"]},
    "function": {"type": "object", "required": ["name", "arguments"],
      "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}},
    "custom": {"type": "object", "required": ["name", "input"],
      "properties": {"name": {"type": "string"}, "input": {"type": "string"}}}}},
"ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
  "properties": {"id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
    "model": {"type": "string"},
    "system_fingerprint": {"type": ["string", "null"]}, "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "minItems": 1,
      "items": {"type": "object", "required": ["index", "message", "finish_reason"],
      "properties": {"index": {"type": "integer", "minimum": 0}, "finish_reason": {"type": "string"},
        "logprobs": {"type": ["object", "null"]},
        "message": {"type": "object", "required": ["role", "content"],
          "properties": {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
          "reasoning_content": {"type": ["string", "null"]},
          "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}}}}}}},
"Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
  "properties": {"id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"},
    "model": {"type": "string"},
    "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "minItems": 1,
      "items": {"type": "object", "required": ["index", "text", "finish_reason"],
      "properties": {"index": {"type": "integer", "minimum": 0}, "text": {"type": "string"},
        "finish_reason": {"type": "string"}, "logprobs": {"type": ["object", "null"]}}}}}},
"Message": {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence",
  "usage"],
  "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
    "model": {"type": "string"},
    "content": {"type": "array", "items": {"type": "object", "required": ["type"],
      "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}}}},
    "stop_reason": {"type": ["string", "null"]}, "stop_sequence": {"type": ["string", "null"]},
    "usage": {"type": "object", "required": ["input_tokens", "output_tokens"],
      "properties": {"input_tokens": {"type": "integer", "minimum": 0},
        "output_tokens": {"type": "integer", "minimum": 0},
        "cache_read_input_tokens": {"type": "integer", "minimum": 0},
        "cache_creation_input_tokens": {"type": "integer", "minimum": 0}}}}},
"TokenCount": {"type": "object", "required": ["input_tokens"],
  "properties": {"input_tokens": {"type": "integer", "minimum": 0}}},
"Response": {"type": "object", "required": ["id", "object", "created_at", "status", "model", "output", "error",
  "incomplete_details"],
  "properties": {"id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
    "model": {"type": "string"},
    "status": {"enum": ["in_progress", "completed", "incomplete", "cancelled", "failed"]},
    "error": {"type": ["object", "null"]},
    "incomplete_details": {"type": ["object", "null"]}, "previous_response_id": {"type": ["string", "null"]},
    "output": {"type": "array", "items": {"type": "object", "required": ["type"],
      "properties": {"type": {"type": "string"}, "id": {"type": "string"}}}},
    "usage": {"type": ["object", "null"], "required": ["input_tokens", "output_tokens", "total_tokens"],
      "properties": {"input_tokens": {"type": "integer", "minimum": 0},
        "output_tokens": {"type": "integer", "minimum": 0}, "total_tokens": {"type": "integer", "minimum": 0}}}}},
"Deleted": {"type": "object", "required": ["id", "object", "deleted"],
  "properties": {"id": {"type": "string"}, "object": {"type": "string"}, "deleted": {"const": true}}},
"Item": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "type": {"type": "string"}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"],
  "properties": {"id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
    "owned_by": {"type": "string"}, "context_length": {"type": "integer"}}},
"File": {"type": "object", "required": ["id", "object", "bytes", "created_at", "filename", "purpose"],
  "properties": {"id": {"type": "string"}, "object": {"const": "file"}, "bytes": {"type": "integer", "minimum": 0},
    "created_at": {"type": "integer"},
    "filename": {"type": "string"}, "purpose": {"enum": ["batch", "batch_output"]}, "status": {"type": "string"}}},
"Batch": {"type": "object", "required": ["id", "object", "endpoint", "input_file_id", "completion_window", "status",
  "created_at", "request_counts"],
  "properties": {"id": {"type": "string"}, "object": {"const": "batch"}, "endpoint": {"type": "string"},
    "input_file_id": {"type": "string"},
    "status": {"enum": ["validating", "in_progress", "cancelling", "completed", "failed", "expired", "cancelled"]},
    "request_counts": {"type": "object", "required": ["total", "completed", "failed"],
      "properties": {"total": {"type": "integer"}, "completed": {"type": "integer"}, "failed": {"type": "integer"}}}}},
"ModelList": {"type": "object", "required": ["object", "data"],
  "properties": {"object": {"const": "list"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"MessagesModel": {"type": "object", "required": ["type", "id", "display_name", "created_at"],
  "properties": {"type": {"const": "model"}, "id": {"type": "string"}, "display_name": {"type": "string"},
    "created_at": {"type": "string"},
    "max_input_tokens": {"type": "integer"}}},
"MessagesModelList": {"type": "object", "required": ["data", "first_id", "last_id", "has_more"],
  "properties": {"first_id": {"type": "string"}, "last_id": {"type": "string"}, "has_more": {"type": "boolean"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/MessagesModel"}}}},
"FileList": {"type": "object", "required": ["object", "data", "has_more"],
  "properties": {"object": {"const": "list"}, "has_more": {"type": "boolean"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/File"}}}},
"BatchList": {"type": "object", "required": ["object", "data", "has_more"],
  "properties": {"object": {"const": "list"}, "has_more": {"type": "boolean"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Batch"}}}},
"ItemList": {"type": "object", "required": ["object", "data", "has_more", "first_id", "last_id"],
  "properties": {"object": {"const": "list"}, "has_more": {"type": "boolean"},
    "first_id": {"type": ["string", "null"]}, "last_id": {"type": ["string", "null"]},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"],
  "properties": {"count": {"type": "integer", "minimum": 0}, "max_model_len": {"type": "integer"},
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "offsets": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2,
      "maxItems": 2}}, "prompt": {"type": "string"}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
"Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
"Version": {"type": "object", "required": ["name", "version"],
  "properties": {"name": {"const": "deepinfer"}, "version": {"type": "string"}}},
"Document": {"type": "object", "required": ["openapi", "paths"]},
"TokenizeRequest": {"type": "object", "anyOf": [{"required": ["prompt"]}, {"required": ["text"]},
  {"required": ["messages", "model"]}],
  "properties": {"prompt": {"type": "string"}, "text": {"type": "string"},
    "return_offsets": {"type": ["boolean", "null"]},
    "messages": {"type": "array",
      "description": "the prompt that Chat Completions would give; its other fields may stand here too"}}},
"DetokenizeRequest": {"type": "object", "required": ["tokens"],
  "properties": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
"UploadRequest": {"type": "object", "required": ["file", "purpose"], "additionalProperties": false,
  "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}}},
"BatchRequest": {"type": "object", "required": ["input_file_id", "endpoint", "completion_window"],
  "additionalProperties": false,
  "properties": {"input_file_id": {"type": "string"}, "completion_window": {"enum": ["24h"]},
    "endpoint": {"enum": ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]},
    "metadata": {"type": ["object", "null"], "maxProperties": 16,
      "additionalProperties": {"type": "string", "maxLength": 512}}}}
})";

struct Answer {
  std::string_view method, path, schema;  // of a path that ends so
};

// The first that fits counts.
constexpr Answer kAnswers[] = {
    {"POST", "/chat/completions", "ChatCompletion"},
    {"POST", "/completions", "Completion"},
    {"POST", "/messages/count_tokens", "TokenCount"},
    {"POST", "/responses/input_tokens", "TokenCount"},
    {"POST", "/messages", "Message"},
    {"POST", "/responses", "Response"},
    {"POST", "/responses/{id}/cancel", "Response"},
    {"GET", "/responses/{id}/input_items", "ItemList"},
    {"GET", "/responses/{id}", "Response"},
    {"GET", "/anthropic/v1/models", "MessagesModelList"},
    {"GET", "/anthropic/v1/models/{model}", "MessagesModel"},
    {"GET", "/models", "ModelList"},
    {"GET", "/models/{model}", "Model"},
    {"POST", "/detokenize", "Text"},
    {"POST", "/tokenize", "Tokens"},
    {"POST", "/files", "File"},
    {"GET", "/files", "FileList"},
    {"GET", "/files/{id}", "File"},
    {"POST", "/batches", "Batch"},
    {"GET", "/batches", "BatchList"},
    {"GET", "/batches/{id}", "Batch"},
    {"POST", "/batches/{id}/cancel", "Batch"},
    {"GET", "/health", "Status"},
    {"GET", "/ready", "Status"},
    {"GET", "/version", "Version"},
    {"GET", "/openapi.json", "Document"},
    {"DELETE", "", "Deleted"},
};

}  // namespace

Json hand_written_schemas() {
  Result<Json> parsed = recipe::parse_json(kSchemas);
  return parsed.ok() ? std::move(parsed).value() : Json::object();
}

std::string_view answer_schema(std::string_view method, std::string_view path) {
  const auto at =
      std::ranges::find_if(kAnswers, [&](const Answer& a) { return a.method == method && path.ends_with(a.path); });
  return at == std::end(kAnswers) ? std::string_view() : at->schema;
}

std::string_view body_schema(std::string_view method, std::string_view path) {
  if (method != "POST") return {};
  if (path.ends_with("/detokenize")) return "DetokenizeRequest";
  if (path.ends_with("/tokenize")) return "TokenizeRequest";
  if (path == "/v1/files") return "UploadRequest";
  return path == "/v1/batches" ? "BatchRequest" : std::string_view();
}

Json body_example(std::string_view path, std::string_view model) {
  const auto parsed = [&](std::string text) {
    if (const size_t at = text.find("MODEL"); at != std::string::npos)
      text.replace(at, 5, recipe::to_compact_json(Json(model)));
    return recipe::parse_json(text).value();
  };
  constexpr std::string_view kMessages = R"("messages": [{"role": "user", "content": "Tell me a story."}])";
  if (path.ends_with("/chat/completions") || path.ends_with("/messages")) {
    return parsed(R"({"model": MODEL, "max_tokens": 8, )" + std::string(kMessages) + "}");
  }
  if (path.ends_with("/count_tokens")) return parsed(R"({"model": MODEL, )" + std::string(kMessages) + "}");
  if (path.ends_with("/input_tokens")) return parsed(R"({"model": MODEL, "input": "Tell me a story."})");
  if (path.ends_with("/completions"))
    return parsed(R"({"model": MODEL, "max_tokens": 8, "prompt": "Once upon a time"})");
  if (path.ends_with("/responses"))
    return parsed(R"({"model": MODEL, "max_output_tokens": 8, "input": "Tell me a story."})");
  if (path.ends_with("/detokenize")) return parsed(R"({"tokens": [72, 101]})");
  if (path.ends_with("/tokenize")) return parsed(R"({"prompt": "Hello", "return_offsets": true})");
  return {};
}

}  // namespace deepinfer::serve
