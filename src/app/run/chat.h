// The chat in a terminal: lines in, answers out, commands that begin with a slash.
//
//   Chat chat(session, interrupt, {.conversation = c, .model = "models/tiny", .history_path = path});
//   int exit_code = chat.run();
//
// Ctrl-C ends an answer (what has come stays in the conversation) or gives up a line; Ctrl-D ends the chat. Answers go
// to standard output, everything else to standard error. A failed answer or command is said and the chat goes on.
#pragma once

#include <functional>
#include <string>

#include "app/run/report.h"
#include "app/run/session.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/line_editor.h"
#include "recipe/conversation.h"

namespace deepinfer::app {

struct ChatOptions {
  recipe::Conversation conversation;  // its settings, and the system message if there is one
  std::string model;
  std::string history_path;
  std::function<std::string()> guesses;  // a line for /stats
  bool raw = false;  // each line is completed on its own
  bool quiet = false;
};

class Chat {
 public:
  Chat(Session& session, Interrupt& interrupt, ChatOptions options);
  int run();

 private:
  // False ends the chat.
  bool handle(const std::string& line);
  bool command(const std::string& line);
  void answer(const std::string& line);
  void add_answer(const Answer& answer);
  void reset();
  void set_system(const std::string& text);
  void set_seed(const std::string& text);
  void save(const std::string& path) const;
  void say(const std::string& text) const;

  Session& session_;
  Interrupt& interrupt_;
  ChatOptions options_;
  LineEditor editor_;
  Totals totals_;
  bool output_gone_ = false;
};

}  // namespace deepinfer::app
