#include "serve/multipart.h"

#include <algorithm>

namespace deepinfer::serve {
namespace {

constexpr size_t kBoundaryBytesMax = 70;

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// A value up to ';': a token, or a text in quotes with backslash escapes. `rest` then begins behind it.
std::string take_value(std::string_view& rest) {
  std::string value;
  if (!rest.starts_with('"')) {
    const size_t end = std::min(rest.find(';'), rest.size());
    value = trimmed(rest.substr(0, end));
    rest.remove_prefix(end);
    return value;
  }
  size_t i = 1;
  for (; i < rest.size() && rest[i] != '"'; ++i) {
    if (rest[i] == '\\' && i + 1 < rest.size()) ++i;
    value += rest[i];
  }
  rest.remove_prefix(std::min(rest.size(), i + 1));
  return value;
}

// The parameter of a header's value, such as boundary in "multipart/form-data; boundary=x"; empty if absent.
std::string parameter(std::string_view header, std::string_view name) {
  std::string_view rest = header.substr(std::min(header.find(';'), header.size()));
  while (rest.starts_with(';')) {
    rest.remove_prefix(1);
    const size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return {};
    const std::string_view key = trimmed(rest.substr(0, equals));
    rest.remove_prefix(equals + 1);
    std::string value = take_value(rest);
    if (same_letters(key, name)) return value;
    rest.remove_prefix(std::min(rest.find(';'), rest.size()));
  }
  return {};
}

Status malformed(std::string_view what) {
  return make_error(Code::kInvalidArgument, "The form cannot be read: {}.", what);
}

Result<FormPart> read_part(std::string_view text) {
  const size_t split = text.starts_with("\r\n") ? 0 : text.find("\r\n\r\n");
  if (split == std::string_view::npos) return malformed("a part has no end of its headers");
  FormPart part;
  part.content = text.substr(split + (split == 0 ? 2 : 4));
  std::string_view headers = text.substr(0, split);
  while (!headers.empty()) {
    const std::string_view line = headers.substr(0, headers.find("\r\n"));
    headers.remove_prefix(std::min(headers.size(), line.size() + 2));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !same_letters(trimmed(line.substr(0, colon)), "content-disposition"))
      continue;
    part.name = parameter(line.substr(colon + 1), "name");
    part.filename = parameter(line.substr(colon + 1), "filename");
  }
  if (part.name.empty()) return malformed("a part has no name");
  return part;
}

}  // namespace

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body) {
  if (!same_letters(trimmed(content_type.substr(0, content_type.find(';'))), "multipart/form-data")) {
    return Status(Code::kInvalidArgument, "Send the file as multipart/form-data, with the fields purpose and file.");
  }
  const std::string boundary = parameter(content_type, "boundary");
  if (boundary.empty() || boundary.size() > kBoundaryBytesMax)
    return malformed("its content type needs a boundary of 1 to 70 bytes");
  const std::string first = "--" + boundary, next = "\r\n" + first;
  if (!body.starts_with(first)) return malformed("it does not begin with its boundary");
  std::vector<FormPart> parts;
  for (std::string_view rest = body.substr(first.size()); !rest.starts_with("--");) {
    if (!rest.starts_with("\r\n")) return malformed("a boundary is not at the end of its line");
    rest.remove_prefix(2);
    const size_t end = rest.find(next);
    if (end == std::string_view::npos) return malformed("it ends before its last boundary");
    if (parts.size() == kFormPartsMax)
      return make_error(Code::kResourceExhausted, "The form has more than {} parts.", kFormPartsMax);
    DI_ASSIGN_OR_RETURN(FormPart part, read_part(rest.substr(0, end)));
    parts.push_back(std::move(part));
    rest.remove_prefix(end + next.size());
  }
  return parts;
}

}  // namespace deepinfer::serve
