#include "app/terminal/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <string_view>

#include "app/terminal/interrupt.h"
#include "app/terminal/terminal.h"
#include "base/file.h"
#include "text/utf8.h"

namespace deepinfer::app {
namespace {

constexpr uint64_t kHistoryBytesMax = 16u << 20;
constexpr wchar_t kReplacement = 0xFFFD;
constexpr char kCtrlD = 4;

// libedit converts by the locale's character set; only that category, so that numbers stay as they are.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::Impl {
  EditLine* edit = nullptr;
  History* history = nullptr;
  Interrupt& interrupt;
  std::string history_path;
  std::deque<std::string> lines;
  std::string prompt;

  explicit Impl(Interrupt& i) : interrupt(i) {}

  static Impl* of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self);
  }
  static char* prompt_of(EditLine* edit) { return of(edit)->prompt.data(); }

  // -1 on Ctrl-C, 0 at the end, 1 for a byte.
  int next_byte(char* byte) {
    while (true) {
      if (interrupt.flag()) return -1;
      pollfd ready{STDIN_FILENO, POLLIN, 0};
      if (::poll(&ready, 1, 100) <= 0) continue;
      const ssize_t n = ::read(STDIN_FILENO, byte, 1);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      // A Ctrl-D that was typed before libedit took the terminal over (during an answer) arrives as a zero byte.
      if (n == 1 && *byte == '\0') *byte = kCtrlD;
      return n < 0 ? 0 : static_cast<int>(n);
    }
  }

  static int next_character(EditLine* edit, wchar_t* character) {
    Impl* self = of(edit);
    std::string bytes;
    while (true) {
      char byte = 0;
      const int n = self->next_byte(&byte);
      if (n <= 0) return n;
      bytes += byte;
      const text::Utf8Step step = text::read_utf8(bytes);
      if (step.head == text::Utf8Head::kIncomplete) continue;
      *character = step.head == text::Utf8Head::kCharacter ? static_cast<wchar_t>(step.code_point) : kReplacement;
      return 1;
    }
  }

  void enter(const std::string& line) {
    HistEvent event;
    ::history(history, &event, H_ENTER, line.c_str());
  }
};

LineEditor::LineEditor(std::string history_path, Interrupt& interrupt) : impl_(std::make_unique<Impl>(interrupt)) {
  use_utf8();
  impl_->history_path = std::move(history_path);
  // Prompt and echo go where a person sees them, even if the answers go to a file.
  FILE* out = is_terminal(STDOUT_FILENO) ? stdout : stderr;
  impl_->edit = el_init("deepinfer", stdin, out, stderr);
  impl_->history = history_init();
  HistEvent event;
  ::history(impl_->history, &event, H_SETSIZE, static_cast<int>(kHistoryLinesMax));
  el_set(impl_->edit, EL_CLIENTDATA, impl_.get());
  el_set(impl_->edit, EL_PROMPT, &Impl::prompt_of);
  el_set(impl_->edit, EL_EDITOR, "emacs");
  el_set(impl_->edit, EL_HIST, history, impl_->history);
  el_set(impl_->edit, EL_GETCFN, &Impl::next_character);
  el_set(impl_->edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(impl_->edit, EL_BIND, "\033[1;5C", "em-next-word", nullptr);
  el_set(impl_->edit, EL_BIND, "\033[1;5D", "ed-prev-word", nullptr);
  if (impl_->history_path.empty()) return;
  const Result<std::string> text = read_file(impl_->history_path, kHistoryBytesMax);
  if (!text.ok()) return;
  std::string_view rest = text.value();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0 && text::is_valid_utf8(rest.substr(0, end))) impl_->lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  while (impl_->lines.size() > kHistoryLinesMax) impl_->lines.pop_front();
  for (const std::string& line : impl_->lines) impl_->enter(line);
}

LineEditor::~LineEditor() {
  el_end(impl_->edit);
  history_end(impl_->history);
}

LineEditor::Event LineEditor::read(const std::string& prompt, std::string* line) {
  impl_->prompt = prompt;
  impl_->interrupt.clear();
  el_resize(impl_->edit);
  el_set(impl_->edit, EL_PREP_TERM, 1);  // before the prompt shows, so that no key meets a terminal in line mode
  int count = 0;
  const char* text = el_gets(impl_->edit, &count);
  if (impl_->interrupt.flag()) {
    impl_->interrupt.clear();
    return Event::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Event::kEnd;
  line->assign(text, static_cast<size_t>(count));
  while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
  return Event::kLine;
}

Status LineEditor::remember(const std::string& line) {
  if (line.empty() || (!impl_->lines.empty() && impl_->lines.back() == line)) return Status();
  impl_->enter(line);
  impl_->lines.push_back(line);
  if (impl_->lines.size() > kHistoryLinesMax) impl_->lines.pop_front();
  if (impl_->history_path.empty()) return Status();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(impl_->history_path).parent_path(), error);
  std::string all;
  for (const std::string& l : impl_->lines) all += l + "\n";
  const mode_t before = ::umask(077);
  const Status written = write_file_atomically(impl_->history_path, all);
  ::umask(before);
  return written;
}

}  // namespace deepinfer::app
