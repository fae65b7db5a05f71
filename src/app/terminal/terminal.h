// What standard output and standard error are connected to, and how text may be dressed there.
#pragma once

#include <string_view>

namespace deepinfer::app {

bool is_terminal(int fd);
// Colours and dimming: on a terminal that knows them, unless NO_COLOR is set (https://no-color.org).
bool has_style(int fd);
// Columns of the terminal at fd, 80 if unknown.
int columns(int fd);

// Writes all bytes at once, with no buffer of its own. False when the reader is gone or the disk is full; errno says
// why.
bool write_out(int fd, std::string_view text);

}  // namespace deepinfer::app
