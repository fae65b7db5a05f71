#include "app/draft_flags.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/file.h"
#include "engine/engine.h"
#include "recipe/json.h"

namespace deepinfer::app {

void add_drafts(const DraftFlags& flags, engine::EngineOptions* options) {
  if (flags.drafts == 0) return;
  options->drafts.mode = flags.confidence ? engine::DraftMode::kConfidence : engine::DraftMode::kFixed;
  options->drafts.drafts_max = flags.drafts;
  options->drafts.text = flags.text;
  options->drafts.history = flags.history;
  options->drafts.ahead = flags.ahead;
}

std::string draft_temperatures_path(const std::string& model_dir) { return model_dir + "/draft_temperatures.json"; }

std::string draft_temperatures_json(const std::vector<float>& temperatures) {
  return fmt::format("{{\"draft_temperatures\": [{:.6g}]}}\n", fmt::join(temperatures, ", "));
}

Status read_draft_temperatures(const std::string& model_dir, engine::EngineOptions* options) {
  constexpr uint64_t kBytesMax = 1 << 16;
  const std::string path = draft_temperatures_path(model_dir);
  const Result<std::string> text = read_file(path, kBytesMax);
  if (text.status().code() == Code::kNotFound) return Status();
  if (!text.ok()) return text.status();
  const Result<recipe::Json> json = recipe::parse_json(text.value());
  const recipe::Json* list = json.ok() ? json.value().find("draft_temperatures") : nullptr;
  std::vector<float> out;
  if (list != nullptr && list->is_array()) {
    for (const recipe::Json& t : list->as_array()) {
      if (!t.is_number() || !(t.as_double() > 0) || t.as_double() > 1e6) break;
      out.push_back(static_cast<float>(t.as_double()));
    }
    if (out.size() == list->as_array().size()) {
      options->drafts.temperatures = std::move(out);
      return Status();
    }
  }
  return make_error(
      Code::kInvalidArgument,
      "{} is not a list of positive draft_temperatures; make it again with deepinfer calibrate, or remove it.", path);
}

std::string draft_summary(const engine::DraftStats& s) {
  const auto share = [](int64_t part, int64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::string out = fmt::format("{:.2f} tokens a step; guesses: ",
                                static_cast<double>(s.tokens) / static_cast<double>(std::max<int64_t>(1, s.turns)));
  if (s.verify_rows == 0) return out + "none, they would not have paid\n";
  const int64_t right = std::accumulate(s.accepted.begin(), s.accepted.end(), int64_t{0});
  out +=
      fmt::format("{} made, {} not worth a row, {} checked, {} right;", s.drafted, s.saved_rows, s.verify_rows, right);
  for (size_t i = 0; i < s.verified.size() && s.verified[i] > 0; ++i)
    out += fmt::format(" {}: {:.0f}%", i + 1, share(s.accepted[i], s.verified[i]));
  return out + "\n";
}

}  // namespace deepinfer::app
