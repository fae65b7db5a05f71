#include "serve/gate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iterator>

#include "recipe/json.h"
#include "recipe/logprobs.h"
#include "serve/config.h"
#include "serve/host.h"
#include "serve/service_metrics.h"
#include "serve/utc_time.h"

namespace deepinfer::serve {
namespace {

using recipe::Protocol;

// A key as its holder may recognise it.
std::string masked(std::string_view key) {
  return "****" + std::string(key.size() > 8 ? key.substr(key.size() - 4) : std::string_view());
}

std::string_view bearer(const Exchange& x) {
  const std::string_view authorization = x.header("authorization");
  if (authorization.size() > 7 && (authorization.starts_with("Bearer ") || authorization.starts_with("bearer "))) {
    return authorization.substr(7);
  }
  return x.header("x-api-key");
}

// The host of a Host or Origin value, without scheme and port.
std::string_view host_name(std::string_view value) {
  if (const size_t scheme = value.find("://"); scheme != std::string_view::npos) value.remove_prefix(scheme + 3);
  if (value.starts_with('[')) return value.substr(0, value.find(']') + 1);
  return value.substr(0, value.find(':'));
}

bool is_local_name(std::string_view host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  if (host.starts_with('[')) return true;
  return !host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

void add_balance(Exchange& x, const KeyUse::Balance& b) {
  const bool messages = x.protocol == Protocol::kMessages;
  const auto add = [&](std::string_view openai, std::string_view anthropic, std::string value) {
    x.extra_headers.emplace_back(messages ? anthropic : openai, std::move(value));
  };
  const auto add_reset = [&](std::string_view openai, std::string_view anthropic, double seconds) {
    const auto whole = static_cast<int64_t>(std::ceil(seconds));
    add(openai, anthropic, messages ? utc_time(std::time(nullptr) + whole) : fmt::format("{}s", whole));
  };
  if (b.tokens_limit > 0) {
    add("x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit", std::to_string(b.tokens_limit));
    add("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining", std::to_string(b.tokens_left));
    add_reset("x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-reset", b.tokens_reset_s);
  }
  if (b.requests_limit > 0) {
    add("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit", std::to_string(b.requests_limit));
    add("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining", std::to_string(b.requests_left));
    // Of requests at once nobody knows when the next one ends: the same guess as in Retry-After.
    add_reset("x-ratelimit-reset-requests", "anthropic-ratelimit-requests-reset", b.requests_left > 0 ? 0 : 1);
  }
}

}  // namespace

bool is_traceparent(std::string_view t) {
  if (t.size() != 55 || !t.starts_with("00-") || t[35] != '-' || t[52] != '-') return false;
  const auto hexadecimal = [](std::string_view part) {
    return part.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  };
  const auto zero = [](std::string_view part) { return part.find_first_not_of('0') == std::string_view::npos; };
  const std::string_view trace = t.substr(3, 32), span = t.substr(36, 16);
  return hexadecimal(trace) && hexadecimal(span) && hexadecimal(t.substr(53)) && !zero(trace) && !zero(span);
}

Result<std::unique_ptr<Gate>> Gate::create(const ServeConfig& config, ServiceMetrics& metrics) {
  std::unique_ptr<Gate> gate(new Gate(config, metrics));
  if (!config.keys_file.empty()) {
    DI_ASSIGN_OR_RETURN(gate->keys_, KeyRing::load(config.keys_file));
  }
  if (!config.access_log.empty()) {
    DI_ASSIGN_OR_RETURN(gate->log_, observe::LineLog::open(config.access_log));
  }
  return gate;
}

Status Gate::reload() {
  if (log_) DI_RETURN_IF_ERROR(log_->reopen());
  return keys_ ? keys_->reload() : Status();
}

bool Gate::admit(const std::shared_ptr<Exchange>& x, const Route& route) {
  if (const std::string_view trace = x->header("traceparent"); is_traceparent(trace)) {
    x->traceparent = trace;
    x->extra_headers.emplace_back("traceparent", trace);
  }
  if (route.access == Access::kOpen) return true;
  return keys_ ? admit_key(*x, route) : admit_open(*x);
}

// A page from elsewhere could let a visitor's browser use the service: by a request that needs no leave (a foreign
// Origin), or by a name of its own that points to this machine (a foreign Host).
bool Gate::admit_open(Exchange& x) {
  const std::string_view origin = x.header("origin"), host = x.header("host");
  const bool allowed = origin.empty() || std::ranges::find(config_.cors_origins, "*") != config_.cors_origins.end() ||
                       std::ranges::find(config_.cors_origins, origin) != config_.cors_origins.end();
  const bool same = !origin.empty() &&
                    origin.substr(origin.find("://") == std::string_view::npos ? 0 : origin.find("://") + 3) == host;
  if ((allowed || same) && (host.empty() || is_local_name(host_name(host)))) return true;
  respond_error(x, 403,
                "This service has no API keys and answers only to this machine's own pages and programs. Add keys "
                "(deepinfer keys), or allow the page's origin (--cors-origin).",
                "permission_error", "forbidden_origin");
  return false;
}

bool Gate::admit_key(Exchange& x, const Route& route) {
  const std::string_view secret = bearer(x);
  if (secret.empty()) {
    respond_error(x, 401, "This service needs an API key, as Authorization: Bearer KEY or x-api-key: KEY.",
                  "authentication_error", "invalid_request_error", {}, {{"WWW-Authenticate", "Bearer"}});
    return false;
  }
  const std::shared_ptr<KeyUse> key = keys_->find(secret);
  if (!key) {
    respond_error(x, 401, "Authentication Fails, Your api key: " + masked(secret) + " is invalid",
                  "authentication_error", "invalid_request_error", {}, {{"WWW-Authenticate", "Bearer"}});
    return false;
  }
  x.key_name = key->name();
  if (route.method != "POST") return true;
  const KeyUse::Refusal refusal = key->begin();
  add_balance(x, key->balance());
  if (refusal.status != 0) {
    metrics_.limit_hit("key");
    respond_error(x, refusal.status, refusal.message, "rate_limit_error", "rate_limit_exceeded", {},
                  {{"Retry-After", fmt::format("{:.0f}", std::max(1.0, std::ceil(refusal.retry_after_s)))}});
    return false;
  }
  x.admission = key;
  return true;
}

void Gate::finished(const Finished& f) {
  const ExchangeFigures& figures = f.exchange.figures;
  if (f.exchange.admission) {
    static_cast<KeyUse*>(f.exchange.admission.get())->end(figures.prompt_tokens + figures.output_tokens);
  }
  metrics_.finished(f);
  if (log_) write_line(f);
}

void Gate::write_line(const Finished& f) {
  const Exchange& x = f.exchange;
  const ExchangeFigures& figures = x.figures;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string line = fmt::format("{{\"time\":{:.3f},\"id\":\"{}\",\"peer\":\"{}\",\"method\":",
                                 std::chrono::duration<double>(now).count(), x.request_id, f.peer);
  recipe::append_json_string(line, recipe::printable(x.method()));
  line += ",\"path\":";
  recipe::append_json_string(line, recipe::printable(x.path().substr(0, 512)));
  fmt::format_to(std::back_inserter(line), ",\"status\":{},\"bytes\":{},\"ms\":{:.3f},\"complete\":{}", f.status,
                 f.body_bytes, 1e3 * f.seconds, f.complete);
  if (!x.key_name.empty()) {
    line += ",\"key\":";
    recipe::append_json_string(line, x.key_name);
  }
  if (!x.traceparent.empty()) fmt::format_to(std::back_inserter(line), ",\"trace\":\"{}\"", x.traceparent);
  if (figures.prompt_tokens > 0) {
    fmt::format_to(std::back_inserter(line),
                   ",\"prompt_tokens\":{},\"cached_tokens\":{},\"output_tokens\":{},\"first_ms\":{:.3f}",
                   figures.prompt_tokens, figures.cached_tokens, figures.output_tokens, 1e3 * figures.first_token_s);
  }
  if (!figures.rule.empty()) fmt::format_to(std::back_inserter(line), ",\"rule\":\"{}\"", figures.rule);
  if (!figures.finish.empty()) fmt::format_to(std::back_inserter(line), ",\"finish\":\"{}\"", figures.finish);
  log_->write(line + "}");
}

}  // namespace deepinfer::serve
