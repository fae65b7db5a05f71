// Status and Result<T>: how every room reports a failure. Exceptions do not cross a room's border.
//
//   Result<Config> r = Config::parse(text);
//   if (!r.ok()) return r.status();
//   use(r.value());
//
// A message is one or two sentences for the user: what is wrong, where, and what to do about it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace deepinfer {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,    // the caller's input is wrong; repeating it cannot help
  kNotFound,           // a file, model, tensor or id does not exist
  kFailedPrecondition, // right input, wrong state (for example a shard is missing)
  kUnsupported,        // valid, but not something this program does
  kResourceExhausted,  // memory, disk, queue or a named limit
  kDataLoss,           // damaged or truncated data
  kUnavailable,        // a peer or device is not there now; trying again may help
  kDeadlineExceeded,
  kCancelled,
  kIo,                 // the operating system refused (message carries its reason)
  kInternal,           // a defect of this program
};

std::string_view code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid argument: ..." ; "ok" when fine.
  std::string to_string() const;
  // The same failure with `context: ` put before its message.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <class... Args>
Status make_error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) std::abort();  // a Result without a value must carry an error
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace deepinfer

// DI_RETURN_IF_ERROR(f());   DI_ASSIGN_OR_RETURN(auto x, g());
#define DI_RETURN_IF_ERROR(expr)                               \
  do {                                                         \
    ::deepinfer::Status di_status_ = (expr);                   \
    if (!di_status_.ok()) return di_status_;                   \
  } while (false)
#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)
#define DI_ASSIGN_OR_RETURN(decl, expr)                        \
  auto DI_CONCAT(di_result_, __LINE__) = (expr);               \
  if (!DI_CONCAT(di_result_, __LINE__).ok()) return DI_CONCAT(di_result_, __LINE__).status(); \
  decl = std::move(DI_CONCAT(di_result_, __LINE__)).value()
