#include "app/terminal/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/terminal/terminal.h"
#include "base/format.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBarWidthMax = 24, kBarWidthMin = 6;

std::string duration_text(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

}  // namespace

ProgressBar::ProgressBar(std::string label, std::chrono::milliseconds show_after, Unit unit)
    : label_(std::move(label)), unit_(unit), terminal_(is_terminal(STDERR_FILENO)), show_at_(begin_ + show_after) {}

std::string ProgressBar::amount(double n) const {
  if (unit_ == Unit::kBytes) return format_bytes(static_cast<uint64_t>(n));
  return n < 10 && n != std::floor(n) ? fmt::format("{:.1f}", n) : fmt::format("{:.0f}", n);
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view note) {
  const auto now = Clock::now();
  if (!started_) first_done_ = done;
  started_ = true;
  if (now < show_at_ || now - last_drawn_ < (terminal_ ? 100ms : 10s)) return;
  last_drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = seconds > 0 && done > first_done_ ? static_cast<double>(done - first_done_) / seconds : 0;
  const double part = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
  std::string line = fmt::format("{:3.0f} %  {} of {}", part * 100, amount(static_cast<double>(done)),
                                 amount(static_cast<double>(total)));
  if (rate > 0) {
    line += fmt::format("  {}/s", amount(rate));
    if (done < total) line += fmt::format("  {} left", duration_text(static_cast<double>(total - done) / rate));
  }
  if (!note.empty()) line += fmt::format("  {}", note);
  if (!terminal_) {
    write_out(STDERR_FILENO, fmt::format("{}: {}\n", label_, line));
    return;
  }
  const size_t width = static_cast<size_t>(std::max(columns(STDERR_FILENO) - 1, 20));
  const size_t text = label_.size() + line.size() + 4;  // with brackets and spaces
  const size_t bar = std::min(width > text ? width - text : 0, kBarWidthMax);
  if (bar >= kBarWidthMin) {
    const size_t filled = static_cast<size_t>(part * static_cast<double>(bar));
    line = fmt::format("[{}{}] {}", std::string(filled, '='), std::string(bar - filled, ' '), line);
  }
  write_out(STDERR_FILENO, fmt::format("\r{}\x1b[K", fmt::format("{} {}", label_, line).substr(0, width)));
  drawn_ = true;
}

void ProgressBar::finish() {
  if (drawn_) write_out(STDERR_FILENO, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace deepinfer::app
