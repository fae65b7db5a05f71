#include "recipe/logprobs.h"

#include <charconv>
#include <cmath>

#include "recipe/json.h"
#include "recipe/utf8_gate.h"

namespace deepinfer::recipe {
namespace {

void append_token(std::string& out, std::string_view bytes, double logprob) {
  out += "{\"token\":\"";
  append_json_escaped(out, printable(bytes));
  out += "\",\"logprob\":";
  append_logprob(out, logprob);
  out += ",\"bytes\":[";
  char buffer[4];
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, static_cast<unsigned char>(bytes[i])).ptr;
    out.append(buffer, end);
  }
  out += ']';
}

}  // namespace

std::string printable(std::string_view bytes) {
  Utf8Gate gate;
  std::string text(gate.push(bytes));
  text += gate.break_off();
  return text;
}

void append_logprob(std::string& out, double logprob) {
  if (!std::isfinite(logprob)) logprob = -9999.0;
  char buffer[32];
  const auto narrow = static_cast<float>(logprob);
  const auto end = narrow == logprob ? std::to_chars(buffer, buffer + sizeof buffer, narrow).ptr
                                     : std::to_chars(buffer, buffer + sizeof buffer, logprob).ptr;
  std::string_view digits(buffer, end - buffer);
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_logprob_entry(std::string& out, const OutputVocabulary& vocabulary, const TokenLogprob& token) {
  append_token(out, vocabulary.at(token.id).bytes, token.logprob);
  out += ",\"top_logprobs\":[";
  bool first = true;
  for (const TopLogprob& top : token.top) {
    if (!first) out += ',';
    first = false;
    append_token(out, vocabulary.at(top.id).bytes, top.logprob);
    out += '}';
  }
  out += "]}";
}

}  // namespace deepinfer::recipe
