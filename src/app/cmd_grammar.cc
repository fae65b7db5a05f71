// deepinfer grammar check|sample|match: constrained output without a model.
#include <bit>
#include <chrono>
#include <map>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/run/find_model.h"
#include "base/file.h"
#include "grammar/constraint.h"
#include "text/tokenizer.h"

namespace deepinfer::app {
namespace {

using grammar::Compiled;
using grammar::Constraint;
using grammar::ConstraintKind;
using grammar::Matcher;
using grammar::Vocabulary;

constexpr uint64_t kFileBytesMax = 64ull << 20;

struct Options {
  std::string kind = "json", source, file, tokenizer, text;
  std::vector<std::string> texts;
  bool any_order = false;
  int count = 5, length = 40, tokens_max = 2000;
  uint64_t seed = 0;
};

struct Setting {
  text::Tokenizer tokenizer;
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<Compiled> compiled;
  double compile_ms;
};

Result<Setting> prepare(const Options& o) {
  static const std::map<std::string, ConstraintKind> kKinds = {
      {"json", ConstraintKind::kJsonSchema}, {"json_object", ConstraintKind::kJsonObject},
      {"regex", ConstraintKind::kRegex},     {"ebnf", ConstraintKind::kEbnf},
      {"tags", ConstraintKind::kTags},       {"tools", ConstraintKind::kTools}};
  Constraint constraint{kKinds.at(o.kind), o.source, o.any_order};
  if (!o.file.empty()) {
    DI_ASSIGN_OR_RETURN(constraint.source, read_file(o.file, kFileBytesMax));
  }
  if (o.source.empty() && o.file.empty() && o.kind != "regex" && o.kind != "json_object") {
    return Status(Code::kInvalidArgument, "There is no constraint; give it with --source or --file.");
  }
  DI_ASSIGN_OR_RETURN(const std::string path, find_tokenizer(o.tokenizer));
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(path));
  DI_ASSIGN_OR_RETURN(auto vocabulary, Vocabulary::from_tokenizer(tokenizer));
  const auto begin = std::chrono::steady_clock::now();
  DI_ASSIGN_OR_RETURN(auto compiled, grammar::compile_constraint(constraint, vocabulary));
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return Setting{std::move(tokenizer), std::move(vocabulary), std::move(compiled), ms};
}

std::vector<uint32_t> allowed_tokens(const std::vector<uint32_t>& mask) {
  std::vector<uint32_t> out;
  for (uint32_t w = 0; w < mask.size(); ++w) {
    for (uint32_t bits = mask[w]; bits != 0; bits &= bits - 1)
      out.push_back(w * 32 + static_cast<uint32_t>(std::countr_zero(bits)));
  }
  return out;
}

int check(const Options& o) {
  auto s = prepare(o);
  if (!s.ok()) return fail(s.status().message());
  Matcher m(s.value().compiled);
  std::vector<uint32_t> mask(s.value().vocabulary->mask_words());
  if (Status status = m.fill_mask(mask); !status.ok()) return fail(status.message());
  fmt::print("ok: compiled in {:.2f} ms; {} of {} tokens may come first", s.value().compile_ms,
             allowed_tokens(mask).size(), s.value().vocabulary->size());
  if (const std::string forced = m.forced_bytes(); !forced.empty()) fmt::print("; the text begins with {}", forced);
  fmt::print("{}\n", m.is_complete() ? "; it may be empty" : "");
  return kExitOk;
}

// One random output: any allowed token, and from `length` tokens on the end as soon as it may come, short tokens
// preferred.
Result<std::string> sample(const Setting& s, const Options& o, std::mt19937_64& random) {
  Matcher m(s.compiled);
  std::vector<uint32_t> mask(s.vocabulary->mask_words());
  std::string text;
  for (int n = 0; n < o.tokens_max; ++n) {
    DI_RETURN_IF_ERROR(m.fill_mask(mask));
    const std::vector<uint32_t> allowed = allowed_tokens(mask);
    if (allowed.empty()) return make_error(Code::kInternal, "no token may follow: {}", text);
    if (n >= o.length && m.is_complete()) return text;
    uint32_t token = allowed[random() % allowed.size()];
    for (int tries = 0; n >= o.length && tries < 8; ++tries) {
      const uint32_t other = allowed[random() % allowed.size()];
      if (s.vocabulary->bytes(other).size() < s.vocabulary->bytes(token).size()) token = other;
    }
    if (!m.accept(token))
      return make_error(Code::kInternal, "the mask allows token {} but the grammar does not: {}", token, text);
    if (m.is_ended()) return text;
    text += s.vocabulary->bytes(token);
  }
  return make_error(Code::kResourceExhausted, "no end within {} tokens (--tokens-max): {}...", o.tokens_max,
                    text.substr(0, 200));
}

int run_sample(const Options& o) {
  auto s = prepare(o);
  if (!s.ok()) return fail(s.status().message());
  std::mt19937_64 random(o.seed);
  for (int i = 0; i < o.count; ++i) {
    auto text = sample(s.value(), o, random);
    if (!text.ok()) return fail(text.status().message());
    fmt::print("{}\n", text.value());
  }
  return kExitOk;
}

// Says where a text stops fitting.
bool match(const Setting& s, const std::string& text, bool recognise_added) {
  Matcher m(s.compiled);
  std::vector<uint32_t> mask(s.vocabulary->mask_words());
  size_t at = 0;
  for (text::TokenId id :
       s.tokenizer.encode(text, recognise_added ? text::AddedTokens::kRecognise : text::AddedTokens::kAsText)) {
    const auto token = static_cast<uint32_t>(id);
    if (!m.accept(token)) {
      // The longest part of the token that still fits.
      const std::string_view bytes = s.vocabulary->bytes(token);
      size_t fits = 0;
      while (fits < bytes.size() && m.accept_bytes(bytes.substr(fits, 1))) ++fits;
      fmt::print("no match: byte {} does not fit, after: {}\n", at + fits, text.substr(0, at + fits));
      return false;
    }
    at += s.vocabulary->bytes(token).size();
  }
  if (m.is_complete()) {
    fmt::print("match\n");
    return true;
  }
  const std::string forced = m.forced_bytes();
  fmt::print("no match: the text is not complete{}\n", forced.empty() ? "" : "; it must go on with " + forced);
  return false;
}

int run_match(const Options& o) {
  auto s = prepare(o);
  if (!s.ok()) return fail(s.status().message());
  std::vector<std::string> texts = o.texts;
  if (texts.empty()) {
    Result<std::string> text = read_standard_input(kFileBytesMax);
    if (!text.ok()) return fail(text.status().message());
    texts.push_back(std::move(text.value()));
  }
  bool all = true;
  for (const std::string& text : texts)
    all &= match(s.value(), text, o.kind == "ebnf" || o.kind == "tags" || o.kind == "tools");
  return all ? kExitOk : kExitFailure;
}

void add_common(CLI::App* app, const std::shared_ptr<Options>& o) {
  app->add_option("--kind", o->kind, "What the constraint is")
      ->check(CLI::IsMember({"json", "json_object", "regex", "ebnf", "tags", "tools"}))
      ->capture_default_str();
  auto* source = app->add_option("--source", o->source, "The constraint itself");
  app->add_option("--file", o->file, "A file that holds the constraint")->excludes(source);
  app->add_option("--tokenizer", o->tokenizer,
                  "Model folder or tokenizer.json (default: DEEPINFER_HF_MODEL_DIR, else the bundled model)");
  app->add_flag("--any-order", o->any_order, "JSON: members in any order");
}

void setup_grammar(CLI::App& app, Run* run) {
  auto o = std::make_shared<Options>();
  app.require_subcommand(1);
  CLI::App* check_app = app.add_subcommand("check", "Compile a constraint and say how it begins");
  CLI::App* sample_app = app.add_subcommand("sample", "Write random outputs that obey a constraint");
  CLI::App* match_app = app.add_subcommand("match", "Say whether texts obey a constraint, and where they stop to");
  for (CLI::App* a : {check_app, sample_app, match_app}) add_common(a, o);
  sample_app->add_option("-n,--count", o->count, "How many")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  sample_app->add_option("--seed", o->seed, "Seed of the choices")->capture_default_str();
  sample_app->add_option("--length", o->length, "Tokens after which the end is taken when it may come")
      ->capture_default_str();
  sample_app->add_option("--tokens-max", o->tokens_max, "Give up on an output after this many tokens")
      ->capture_default_str();
  match_app->add_option("texts", o->texts, "Texts (default: one from standard input)");
  *run = [o, sample_app, match_app] {
    if (sample_app->parsed()) return run_sample(*o);
    return match_app->parsed() ? run_match(*o) : check(*o);
  };
}

const Command kGrammar("grammar", "Check constraints, sample outputs that obey them, and match texts", &setup_grammar);

}  // namespace
}  // namespace deepinfer::app
