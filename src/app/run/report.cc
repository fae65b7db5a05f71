#include "app/run/report.h"

namespace deepinfer::app {
namespace {

std::string rate(int64_t tokens, double seconds) {
  return seconds > 0 ? fmt::format(" at {:.1f} tokens/s", static_cast<double>(tokens) / seconds) : "";
}

double per_second(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

}  // namespace

void Totals::add(const engine::GenerateResult& r) {
  ++answers;
  prompt_tokens += r.prompt_tokens;
  output_tokens += r.output_tokens;
  decoded_tokens += r.output_tokens > 0 ? r.output_tokens - 1 : 0;  // the first one comes out of prefill
  prefill_s += r.prefill_s;
  decode_s += r.decode_s;
}

std::string Totals::to_string() const {
  return fmt::format("{} prompt tokens{}, {} answer tokens{}", prompt_tokens, rate(prompt_tokens, prefill_s),
                     output_tokens, rate(decoded_tokens, decode_s));
}

std::string why_cut(const Answer& answer) {
  if (answer.cancelled) return "Stopped.";
  std::string why;
  if (answer.finish == recipe::FinishReason::kLength) why = "Cut at --max-tokens";
  if (answer.finish == recipe::FinishReason::kContextFull) why = "Cut because the context is full (--context)";
  if (why.empty() && answer.in_reasoning) why = "The model ended";
  if (why.empty()) return "";
  return why + (answer.in_reasoning ? " while still thinking." : ".");
}

recipe::Json answer_json(const Answer& answer, const ReportContext& context) {
  using recipe::Json;
  const engine::GenerateResult& f = answer.figures;
  Json usage = Json::object();
  usage.set("prompt_tokens", f.prompt_tokens);
  usage.set("completion_tokens", f.output_tokens);
  usage.set("reasoning_tokens", answer.reasoning_tokens);
  Json figures = Json::object();
  figures.set("load_s", context.load_s);
  figures.set("first_token_s", f.prefill_s);
  figures.set("prompt_tokens_per_s", per_second(f.prompt_tokens, f.prefill_s));
  figures.set("decode_tokens_per_s", per_second(f.output_tokens > 0 ? f.output_tokens - 1 : 0, f.decode_s));
  Json root = Json::object();
  root.set("model", context.model);
  root.set("content", answer.content);
  root.set("reasoning_content", answer.reasoning);
  root.set("finish_reason", answer.cancelled ? "cancelled" : recipe::finish_reason_name(answer.finish));
  root.set("seed", context.seed);
  root.set("usage", std::move(usage));
  root.set("figures", std::move(figures));
  return root;
}

}  // namespace deepinfer::app
