// A log of lines that costs its writers a copy: a thread of its own writes them out.
//
//   DI_ASSIGN_OR_RETURN(auto log, LineLog::open("access.jsonl"));     // or "-" for standard error
//   log->write(R"({"status":200})");                                  // any thread; no line end
//
// Lines are written within a tenth of a second, whole and in order. When the disk is too slow or full, lines beyond
// kPendingBytesMax are dropped and counted; the program goes on. reopen() is for log rotation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::observe {

class LineLog {
 public:
  static constexpr size_t kPendingBytesMax = 8 << 20;

  static Result<std::unique_ptr<LineLog>> open(const std::string& path);
  ~LineLog();  // writes what is pending

  void write(std::string_view line);
  Status reopen();
  uint64_t dropped() const;

 private:
  struct Impl;
  explicit LineLog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::observe
