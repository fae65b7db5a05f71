// Judges texts and samples outputs for grammar_differential.py. One JSON object a line on standard input:
//   {"schema": TEXT, "texts": [TEXT...], "samples": N, "seed": N}   or   {"regex": TEXT, ...}
// and one on standard output: {"refused": MESSAGE} or {"validator": [...], "any_order": [...], "in_order": [...],
// "samples": [...]}; for a regex "accepted" and "samples". The verdicts are 0 and 1; a grammar that was refused has a
// message in their place.
#include <iostream>
#include <random>

#include <fmt/format.h>

#include "grammar/constraint.h"
#include "grammar/json_validate.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::grammar;

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(text, out);
  return out;
}

class Judge {
 public:
  explicit Judge(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  std::string run(const JsonValue& request) {
    if (const JsonValue* regex = request.find("regex")) {
      auto compiled = compile({ConstraintKind::kRegex, std::string(regex->text())});
      if (!compiled.ok()) return fmt::format(R"({{"refused": {}}})", quoted(compiled.status().message()));
      return fmt::format(R"({{"accepted": {}, "samples": {}}})", verdicts(compiled, request),
                         samples(compiled, request));
    }
    const std::string schema(request.find("schema")->text());
    auto model = SchemaModel::parse(schema);
    if (!model.ok()) return fmt::format(R"({{"refused": {}}})", quoted(model.status().message()));
    JsonValidator validator(std::make_shared<const SchemaModel>(std::move(model).value()));
    if (Status s = validator.prepare(); !s.ok()) return fmt::format(R"({{"refused": {}}})", quoted(s.message()));
    std::string valid;
    const JsonValue& texts = *request.find("texts");
    for (uint32_t i = 0; i < texts.size(); ++i) {
      auto document = JsonDocument::parse(texts[i].text());
      valid += fmt::format("{}{}", i ? ", " : "", document.ok() && validator.is_valid(document.value().root()) ? 1 : 0);
    }
    auto in_order = compile({ConstraintKind::kJsonSchema, schema}),
         any_order = compile({ConstraintKind::kJsonSchema, schema, true});
    return fmt::format(R"({{"validator": [{}], "any_order": {}, "in_order": {}, "samples": {}}})", valid,
                       verdicts(any_order, request), verdicts(in_order, request), samples(in_order, request));
  }

 private:
  Result<std::shared_ptr<Compiled>> compile(const Constraint& constraint) {
    Limits limits;
    limits.compile_ms = 0;  // verdicts must not depend on the machine
    return compile_constraint(constraint, vocabulary_, limits);
  }

  static std::string verdicts(const Result<std::shared_ptr<Compiled>>& compiled, const JsonValue& request) {
    if (!compiled.ok()) return quoted(compiled.status().message());
    std::string out;
    const JsonValue& texts = *request.find("texts");
    for (uint32_t i = 0; i < texts.size(); ++i) {
      Matcher m(compiled.value());
      out += fmt::format("{}{}", i ? ", " : "", m.accept_bytes(texts[i].text()) && m.is_complete() ? 1 : 0);
    }
    return "[" + out + "]";
  }

  std::string samples(const Result<std::shared_ptr<Compiled>>& compiled, const JsonValue& request) {
    std::string out;
    const auto number = [&](const char* name) { return std::stoul(std::string(request.find(name)->text())); };
    std::mt19937 random(static_cast<uint32_t>(number("seed")));
    for (size_t i = 0, n = compiled.ok() ? number("samples") : 0; i < n; ++i) {
      std::string text;
      const char* outcome = sample(compiled.value(), random, text);
      if (*outcome == 'o') out += (out.empty() ? "" : ", ") + quoted(text);
      else if (*outcome != 'l') return fmt::format(R"({{"broken": {}, "after": {}}})", quoted(outcome), quoted(text));
    }
    return "[" + out + "]";
  }

  // "ok", "long" for one that did not end, or what is wrong. Closing tokens grow likelier with the length.
  const char* sample(const std::shared_ptr<Compiled>& compiled, std::mt19937& random, std::string& text) {
    Matcher m(compiled);
    std::vector<uint32_t> mask(vocabulary_->mask_words());
    const uint32_t end = vocabulary_->end_tokens()[0];
    for (size_t n = 0; n < 200; ++n) {
      if (!m.fill_mask(mask).ok()) return "fill_mask failed";
      std::vector<uint32_t> allowed, closing;
      for (uint32_t t = 0; t < vocabulary_->size(); ++t) {
        if (!(mask[t >> 5] >> (t & 31) & 1) || t == end) continue;
        allowed.push_back(t);
        const std::string_view bytes = vocabulary_->bytes(t);
        if (bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(t);
      }
      const bool may_end = mask[end >> 5] >> (end & 31) & 1;
      if (!may_end && allowed.empty()) return "dead end";
      if (may_end != m.is_complete()) return "end token and is_complete differ";
      if (may_end && (allowed.empty() || random() % 2)) return "ok";
      const std::vector<uint32_t>& from = !closing.empty() && random() % 100 < 25 + n ? closing : allowed;
      if (from.empty()) return "long";
      const uint32_t token = from[random() % from.size()];
      if (!m.accept(token)) return "accept refuses a token of the mask";
      text += vocabulary_->bytes(token);
    }
    return "long";
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
};

}  // namespace

int main() {
  auto tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json");
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 2;
  }
  Judge judge(Vocabulary::from_tokenizer(tokenizer.value()).value());
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    auto request = JsonDocument::parse(line);
    if (!request.ok()) {
      std::cerr << request.status().message() << "\n";
      return 2;
    }
    std::cout << judge.run(request.value().root()) << std::endl;
  }
}
