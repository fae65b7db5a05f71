#include "serve/sqlite.h"

namespace deepinfer::serve {
namespace {

Status run(sqlite3* db, const char* sql) {
  const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status() : sqlite_error(db, code);
}

}  // namespace

Status open_database(const std::string& path, int64_t schema, const char* tables, sqlite3** db) {
  const int code = sqlite3_open_v2(path.c_str(), db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  if (code != SQLITE_OK) return sqlite_error(*db, code).with_context(path);
  sqlite3_extended_result_codes(*db, 1);
  const Status locked = run(*db,
                            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
                            "BEGIN IMMEDIATE; COMMIT;");
  if (!locked.ok() && (sqlite3_errcode(*db) & 0xff) == SQLITE_BUSY) {
    return make_error(Code::kUnavailable,
                      "{} is in use by another process. Give each service a state folder of its own.", path);
  }
  DI_RETURN_IF_ERROR(locked.with_context(path));
  Statement version(*db, "PRAGMA user_version");
  version.step();
  DI_RETURN_IF_ERROR(version.status());
  const int64_t found = version.integer(0);
  version.reset();
  if (found == schema) return Status();
  if (found != 0) {
    return make_error(Code::kUnsupported, "{} has layout {}, this program writes {}. Name another state folder.", path,
                      found, schema);
  }
  Transaction t(*db);
  DI_RETURN_IF_ERROR(t.status());
  DI_RETURN_IF_ERROR(run(*db, tables).with_context(path));
  return t.commit();
}

}  // namespace deepinfer::serve
