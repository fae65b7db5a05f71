// The chat page's files, which the build puts into the program (tools/embed_files.py).
#pragma once

#include <span>
#include <string_view>

namespace deepinfer::serve {

struct PageFile {
  std::string_view path;  // "/index.html"
  std::string_view content_type;
  std::string_view etag;  // with its quotes
  std::string_view plain, gzip;  // gzip is empty where it would not be smaller
  bool immutable;  // the name holds a digest of the content
};

// Ascending by path; empty if the program was built without the page.
std::span<const PageFile> page_files();

}  // namespace deepinfer::serve
