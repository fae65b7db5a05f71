// The output of a batch job: one line a finished request, appended with one write each, so that a killed job leaves
// at most one unfinished line, which --resume removes.
//
//   DI_ASSIGN_OR_RETURN(auto out, OutputFile::open("out.jsonl", /*resume=*/true));
//   if (!out->has(number, digest)) ... DI_RETURN_IF_ERROR(out->append(line));
//
// Each line says which line of the input it answers and that line's digest ("line": 3, "digest": "…"): resume refuses
// an output that belongs to another input. A second job on the same file is refused (flock). Without resume the file
// must be new or empty.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::app {

class OutputFile {
 public:
  static Result<std::unique_ptr<OutputFile>> open(const std::string& path, bool resume);
  ~OutputFile();

  int64_t done() const { return static_cast<int64_t>(digests_.size()); }
  // kFailedPrecondition if the line's answer is that of another text.
  Result<bool> has(int64_t number, std::string_view digest) const;
  // `line` ends with a newline.
  Status append(std::string_view line);
  Status close();

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status read_done();

  const std::string path_;
  int fd_;
  std::map<int64_t, std::string> digests_;
};

// Of an input line: 16 hexadecimal digits.
std::string line_digest(std::string_view text);

}  // namespace deepinfer::app
