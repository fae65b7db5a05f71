#include "grammar/json_schema_model.h"

#include "grammar/discard.h"
#include "grammar/json_schema_reader.h"

namespace deepinfer::grammar {

void append_pointer(std::string_view token, std::string& out) {
  out += '/';
  for (char c : token) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
}

std::string SchemaModel::path(SchemaId id) const {
  std::vector<const std::string*> steps;
  for (SchemaId n = id; n != kNoNode; n = node(n).parent) steps.push_back(&node(n).step);
  std::string out = "#";
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) out += **it;
  return out;
}

Result<SchemaModel> SchemaModel::parse(std::string_view text, const SchemaLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return make_error(Code::kResourceExhausted, "the JSON Schema has {} bytes; the limit is {}", text.size(),
                      limits.bytes_max);
  }
  auto document = JsonDocument::parse(text, {limits.bytes_max, limits.depth_max});
  if (!document.ok()) return document.status().with_context("JSON Schema");
  SchemaModel model(std::move(document).value());
  Status read = SchemaReader(model, model.document_->root(), limits).run();
  if (!read.ok()) {
    discard(std::make_shared<SchemaModel>(std::move(model)));
    return read;
  }
  return model;
}

}  // namespace deepinfer::grammar
