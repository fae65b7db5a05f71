// Lines typed by a person: editing keys and history (libedit), Unicode, Ctrl-C gives up the line, Ctrl-D ends the
// input.
//
//   LineEditor editor(history_path);        // empty path: nothing is remembered between runs
//   std::string line;
//   while (editor.read("> ", &line) == LineEditor::Event::kLine) { editor.remember(line); answer(line); }
//
// Standard input must be a terminal. An Interrupt (app/terminal/interrupt.h) must be alive, so that Ctrl-C does not end
// the program. History: the last kHistoryLinesMax lines, one per line of the file, readable by its owner only.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace deepinfer::app {

class Interrupt;

class LineEditor {
 public:
  static constexpr size_t kHistoryLinesMax = 1000;
  enum class Event : uint8_t { kLine, kInterrupted, kEnd };

  LineEditor(std::string history_path, Interrupt& interrupt);
  ~LineEditor();

  // The line comes without its newline and is valid UTF-8.
  Event read(const std::string& prompt, std::string* line);
  // Adds to the history and its file. A failure concerns the file only.
  Status remember(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::app
