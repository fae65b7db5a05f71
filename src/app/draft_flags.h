// Speculation, as flags say.
//
//   DraftFlags drafts;  bind_drafts(*options, &drafts);
//   add_drafts(drafts, &engine_options);  executor_options.drafts_max = drafts.drafts;
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::engine {
struct DraftStats;
struct EngineOptions;
}  // namespace deepinfer::engine

namespace deepinfer::app {

class CommandOptions;

struct DraftFlags {
  int drafts = 5;
  bool confidence = true, text = true, history = true, ahead = false;
};

void bind_drafts(CommandOptions& options, DraftFlags* flags);
void add_drafts(const DraftFlags& flags, engine::EngineOptions* options);

// Temperatures that `deepinfer calibrate` left beside a model: {"draft_temperatures": [1.5, 1.6]}.
std::string draft_temperatures_path(const std::string& model_dir);
std::string draft_temperatures_json(const std::vector<float>& temperatures);
// Sets them in the options if the file is there. A file that is something else is refused by name.
Status read_draft_temperatures(const std::string& model_dir, engine::EngineOptions* options);
// One line: guesses made, checked and right, by place, and tokens a step.
std::string draft_summary(const engine::DraftStats& stats);

}  // namespace deepinfer::app
