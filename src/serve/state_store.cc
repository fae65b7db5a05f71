#include "serve/state_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "serve/sqlite.h"

namespace deepinfer::serve {
namespace {

constexpr int64_t kSchema = 1;

constexpr const char* kTables = R"(
CREATE TABLE files(seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, purpose TEXT NOT NULL,
  filename TEXT NOT NULL, bytes INTEGER NOT NULL, created INTEGER NOT NULL, content BLOB NOT NULL);
CREATE TABLE batches(seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, endpoint TEXT NOT NULL,
  input_file TEXT NOT NULL, completion_window TEXT NOT NULL, metadata TEXT NOT NULL, status TEXT NOT NULL,
  errors TEXT NOT NULL DEFAULT '', output_file TEXT NOT NULL DEFAULT '', error_file TEXT NOT NULL DEFAULT '',
  created INTEGER NOT NULL, expires INTEGER NOT NULL, started INTEGER NOT NULL DEFAULT 0,
  finalizing INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0, cancelling INTEGER NOT NULL DEFAULT 0,
  total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
  result_bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE lines(seq INTEGER PRIMARY KEY, batch TEXT NOT NULL, number INTEGER NOT NULL, state INTEGER NOT NULL,
  custom_id TEXT NOT NULL, body BLOB NOT NULL, result BLOB NOT NULL, UNIQUE(batch, number));
CREATE INDEX files_owner ON files(owner, seq);
CREATE INDEX batches_owner ON batches(owner, seq);
PRAGMA user_version = 1;
)";

#define FILE_COLUMNS "id, owner, purpose, filename, bytes, created"
#define BATCH_COLUMNS                                                                                             \
  "id, owner, endpoint, input_file, completion_window, metadata, status, errors, output_file, error_file, created, " \
  "expires, started, finalizing, ended, cancelling, total, completed, failed, result_bytes"
#define IS_OPEN "status IN ('validating', 'in_progress', 'cancelling')"

StoredFile read_file_row(Statement& s) {
  return {.id = s.text(0),
          .owner = s.text(1),
          .purpose = s.text(2),
          .filename = s.text(3),
          .bytes = s.integer(4),
          .created = s.integer(5)};
}

StoredBatch read_batch_row(Statement& s) {
  return {.id = s.text(0),
          .owner = s.text(1),
          .endpoint = s.text(2),
          .input_file = s.text(3),
          .window = s.text(4),
          .metadata = s.text(5),
          .status = s.text(6),
          .errors = s.text(7),
          .output_file = s.text(8),
          .error_file = s.text(9),
          .created = s.integer(10),
          .expires = s.integer(11),
          .started = s.integer(12),
          .finalizing = s.integer(13),
          .ended = s.integer(14),
          .cancelling = s.integer(15),
          .total = s.integer(16),
          .completed = s.integer(17),
          .failed = s.integer(18),
          .result_bytes = s.integer(19)};
}

template <class Row, class Read>
Result<std::vector<Row>> read_rows(Statement& s, Read read) {
  std::vector<Row> rows;
  while (s.step()) rows.push_back(read(s));
  DI_RETURN_IF_ERROR(s.status());
  return rows;
}

Status no_file(std::string_view id) { return make_error(Code::kNotFound, "No such File object: {}", id); }
Status no_batch(std::string_view id) { return make_error(Code::kNotFound, "No batch found with id '{}'.", id); }

Result<int64_t> single(Statement& s) {
  const bool row = s.step();
  DI_RETURN_IF_ERROR(s.status());
  const int64_t value = row ? s.integer(0) : 0;
  s.reset();
  return value;
}

}  // namespace

struct StateStore::Impl {
  ~Impl() { sqlite3_close(db); }

  // The place of a row in its list; kNotFound for an id that is not there.
  Result<int64_t> place(const char* sql, std::string_view id, std::string_view owner, Status missing) {
    Statement s(db, sql);
    const bool row = s.bind(id).bind(owner).step();
    DI_RETURN_IF_ERROR(s.status());
    return row ? Result<int64_t>(s.integer(0)) : Result<int64_t>(std::move(missing));
  }
  Status insert_file(const StoredFile& f, std::string_view content) {
    Statement s(db, "INSERT INTO files(" FILE_COLUMNS ", content) VALUES(?, ?, ?, ?, ?, ?, ?)");
    s.bind(f.id)
        .bind(f.owner)
        .bind(f.purpose)
        .bind(f.filename)
        .bind(static_cast<int64_t>(content.size()))
        .bind(f.created);
    return s.bind_blob(content).run();
  }
  // The results of a batch's lines in one state, as a file; the id, or nothing if there is no line.
  Result<std::string> collect(const StoredBatch& batch, LineState state, std::string_view kind, const std::string& id,
                              int64_t now);

  std::mutex mutex;
  sqlite3* db = nullptr;
};

Result<std::string> StateStore::Impl::collect(const StoredBatch& batch, LineState state, std::string_view kind,
                                              const std::string& id, int64_t now) {
  Statement s(db, "SELECT result FROM lines WHERE batch = ? AND state = ? ORDER BY number");
  s.bind(batch.id).bind(static_cast<int64_t>(state));
  std::string content;
  while (s.step()) content.append(s.text(0)).append("\n");
  DI_RETURN_IF_ERROR(s.status());
  if (content.empty()) return std::string();
  const StoredFile file{.id = id,
                        .owner = batch.owner,
                        .purpose = "batch_output",
                        .filename = fmt::format("{}_{}.jsonl", batch.id, kind),
                        .created = now};
  DI_RETURN_IF_ERROR(insert_file(file, content));
  return id;
}

StateStore::StateStore(BatchLimits limits, std::unique_ptr<Impl> impl) : limits_(limits), impl_(std::move(impl)) {}
StateStore::~StateStore() = default;

Result<std::unique_ptr<StateStore>> StateStore::open(const std::string& folder, BatchLimits limits) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return make_error(Code::kIo, "The state folder {} cannot be made: {}.", folder, std::strerror(errno));
  }
  auto impl = std::make_unique<Impl>();
  DI_RETURN_IF_ERROR(open_database(folder + "/state.sqlite", kSchema, kTables, &impl->db));
  return std::unique_ptr<StateStore>(new StateStore(limits, std::move(impl)));
}

Status StateStore::add_file(StoredFile file, std::string_view content) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (content.size() > limits_.file_bytes_max) {
    return make_error(Code::kResourceExhausted, "The file has {} bytes; file_bytes_max is {}.", content.size(),
                      limits_.file_bytes_max);
  }
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  Statement count(impl_->db, "SELECT count(*) FROM files WHERE owner = ?"),
      bytes(impl_->db, "SELECT sum(bytes) FROM files");
  count.bind(file.owner);
  DI_ASSIGN_OR_RETURN(const int64_t files, single(count));
  DI_ASSIGN_OR_RETURN(const int64_t stored, single(bytes));
  if (files >= limits_.files_max) {
    return make_error(Code::kResourceExhausted, "{} files are stored, which is files_max. Delete some.", files);
  }
  if (stored + static_cast<int64_t>(content.size()) > limits_.stored_bytes_max) {
    return make_error(Code::kResourceExhausted,
                      "The stored files would have more than stored_bytes_max, {} bytes. Delete some.",
                      limits_.stored_bytes_max);
  }
  DI_RETURN_IF_ERROR(impl_->insert_file(file, content));
  return t.commit();
}

Result<StoredFile> StateStore::file(std::string_view id, std::string_view owner) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "SELECT " FILE_COLUMNS " FROM files WHERE id = ? AND owner = ?");
  const bool row = s.bind(id).bind(owner).step();
  DI_RETURN_IF_ERROR(s.status());
  if (!row) return no_file(id);
  return read_file_row(s);
}

Result<std::string> StateStore::content(std::string_view id, std::string_view owner) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "SELECT content FROM files WHERE id = ? AND owner = ?");
  const bool row = s.bind(id).bind(owner).step();
  DI_RETURN_IF_ERROR(s.status());
  if (!row) return no_file(id);
  return s.text(0);
}

Status StateStore::remove_file(std::string_view id, std::string_view owner) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "DELETE FROM files WHERE id = ? AND owner = ?");
  DI_RETURN_IF_ERROR(s.bind(id).bind(owner).run());
  return sqlite3_changes(impl_->db) > 0 ? Status() : no_file(id);
}

Result<std::vector<StoredFile>> StateStore::files(std::string_view owner, std::string_view purpose,
                                                  std::string_view after, bool ascending, int64_t limit) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  int64_t place = ascending ? 0 : INT64_MAX;
  if (!after.empty()) {
    DI_ASSIGN_OR_RETURN(place,
                        impl_->place("SELECT seq FROM files WHERE id = ? AND owner = ?", after, owner, no_file(after)));
  }
  Statement s(impl_->db,
              ascending
                  ? "SELECT " FILE_COLUMNS
                    " FROM files WHERE owner = ?1 AND ?2 IN ('', purpose) AND seq > ?3 ORDER BY seq LIMIT ?4"
                  : "SELECT " FILE_COLUMNS
                    " FROM files WHERE owner = ?1 AND ?2 IN ('', purpose) AND seq < ?3 ORDER BY seq DESC LIMIT ?4");
  s.bind(owner).bind(purpose).bind(place).bind(limit);
  return read_rows<StoredFile>(s, read_file_row);
}

Status StateStore::add_batch(const StoredBatch& b) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  Statement count(impl_->db, "SELECT count(*) FROM batches WHERE owner = ? AND " IS_OPEN);
  count.bind(b.owner);
  DI_ASSIGN_OR_RETURN(const int64_t open, single(count));
  if (open >= limits_.batches_open_max) {
    return make_error(Code::kResourceExhausted,
                      "{} batches have not ended, which is batches_open_max. Try again when one has.", open);
  }
  Statement s(
      impl_->db,
      "INSERT INTO batches(id, owner, endpoint, input_file, completion_window, metadata, status, created, expires) "
      "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)");
  s.bind(b.id).bind(b.owner).bind(b.endpoint).bind(b.input_file).bind(b.window).bind(b.metadata).bind(b.status);
  DI_RETURN_IF_ERROR(s.bind(b.created).bind(b.expires).run());
  return t.commit();
}

Result<StoredBatch> StateStore::batch(std::string_view id, std::string_view owner) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "SELECT " BATCH_COLUMNS " FROM batches WHERE id = ? AND owner = ?");
  const bool row = s.bind(id).bind(owner).step();
  DI_RETURN_IF_ERROR(s.status());
  if (!row) return no_batch(id);
  return read_batch_row(s);
}

Result<std::vector<StoredBatch>> StateStore::batches(std::string_view owner, std::string_view after, int64_t limit) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  int64_t place = INT64_MAX;
  if (!after.empty()) {
    DI_ASSIGN_OR_RETURN(
        place, impl_->place("SELECT seq FROM batches WHERE id = ? AND owner = ?", after, owner, no_batch(after)));
  }
  Statement s(impl_->db, "SELECT " BATCH_COLUMNS " FROM batches WHERE owner = ? AND seq < ? ORDER BY seq DESC LIMIT ?");
  s.bind(owner).bind(place).bind(limit);
  return read_rows<StoredBatch>(s, read_batch_row);
}

Result<std::vector<StoredBatch>> StateStore::open_batches() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "SELECT " BATCH_COLUMNS " FROM batches WHERE " IS_OPEN " ORDER BY seq");
  return read_rows<StoredBatch>(s, read_batch_row);
}

Status StateStore::start_batch(std::string_view id, const std::vector<BatchLine>& lines, int64_t now) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  int64_t failed = 0, result_bytes = 0;
  Statement insert(impl_->db,
                   "INSERT INTO lines(batch, number, state, custom_id, body, result) VALUES(?, ?, ?, ?, ?, ?)");
  for (const BatchLine& line : lines) {
    insert.bind(id).bind(line.number).bind(static_cast<int64_t>(line.state)).bind(line.custom_id).bind_blob(line.body);
    DI_RETURN_IF_ERROR(insert.bind_blob(line.result).run());
    insert.reset();
    failed += line.state == LineState::kFailed ? 1 : 0;
    result_bytes += static_cast<int64_t>(line.result.size());
  }
  // One that was cancelled meanwhile stays so.
  Statement s(
      impl_->db,
      "UPDATE batches SET status = CASE status WHEN 'validating' THEN 'in_progress' ELSE status END, started = ?, "
      "total = ?, failed = ?, result_bytes = ? WHERE id = ?");
  s.bind(now).bind(static_cast<int64_t>(lines.size())).bind(failed).bind(result_bytes).bind(id);
  DI_RETURN_IF_ERROR(s.run());
  return t.commit();
}

Status StateStore::fail_batch(std::string_view id, std::string_view errors, int64_t now) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "UPDATE batches SET status = 'failed', errors = ?, ended = ? WHERE id = ?");
  return s.bind(errors).bind(now).bind(id).run();
}

Status StateStore::cancel_batch(std::string_view id, int64_t now) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db,
              "UPDATE batches SET status = 'cancelling', cancelling = ? WHERE id = ? AND status IN ('validating', "
              "'in_progress')");
  return s.bind(now).bind(id).run();
}

Status StateStore::end_batch(const StoredBatch& batch, const BatchEnd& end) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  DI_ASSIGN_OR_RETURN(const std::string output,
                      impl_->collect(batch, LineState::kCompleted, "output", end.output_file, end.now));
  DI_ASSIGN_OR_RETURN(const std::string error,
                      impl_->collect(batch, LineState::kFailed, "error", end.error_file, end.now));
  Statement s(impl_->db,
              "UPDATE batches SET status = ?, output_file = ?, error_file = ?, finalizing = ?, ended = ? WHERE id = ?");
  DI_RETURN_IF_ERROR(s.bind(end.status).bind(output).bind(error).bind(end.now).bind(end.now).bind(batch.id).run());
  Statement lines(impl_->db, "DELETE FROM lines WHERE batch = ?");
  DI_RETURN_IF_ERROR(lines.bind(batch.id).run());
  return t.commit();
}

Result<std::optional<BatchLine>> StateStore::next_line(std::string_view batch, int64_t above) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(
      impl_->db,
      "SELECT number, custom_id, body FROM lines WHERE batch = ? AND number > ? AND state = 0 ORDER BY number LIMIT 1");
  const bool row = s.bind(batch).bind(above).step();
  DI_RETURN_IF_ERROR(s.status());
  if (!row) return std::optional<BatchLine>();
  return std::optional(BatchLine{.number = s.integer(0), .custom_id = s.text(1), .body = s.text(2), .result = {}});
}

Status StateStore::finish_line(std::string_view batch, const BatchLine& line) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  Statement s(impl_->db,
              "UPDATE lines SET state = ?, result = ?, body = x'' WHERE batch = ? AND number = ? AND state = 0");
  DI_RETURN_IF_ERROR(
      s.bind(static_cast<int64_t>(line.state)).bind_blob(line.result).bind(batch).bind(line.number).run());
  const int64_t changed = sqlite3_changes(impl_->db);
  Statement counts(impl_->db,
                   "UPDATE batches SET completed = completed + ?, failed = failed + ?, result_bytes = result_bytes + ? "
                   "WHERE id = ?");
  counts.bind(line.state == LineState::kCompleted ? changed : 0).bind(line.state == LineState::kFailed ? changed : 0);
  DI_RETURN_IF_ERROR(counts.bind(changed * static_cast<int64_t>(line.result.size())).bind(batch).run());
  return t.commit();
}

}  // namespace deepinfer::serve
