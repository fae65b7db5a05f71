// multipart/form-data bodies (RFC 7578): the parts of a form, as views into the body.
//
//   DI_ASSIGN_OR_RETURN(auto parts, parse_multipart(x.header("content-type"), x.body()));
//   for (const FormPart& p : parts) if (p.name == "file") use(p.filename, p.content);
//
// kInvalidArgument for another type, no boundary, a part without a name, or a body that ends before its last boundary;
// kResourceExhausted for more than kFormPartsMax parts. Never copies a content.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::serve {

inline constexpr size_t kFormPartsMax = 64;

struct FormPart {
  std::string name, filename;
  std::string_view content;
};

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body);

}  // namespace deepinfer::serve
