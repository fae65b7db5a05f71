// Tools, tool choice and images: the parts of request_reader.h that refuse most.
#include <algorithm>
#include <set>

#include "recipe/constants.h"
#include "recipe/request_reader.h"
#include "recipe/schema_check.h"

namespace deepinfer::recipe {
namespace {

constexpr size_t kToolNameMax = 128;
constexpr std::string_view kUnsupportedFormat =
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
    "formats: webp, "
    "png, jpeg, and gif.";

bool is_image_type(std::string_view type) {
  return type == "image/png" || type == "image/jpeg" || type == "image/jpg" || type == "image/gif" ||
         type == "image/webp";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

}  // namespace

bool RequestReader::check_tool_name(std::string_view name, const Path& name_at) {
  const std::string head = fmt::format("Invalid '{}': ", name_at.to_string());
  if (name.empty()) {
    return fail(name_at,
                head + "empty string. Expected a string with minimum length 1, but got an empty string instead.");
  }
  const bool fits = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!fits) {
    return fail(name_at,
                head + "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.");
  }
  if (name.size() > kToolNameMax) {
    return fail(
        name_at,
        head + fmt::format("string too long. Expected a string with maximum length {}, but got a string with length {} "
                           "instead.",
                           kToolNameMax, name.size()));
  }
  return true;
}

bool RequestReader::read_function(Json& function, const Path& at, std::string_view schema_key, Tool& out) {
  if (!expect_object(function, at) || !read(function, at, "name", out.name, true)) return false;
  if (!check_tool_name(out.name, at / "name") || !read(function, at, "description", out.description) ||
      !read(function, at, "strict", out.strict) || !read(function, at, "defer_loading", out.defer_loading)) {
    return false;
  }
  Json* parameters = function.find(schema_key);
  const bool given = is_set(parameters);
  if (given) out.parameters = *parameters;
  return finish_parameters(out, given, at / schema_key);
}

// Checks the schema and completes it for strict tools.
bool RequestReader::finish_parameters(Tool& tool, bool given, const Path& at) {
  if (given) {
    const std::string head = fmt::format("Invalid schema for function '{}': ", tool.name);
    const Json* type = tool.parameters.find("type");
    if (!tool.parameters.is_object() && !tool.parameters.is_bool()) {
      return fail(at, head + fmt::format("schema must be a JSON Schema of 'type: \"object\"', got {}.",
                                         tool.parameters.kind_name()));
    }
    // Strict tools have their own wording for this.
    const bool object = type != nullptr && type->is_string() && type->as_string() == "object";
    if (!object && !tool.strict.value_or(false)) {
      return fail(at, head + fmt::format("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.",
                                         type == nullptr ? "null" : to_compact_json(*type)));
    }
    if (to_compact_json(tool.parameters).size() > options_.limits.schema_bytes_max) {
      return over_limit(at, "schema_bytes_max", options_.limits.schema_bytes_max);
    }
    if (const auto fault = check_schema(tool.parameters)) return fail(at, head + *fault);
  }
  if (!tool.strict.value_or(false)) return true;
  if (!given) {
    tool.parameters.set("type", "object");
    tool.parameters.set("properties", Json::object());
  }
  if (const auto fault = complete_strict(tool.parameters, SchemaUse::kTool)) return fail(at, *fault);
  return true;
}

// A custom tool is a function with the one string `input` (spec 9.8). Chat nests the grammar, Responses does not.
bool RequestReader::read_custom(Json& custom, const Path& at, bool nested_grammar, Tool& out) {
  if (!expect_object(custom, at) || !read(custom, at, "name", out.name, true) ||
      !check_tool_name(out.name, at / "name"))
    return false;
  out.custom = true;
  if (!nested_grammar && out.name == "apply_patch") {
    std::string text(kApplyPatchDescription);
    // V4's copy of the text lacks one blank line.
    if (out_.version == Version::kV4) text.erase(text.find("\n\n*** Begin Patch"), 1);
    out.description = std::move(text);
    out.parameters = parse_json(kApplyPatchParameters).value();
    return true;
  }
  if (!read(custom, at, "description", out.description)) return false;
  Json property = Json::object();
  property.set("type", "string");
  Json properties = Json::object();
  properties.set("input", std::move(property));
  out.parameters.set("type", "object");
  out.parameters.set("properties", std::move(properties));
  out.parameters.set("required", JsonArray{Json("input")});
  out.parameters.set("additionalProperties", false);
  const Json* format = custom.find("format");
  if (!is_set(format)) return true;
  const Path format_at = at / "format";
  std::string type;
  if (!read_type(*format, format_at, type)) return false;
  if (type == "text") return true;
  if (type != "grammar") return unknown_value(format_at / "type", type, "text or grammar");
  const Path grammar_at = nested_grammar ? format_at / "grammar" : format_at;
  const Json* grammar = nested_grammar ? format->find("grammar") : format;
  if (!is_set(grammar)) return missing(format_at, "grammar");
  std::string syntax;
  if (!expect_object(*grammar, grammar_at) || !read(*grammar, grammar_at, "syntax", syntax, true) ||
      !read(*grammar, grammar_at, "definition", out.definition, true)) {
    return false;
  }
  if (syntax != "lark" && syntax != "regex") return unknown_value(grammar_at / "syntax", syntax, "lark or regex");
  if (out.definition.size() > options_.limits.schema_bytes_max) {
    return over_limit(grammar_at / "definition", "schema_bytes_max", options_.limits.schema_bytes_max);
  }
  out.syntax = syntax == "lark" ? CustomSyntax::kLark : CustomSyntax::kRegex;
  out.description = fmt::format("{}\n\nThe input must match this {} grammar:\n{}", out.description.value_or(""), syntax,
                                out.definition);
  return true;
}

bool RequestReader::check_unique_tools(const Path& at) {
  if (out_.conversation.tools.size() > options_.limits.tools_max)
    return over_limit(at, "tools_max", options_.limits.tools_max);
  std::set<std::string_view> names;
  for (const Tool& tool : out_.conversation.tools) {
    if (!names.insert(tool.name).second) return fail(at, "Tool names must be unique.");
  }
  return true;
}

bool RequestReader::count_announced(const Tool& tool, const Path& at) {
  announced_bytes_ += sizeof(Tool) + tool.description.value_or("").size() + to_compact_json(tool.parameters).size();
  return announced_bytes_ <= options_.limits.announced_tools_bytes_max ||
         over_limit(at, "announced_tools_bytes_max", options_.limits.announced_tools_bytes_max);
}

bool RequestReader::apply_tool_choice(ToolChoice choice, std::string_view named, const Path& at) {
  Conversation& c = out_.conversation;
  tools_declared_ = !c.tools.empty();
  if (c.tools.empty()) named = {};  // without tools no choice has an effect
  if (!named.empty()) {
    const auto found = std::find_if(c.tools.begin(), c.tools.end(), [&](const Tool& t) { return t.name == named; });
    if (found == c.tools.end()) {
      return fail(
          at,
          fmt::format("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.",
                      clip(named, 200)));
    }
    std::vector<Tool> only;
    only.push_back(std::move(*found));
    c.tools = std::move(only);
    choice = ToolChoice::kRequired;
  }
  if (choice == ToolChoice::kNone) c.tools.clear();
  if (choice == ToolChoice::kRequired && c.tools.empty()) choice = ToolChoice::kAuto;
  if (choice == ToolChoice::kRequired && c.thinking) {
    if (!options_.allow_forced_tool_with_thinking) return fail(at, "Thinking mode does not support this tool_choice");
    out_.force_call_after_thinking = true;
    choice = ToolChoice::kAuto;
  }
  c.tool_choice = choice;
  return true;
}

bool RequestReader::add_image(Content& content, Image image, const Path& at) {
  if (++images_ > options_.limits.images_max) return over_limit(at, "images_max", options_.limits.images_max);
  if (out_.version == Version::kV4) {
    content.text += kUnsupportedImage;
    return true;
  }
  image.offset = content.text.size();
  image.path = at.to_string();
  content.images.push_back(std::move(image));
  return true;
}

bool RequestReader::check_base64(std::string_view data, size_t& decoded_bytes) const {
  size_t padding = 0;
  while (!data.empty() && data.back() == '=' && padding < 2) {
    data.remove_suffix(1);
    ++padding;
  }
  const bool fine = !data.empty() && data.size() % 4 != 1 && std::all_of(data.begin(), data.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
  });
  decoded_bytes = data.size() * 3 / 4;
  return fine;
}

bool RequestReader::add_image_data(Content& content, std::string_view media_type, std::string_view data,
                                   const Path& at) {
  size_t bytes = 0;
  if (!check_base64(data, bytes)) return fail(at, at.to_string() + ": base64 decode error");
  if (bytes > options_.limits.image_bytes_max)
    return over_limit(at, "image_bytes_max", options_.limits.image_bytes_max);
  inline_image_bytes_ += bytes;
  if (inline_image_bytes_ > options_.limits.inline_image_bytes_max) {
    return over_limit(at, "inline_image_bytes_max", options_.limits.inline_image_bytes_max);
  }
  return add_image(content, {.source = fmt::format("data:{};base64,{}", media_type, data), .is_data_url = true}, at);
}

bool RequestReader::add_image_url(Content& content, std::string url, const std::optional<std::string>& detail,
                                  const Path& at, std::string_view field) {
  Image image;
  if (detail) {
    static constexpr std::string_view kDetails[] = {"low", "high", "original", "auto"};
    const auto found = std::find(std::begin(kDetails), std::end(kDetails), *detail);
    if (found == std::end(kDetails)) return unknown_value(at, *detail, "a detail of low, high, original or auto");
    image.detail = static_cast<ImageDetail>(found - std::begin(kDetails));
  }
  const std::string scheme = lower(std::string_view(url).substr(0, 8));
  if (scheme.starts_with("data:")) {
    const size_t comma = url.find(',');
    const size_t type_end = url.find_first_of(";,");
    const std::string type =
        lower(std::string_view(url).substr(5, type_end == std::string::npos ? type_end : type_end - 5));
    if (!is_image_type(type)) return fail(at, fmt::format("{}: {}", at.to_string(), kUnsupportedFormat));
    if (comma == std::string::npos || !std::string_view(url).substr(0, comma).ends_with(";base64")) {
      return fail(at, fmt::format("{}: Unsupported image_url format", at.to_string()));
    }
    const size_t bytes = (url.size() - comma) * 3 / 4;
    if (bytes > options_.limits.image_bytes_max)
      return over_limit(at, "image_bytes_max", options_.limits.image_bytes_max);
    inline_image_bytes_ += bytes;
    if (inline_image_bytes_ > options_.limits.inline_image_bytes_max) {
      return over_limit(at, "inline_image_bytes_max", options_.limits.inline_image_bytes_max);
    }
    image.is_data_url = true;
  } else if (scheme.starts_with("http://") || scheme.starts_with("https://")) {
    if (url.size() > options_.limits.image_url_bytes_max) {
      return fail(
          at, fmt::format(
                  "{}: {} external link length {} too long, max link length {}. Consider passing file data directly "
                  "with base64 data url instead.",
                  at.to_string(), field, url.size(), options_.limits.image_url_bytes_max));
    }
  } else {
    return fail(at, fmt::format("{}: Unsupported image_url format", at.to_string()));
  }
  image.source = std::move(url);
  return add_image(content, std::move(image), at);
}

}  // namespace deepinfer::recipe
