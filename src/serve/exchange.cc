#include "serve/exchange.h"

#include "recipe/request.h"

namespace deepinfer::serve {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string percent_decode(std::string_view text, bool query) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0;
    if (escape) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += query && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string Exchange::query_value(std::string_view name) const {
  std::string_view rest = query();
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (percent_decode(item.substr(0, equals), true) != name) continue;
    return equals == std::string_view::npos ? std::string() : percent_decode(item.substr(equals + 1), true);
  }
  return {};
}

void respond_error(Exchange& x, int status, std::string message, std::string_view type, std::string_view code,
                   std::string_view param, Headers headers) {
  recipe::ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = type;
  error.code = code.empty() ? type : code;
  error.param = param;
  const bool messages = x.protocol == recipe::Protocol::kMessages;
  x.respond({.status = messages && status == 503 ? 529 : status,
             .body = recipe::error_body(x.protocol, error, x.request_id),
             .headers = std::move(headers)});
}

}  // namespace deepinfer::serve
