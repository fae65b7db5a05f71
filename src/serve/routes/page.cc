// The chat page: files that are a part of the program.
#include "serve/page.h"

#include "serve/routes.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

// The page loads nothing from elsewhere and is framed by nobody.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

void send_file(Exchange& x, const PageFile& file) {
  Headers headers = {{"ETag", std::string(file.etag)},
                     {"Cache-Control", file.immutable ? "public, max-age=31536000, immutable" : "no-cache"},
                     {"Content-Security-Policy", std::string(kPolicy)},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"},
                     {"Vary", "Accept-Encoding"}};
  if (x.header("if-none-match").find(file.etag) != std::string_view::npos) {
    return x.respond({.status = 304, .content_type = {}, .headers = std::move(headers)});
  }
  const bool packed = !file.gzip.empty() && x.header("accept-encoding").find("gzip") != std::string_view::npos;
  if (packed) headers.emplace_back("Content-Encoding", "gzip");
  x.respond({.content_type = file.content_type,
             .body = std::string(packed ? file.gzip : file.plain),
             .headers = std::move(headers)});
}

}  // namespace

void add_page_routes(Router& router, Service&) {
  for (const PageFile& file : page_files()) {
    const auto handler = [&file](const std::shared_ptr<Exchange>& x) { send_file(*x, file); };
    router.add(
        {.method = "GET", .path = std::string(file.path), .access = Access::kOpen, .handler = handler, .name = "page"});
    if (file.path == "/index.html") {
      router.add({.method = "GET", .path = "/", .access = Access::kOpen, .handler = handler, .name = "page"});
    }
  }
  if (page_files().empty()) {
    router.add(
        {.method = "GET", .path = "/", .access = Access::kOpen, .handler = [](const std::shared_ptr<Exchange>& x) {
           x->respond({.content_type = kTextType,
                       .body = "DeepInfer. This program was built without its page; the API is at /v1.\n"});
         }});
  }
}

}  // namespace deepinfer::serve
