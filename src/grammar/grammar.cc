#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/discard.h"
#include "grammar/grammar_impl.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kLarge = 20'000;  // expressions whose destruction takes a millisecond or more

}  // namespace

bool GrammarBuilder::Impl::charge() {
  if (!status.ok()) return false;
  const size_t made = texts.size() + grammar->exprs.size() + grammar->exprs.rx().size();
  const Limits& limits = budget.limits();
  if (made > limits.expressions_max) {
    status = make_error(Code::kResourceExhausted,
                        "the constraint turns into more than {} expressions (limit expressions_max); make it smaller",
                        limits.expressions_max);
  } else if (grammar->exprs.memory_bytes() > limits.memory_bytes_max) {
    status = make_error(Code::kResourceExhausted,
                        "the constraint takes more than {} bytes of memory (limit memory_bytes_max)",
                        limits.memory_bytes_max);
  } else {
    status = budget.spend(1);
  }
  return status.ok();
}

uint32_t GrammarBuilder::Impl::add_text(TextNode node, std::string_view key) {
  auto [it, fresh] = known.try_emplace(std::string(key), static_cast<uint32_t>(texts.size()));
  if (!fresh) return it->second;
  texts.push_back(node);
  return it->second;
}

GrammarBuilder::GrammarBuilder(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {
  impl_->grammar->exprs.rx().set_budget(&impl_->budget);
  impl_->texts.push_back({TextKind::kNone, 0, 0, 0, kUnbounded, 0});
  impl_->texts.push_back({TextKind::kEmpty, 0, 0, 0, 0, 0});
}
GrammarBuilder::~GrammarBuilder() {
  if (impl_->texts.size() + impl_->grammar->exprs.size() + impl_->known.size() > kLarge) discard(std::move(impl_));
}

bool GrammarBuilder::ok() const { return impl_->status.ok(); }
const Status& GrammarBuilder::status() const { return impl_->status; }
Budget& GrammarBuilder::budget() { return impl_->budget; }
void GrammarBuilder::fail(Status error) {
  if (impl_->status.ok()) impl_->status = std::move(error);
}

// --- Expressions
// ---------------------------------------------------------------------------------------------------------------------

// A search for a string that a Text allows was given up.
void GrammarBuilder::Impl::fail_search() {
  if (!status.ok()) return;
  status = budget.spend(0);
  if (status.ok()) {
    status = make_error(Code::kResourceExhausted,
                        "a condition on a string takes too many states to decide (limit {}); make it simpler",
                        kRxSearchStatesMax);
  }
}

ExprId GrammarBuilder::Impl::regular(RxId r) {
  if (!charge()) return kExprNone;
  RxArena& rx = grammar->exprs.rx();
  const bool alive = rx.alive(r);
  if (rx.error()) {
    fail_search();
    return kExprNone;
  }
  return alive ? grammar->exprs.regular(r) : kExprNone;
}

Expr GrammarBuilder::none() { return {kExprNone}; }
Expr GrammarBuilder::empty() { return {kExprEmpty}; }

void GrammarBuilder::set_added_tokens(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& t) { return t.text.empty(); });
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  impl_->added = std::move(tokens);
}

std::vector<std::pair<size_t, size_t>> GrammarBuilder::find_added_tokens(std::string_view bytes) const {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = 0; at < bytes.size();) {
    size_t step = 1;
    for (size_t i = 0; i < impl_->added.size(); ++i) {
      if (bytes.substr(at).starts_with(impl_->added[i].text)) {
        found.emplace_back(at, i);
        step = impl_->added[i].text.size();
        break;
      }
    }
    at += step;
  }
  return found;
}

Expr GrammarBuilder::literal(std::string_view bytes, Spelling spelling) {
  if (!impl_->charge()) return none();
  ExprArena& exprs = impl_->grammar->exprs;
  if (spelling == Spelling::kAddedTokens && !impl_->added.empty()) {
    std::vector<ExprId> parts;
    size_t done = 0;
    for (auto [at, index] : find_added_tokens(bytes)) {
      parts.push_back(exprs.regular(exprs.rx().literal(bytes.substr(done, at - done))));
      parts.push_back(exprs.token(impl_->added[index].token));
      done = at + impl_->added[index].text.size();
    }
    parts.push_back(exprs.regular(exprs.rx().literal(bytes.substr(done))));
    return {exprs.sequence(parts)};
  }
  return {exprs.regular(exprs.rx().literal(bytes))};
}

Expr GrammarBuilder::token(uint32_t id) {
  if (!impl_->charge()) return none();
  return {impl_->grammar->exprs.token(id)};
}

Expr GrammarBuilder::literals(std::span<const std::string> values) {
  if (!impl_->charge() || values.empty()) return none();
  ExprArena& exprs = impl_->grammar->exprs;
  return {exprs.regular(exprs.rx().strings({values.begin(), values.end()}))};
}

Expr GrammarBuilder::utf8(Text a) { return {impl_->regular(impl_->lower(a.id, Encoding::kUtf8))}; }

Expr GrammarBuilder::json_string(Text value) {
  RxArena& rx = impl_->grammar->exprs.rx();
  const RxId quote = rx.literal("\"");
  return {impl_->regular(rx.concat(quote, rx.concat(impl_->lower(value.id, Encoding::kJson), quote)))};
}

Expr GrammarBuilder::json_integer() { return {impl_->regular(RxBase::get().json_integer)}; }
Expr GrammarBuilder::json_number() { return {impl_->regular(RxBase::get().json_number)}; }
Expr GrammarBuilder::whitespace() { return {impl_->regular(RxBase::get().whitespace)}; }

Expr GrammarBuilder::sequence(std::span<const Expr> parts) {
  if (!impl_->charge()) return none();
  static_assert(sizeof(Expr) == sizeof(ExprId));
  std::vector<ExprId> ids;
  for (Expr e : parts) ids.push_back(e.id);
  return {impl_->grammar->exprs.sequence(ids)};
}

Expr GrammarBuilder::choice(std::span<const Expr> parts) {
  if (!impl_->charge()) return none();
  std::vector<ExprId> ids;
  for (Expr e : parts) ids.push_back(e.id);
  return {impl_->grammar->exprs.choice(ids)};
}

Expr GrammarBuilder::repeat(Expr a, uint32_t min, uint32_t max) {
  if (!impl_->charge()) return none();
  return {impl_->grammar->exprs.repeat(a.id, min, max)};
}

Expr GrammarBuilder::any_order(std::span<const Expr> items, const std::vector<bool>& required, Expr separator,
                               Expr others, uint32_t min, uint32_t max) {
  if (!impl_->charge()) return none();
  if (items.size() > kAnyOrderMax) {
    fail(make_error(Code::kUnsupported, "at most {} members can come in any order; this object has {}", kAnyOrderMax,
                    items.size()));
    return none();
  }
  AnyOrder d;
  d.required.resize(items.size() / 64 + 1);
  for (size_t i = 0; i < items.size(); ++i) {
    d.items.push_back(items[i].id);
    if (required[i]) d.required[i / 64] |= 1ull << (i % 64);
  }
  d.separator = separator.id;
  d.others = others.id;
  d.min = min;
  d.max = max;
  const auto must = d.required_count();
  const uint64_t can = others.id == kExprNone ? items.size() : kUnbounded;
  if (must > max || min > max || min > can) return none();
  if (max == 0) return empty();
  return {impl_->grammar->exprs.any_order(std::move(d))};
}

Expr GrammarBuilder::unique(Expr body, uint32_t values_at_least) {
  if (!impl_->charge()) return none();
  impl_->grammar->uses_unique = true;
  return {impl_->grammar->exprs.unique(body.id, values_at_least)};
}

Expr GrammarBuilder::unique_item(Expr item) {
  if (!impl_->charge()) return none();
  return {impl_->grammar->exprs.unique_item(item.id)};
}

// --- Rules
// ---------------------------------------------------------------------------------------------------------------------

Rule GrammarBuilder::new_rule(std::string_view name) {
  impl_->charge();
  impl_->grammar->rules.push_back({std::string(name.substr(0, 200)), kExprNone, false});
  return {static_cast<uint32_t>(impl_->grammar->rules.size() - 1)};
}

void GrammarBuilder::define(Rule rule, Expr body) {
  auto& info = impl_->grammar->rules[rule.id];
  info.body = body.id;
  info.defined = true;
}

bool GrammarBuilder::is_defined(Rule rule) const { return impl_->grammar->rules[rule.id].defined; }

Expr GrammarBuilder::ref(Rule rule) {
  if (!impl_->charge()) return none();
  return {impl_->grammar->exprs.rule(rule.id)};
}

bool GrammarBuilder::is_none(Expr a) {
  if (a.id == kExprNone) return true;
  if (!impl_->grammar->exprs.node(a.id).has_rule) return false;
  return produces_nothing(*impl_->grammar, a.id);
}

Result<Grammar> GrammarBuilder::finish(Expr root, bool strict_rules) {
  if (!impl_->status.ok()) return impl_->status;
  impl_->grammar->root = root.id;
  DI_RETURN_IF_ERROR(prepare(*impl_->grammar, strict_rules, impl_->budget));
  impl_->grammar->exprs.rx().set_budget(nullptr);
  Grammar grammar(std::move(impl_->grammar));
  impl_->grammar = std::make_unique<Grammar::Impl>();
  fail(make_error(Code::kInternal, "a grammar builder was used after finish()"));
  return grammar;
}

Result<Grammar> GrammarBuilder::finish(Rule root, bool strict_rules) { return finish(ref(root), strict_rules); }

Grammar::Grammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Grammar::Grammar(Grammar&&) noexcept = default;
Grammar& Grammar::operator=(Grammar&&) noexcept = default;
Grammar::~Grammar() {
  if (impl_ && impl_->exprs.size() > kLarge) discard(std::move(impl_));
}

}  // namespace deepinfer::grammar
