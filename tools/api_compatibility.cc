// Prints docs/api-compatibility.md from the table of request fields.
#include <cstdio>
#include <string>

#include "recipe/request_fields.h"

int main() {
  const std::string page = deepinfer::recipe::api_compatibility_markdown();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
