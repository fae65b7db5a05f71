// Shows an answer while it comes: reasoning dim and apart from the answer on a terminal, the answer alone elsewhere.
//
//   Printer printer(STDOUT_FILENO);
//   session.chat(conversation, printer, &stop);
//   printer.finish();                            // ends the line; write_error() says whether all of it was written
//
// On a terminal control characters of the model's text are made visible instead of obeyed.
#pragma once

#include <string>
#include <string_view>

#include "app/run/session.h"

namespace deepinfer::app {

// ESC and other control characters but newline and tab, as their pictures (U+2400 ..) or U+FFFD; the rest unchanged.
std::string without_controls(std::string_view text);

class Printer : public AnswerSink {
 public:
  explicit Printer(int fd);

  bool on_reasoning(std::string_view text) override;
  bool on_content(std::string_view text) override;
  void finish();

  // errno of the first failed write, 0 if none.
  int write_error() const { return error_; }

 private:
  bool put(std::string_view text);

  const int fd_;
  const bool terminal_, style_;
  bool reasoning_ = false;  // reasoning is being shown
  bool newline_ = true;     // nothing stands on the last line
  int error_ = 0;
};

// Shows nothing; for answers that are printed whole.
class SilentSink : public AnswerSink {
 public:
  bool on_reasoning(std::string_view) override { return true; }
  bool on_content(std::string_view) override { return true; }
};

}  // namespace deepinfer::app
