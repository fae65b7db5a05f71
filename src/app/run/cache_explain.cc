#include "app/run/cache_explain.h"

#include <algorithm>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "app/run/printer.h"

namespace deepinfer::app {
namespace {

using kv::LoggedPrompt;
using kv::MissReason;

constexpr int kTokensAround = 24;
constexpr size_t kLineBytes = 160;

std::string tokens_text(const LoggedPrompt& p, int begin, int end, const text::Tokenizer* tokenizer) {
  const auto all = std::span<const int32_t>(p.tokens);
  begin = std::clamp(begin, 0, static_cast<int>(all.size()));
  end = std::clamp(end, begin, static_cast<int>(all.size()));
  const auto some = all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  if (tokenizer == nullptr) return fmt::format("{}", fmt::join(some, " "));
  return tokenizer->decode(some);
}

// The line in which the prompt's token `at` lies, as far as the tokens around it tell.
std::string line_at(const LoggedPrompt& p, int at, const text::Tokenizer* tokenizer) {
  std::string before = tokens_text(p, at - kTokensAround, at, tokenizer);
  std::string behind = tokens_text(p, at, at + kTokensAround, tokenizer);
  if (const size_t n = before.rfind('\n'); n != std::string::npos) before.erase(0, n + 1);
  behind = behind.substr(0, behind.find('\n'));
  if (before.size() > kLineBytes) before = "..." + before.substr(before.size() - kLineBytes);
  if (behind.size() > kLineBytes) behind = behind.substr(0, kLineBytes) + "...";
  return without_controls(before + behind);
}

bool has_digit(const std::string& text) { return text.find_first_of("0123456789") != std::string::npos; }

// Whether the token lies before the conversation's first answer.
bool before_first_answer(const LoggedPrompt& p, int at, const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return false;
  const auto answer = tokenizer->find_added("<｜Assistant｜>");
  if (!answer) return false;
  return std::find(p.tokens.begin(), p.tokens.begin() + at, *answer) == p.tokens.begin() + at;
}

std::string cause(const LoggedPrompt& now, const LoggedPrompt& earlier, int at, const text::Tokenizer* tokenizer) {
  if (at >= static_cast<int>(earlier.tokens.size()))
    return "the earlier prompt ended here: what follows is new text, and nothing could be cached of it";
  const std::string a = line_at(earlier, at, tokenizer), b = line_at(now, at, tokenizer);
  const bool early = before_first_answer(now, at, tokenizer);
  const std::string_view place = early ? "in the system prompt or first message" : "in an earlier message";
  if (has_digit(a) && has_digit(b))
    return fmt::format(
        "a line {} that changes from request to request, such as a date, a time, a counter or an id; put "
        "what changes behind what stays",
        place);
  return fmt::format("text {} was changed; everything behind a change is computed again", place);
}

std::string differing(std::span<const LoggedPrompt> prompts, size_t at, const kv::Explanation& e,
                      const kv::ExplainShape& shape, const text::Tokenizer* tokenizer) {
  const LoggedPrompt &now = prompts[at], &earlier = prompts[e.other];
  const int block = e.common / shape.block_tokens;
  std::string text = fmt::format(
      "It has its first {} tokens in common with request {}.\n"
      "The first block that differs is number {} (tokens {} to {}), at token {}:\n  request {}: {}\n  request {}: {}\n",
      e.common, earlier.number, block, block * shape.block_tokens, (block + 1) * shape.block_tokens - 1, e.common,
      earlier.number, line_at(earlier, e.common, tokenizer), now.number, line_at(now, e.common, tokenizer));
  return text + fmt::format("Likely cause: {}.\n", cause(now, earlier, e.common, tokenizer));
}

}  // namespace

std::string explain_prompt(std::span<const LoggedPrompt> prompts, size_t at, const kv::ExplainShape& shape,
                           const text::Tokenizer* tokenizer) {
  const LoggedPrompt& p = prompts[at];
  const kv::Explanation e = kv::explain_miss(prompts, at, shape);
  std::string text =
      fmt::format("Request {} of {:%Y-%m-%d %H:%M:%S} UTC ({}, tenant {}): {} prompt tokens, {} from the cache",
                  p.number, fmt::gmtime(static_cast<std::time_t>(p.unix_time)), kv::traffic_name(p.traffic), p.tenant,
                  p.tokens.size(), p.cached);
  // A block of rows that run anyway counts where it is still in memory, but nobody loads one.
  text += fmt::format("; at most {} could be.\n", std::max(e.usable, p.cached));
  switch (e.why) {
    case MissReason::kNone: return text + "Nothing missed: all that can be served from the cache was.\n";
    case MissReason::kShort: return text + "It is too short: the last rows of a prompt always run.\n";
    case MissReason::kNew:
      text += "No earlier request of this tenant that is in the log begins with the same block.\n";
      return e.common > 0 ? text + differing(prompts, at, e, shape, tokenizer) : text;
    case MissReason::kGone:
      text += fmt::format(
          "Request {} had the same first {} tokens, so block {} (tokens {} to {}) was there once.\n"
          "Likely cause: it left for want of room, passed its time, its tier did not answer in time, or computing it "
          "was faster than loading; deepinfer cache stat and the counters of tiers and loads tell.\n",
          prompts[e.other].number, e.common, e.block, e.block * shape.block_tokens,
          (e.block + 1) * shape.block_tokens - 1);
      return text;
    case MissReason::kDiffers: return text + differing(prompts, at, e, shape, tokenizer);
  }
  return text;
}

}  // namespace deepinfer::app
