#include "app/draft_flags.h"
#include "app/options/command_options.h"

namespace deepinfer::app {

void bind_drafts(CommandOptions& options, DraftFlags* flags) {
  options.bind("drafts", &flags->drafts);
  options.bind("draft-confidence", &flags->confidence);
  options.bind("draft-text", &flags->text);
  options.bind("draft-history", &flags->history);
  options.bind("draft-ahead", &flags->ahead);
}

}  // namespace deepinfer::app
