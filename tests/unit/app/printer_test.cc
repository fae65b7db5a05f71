#include "app/run/printer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

namespace deepinfer::app {
namespace {

std::string read_all(int fd) {
  std::string text(4096, '\0');
  const ssize_t n = ::read(fd, text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

TEST(WithoutControls, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(without_controls("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(without_controls("\x1b[31mred\x07\r"), "␛[31mred␇␍");
  EXPECT_EQ(without_controls("\x7f"), "␡");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "31m"),
            "\xef\xbf\xbd"
            "31m");  // the one-character form of ESC [
  EXPECT_EQ(without_controls("\xc2\xa0 é 猫 🐱"), "\xc2\xa0 é 猫 🐱");
  EXPECT_EQ(without_controls("\xff"), "\xef\xbf\xbd");
}

TEST(Printer, GivesAPipeTheAnswerAloneAndUnchanged) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Printer printer(ends[1]);
  EXPECT_TRUE(printer.on_reasoning("hm"));
  EXPECT_TRUE(printer.on_content("\x1b[1mbold"));
  printer.finish();
  EXPECT_EQ(read_all(ends[0]), "\x1b[1mbold\n");
  printer.finish();
  printer.on_content("line\n");
  printer.finish();
  EXPECT_EQ(read_all(ends[0]), "line\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Printer, RemembersThatTheDiskIsFull) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  Printer printer(full);
  EXPECT_FALSE(printer.on_content("text"));
  EXPECT_FALSE(printer.on_content("more"));
  EXPECT_EQ(printer.write_error(), ENOSPC);
  ::close(full);
}

}  // namespace
}  // namespace deepinfer::app
