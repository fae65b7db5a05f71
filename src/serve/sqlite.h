// SQLite as far as the state store uses it: a connection, prepared statements, transactions (internal to serve/).
//
//   Statement s(db, "SELECT bytes FROM files WHERE id = ?");
//   s.bind(id);
//   while (s.step()) total += s.integer(0);
//   DI_RETURN_IF_ERROR(s.status());
//
//   Transaction t(db);  ...  return t.commit();      // undone if it goes without commit()
//
// A statement that fails stays failed: its further calls do nothing.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::serve {

inline Status sqlite_error(sqlite3* db, int code) {
  const char* text = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_FULL: return make_error(Code::kResourceExhausted, "The disk of the state folder is full.");
    case SQLITE_IOERR:
      // The system's reason is mostly a quota or a limit of file sizes, which SQLite does not tell from others.
      if (code == SQLITE_IOERR_WRITE)
        return make_error(Code::kResourceExhausted, "The state folder cannot be written to. Is its disk full?");
      return make_error(Code::kIo, "The state file cannot be used: {}.", text);
    case SQLITE_TOOBIG: return make_error(Code::kResourceExhausted, "The state file takes no value of this size.");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return make_error(Code::kDataLoss, "The state file is damaged: {}.", text);
    default: return make_error(Code::kIo, "The state file cannot be used: {}.", text);
  }
}

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db) { keep(sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr)); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Parameters from left to right. Texts must live until the last step.
  Statement& bind(int64_t value) { return keep(sqlite3_bind_int64(statement_, ++bound_, value)); }
  Statement& bind(std::string_view text) {
    const char* data = text.data() != nullptr ? text.data() : "";
    return keep(sqlite3_bind_text64(statement_, ++bound_, data, text.size(), SQLITE_STATIC, SQLITE_UTF8));
  }
  Statement& bind_blob(std::string_view bytes) {
    const char* data = bytes.data() != nullptr ? bytes.data() : "";
    return keep(sqlite3_bind_blob64(statement_, ++bound_, data, bytes.size(), SQLITE_STATIC));
  }
  // True: there is a row.
  bool step() {
    if (code_ != SQLITE_OK) return false;
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) code_ = code;
    return code == SQLITE_ROW;
  }
  Status run() {
    step();
    return status();
  }
  void reset() {
    sqlite3_reset(statement_);
    bound_ = 0;
  }

  int64_t integer(int column) { return sqlite3_column_int64(statement_, column); }
  std::string text(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  }
  Status status() const { return code_ == SQLITE_OK ? Status() : sqlite_error(db_, code_); }

 private:
  Statement& keep(int code) {
    if (code_ == SQLITE_OK) code_ = code;
    return *this;
  }

  sqlite3* const db_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK, bound_ = 0;
};

class Transaction {
 public:
  explicit Transaction(sqlite3* db) : db_(db) {
    code_ = sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
  }
  ~Transaction() {
    if (sqlite3_get_autocommit(db_) == 0) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  Status status() const { return code_ == SQLITE_OK ? Status() : sqlite_error(db_, code_); }
  Status commit() {
    if (code_ == SQLITE_OK) code_ = sqlite3_exec(db_, "COMMIT", nullptr, nullptr, nullptr);
    return status();
  }

 private:
  sqlite3* const db_;
  int code_ = SQLITE_OK;
};

// Opens the file and gives a new one `tables`, which set user_version to `schema`. For this process alone: kUnavailable
// if another one has it.
Status open_database(const std::string& path, int64_t schema, const char* tables, sqlite3** db);

}  // namespace deepinfer::serve
