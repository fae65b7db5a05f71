#include "serve/response_archive.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <mutex>

#include "serve/sqlite.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

constexpr int64_t kSchema = 1;
constexpr const char* kTables = R"(
CREATE TABLE responses(seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, previous TEXT NOT NULL,
  created INTEGER NOT NULL, removed INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL, body BLOB NOT NULL, input BLOB NOT NULL,
  output BLOB NOT NULL, before BLOB NOT NULL);
CREATE INDEX responses_previous ON responses(previous);
CREATE INDEX responses_created ON responses(removed, created);
PRAGMA user_version = 1;
)";
constexpr int64_t kRowBytes = 512;   // beside the texts
constexpr int kPurgeMax = 64;        // rows that one call removes, so that it stays short

std::string json_text(const std::vector<Json>& items) {
  return recipe::to_compact_json(Json(recipe::JsonArray(items.begin(), items.end())));
}

Result<std::vector<Json>> json_items(std::string_view text) {
  recipe::JsonLimits limits;
  limits.bytes_max = std::numeric_limits<size_t>::max();
  DI_ASSIGN_OR_RETURN(Json list, recipe::parse_json(text, limits));
  if (!list.is_array()) return Status(Code::kDataLoss, "The file of stored responses is damaged.");
  return std::vector<Json>(std::make_move_iterator(list.as_array().begin()),
                           std::make_move_iterator(list.as_array().end()));
}

}  // namespace

struct ResponseArchive::Impl {
  ~Impl() { sqlite3_close(db); }

  Status prepare(const std::string& path);
  // Those that are too old are as if removed; of the removed, those that nobody continues go, then their parents.
  Status purge(int64_t now);
  // The oldest go while there is too much.
  Status shrink();
  Status erase(int64_t seq, int64_t row_bytes);

  Options options;
  std::mutex mutex;
  sqlite3* db = nullptr;
  int64_t rows = 0, bytes = 0;
  mutable std::mutex figures_mutex;
};

Status ResponseArchive::Impl::prepare(const std::string& path) {
  DI_RETURN_IF_ERROR(open_database(path, kSchema, kTables, &db));
  Statement sums(db, "SELECT count(*), total(bytes) FROM responses");
  sums.step();
  DI_RETURN_IF_ERROR(sums.status());
  rows = sums.integer(0);
  bytes = sums.integer(1);
  return Status();
}

Status ResponseArchive::Impl::erase(int64_t seq, int64_t row_bytes) {
  Statement s(db, "DELETE FROM responses WHERE seq = ?");
  DI_RETURN_IF_ERROR(s.bind(seq).run());
  const std::lock_guard<std::mutex> lock(figures_mutex);
  --rows;
  bytes -= row_bytes;
  return Status();
}

Status ResponseArchive::Impl::purge(int64_t now) {
  Statement old(db, "UPDATE responses SET removed = 1 WHERE removed = 0 AND created < ?");
  DI_RETURN_IF_ERROR(old.bind(now - options.age_max_s).run());
  for (int i = 0; i < kPurgeMax; ++i) {
    Statement leaf(db,
                   "SELECT seq, bytes FROM responses AS r WHERE removed = 1 AND NOT EXISTS (SELECT 1 FROM responses "
                   "WHERE previous = r.id) LIMIT 1");
    const bool row = leaf.step();
    DI_RETURN_IF_ERROR(leaf.status());
    if (!row) return Status();
    const int64_t seq = leaf.integer(0), row_bytes = leaf.integer(1);
    leaf.reset();
    DI_RETURN_IF_ERROR(erase(seq, row_bytes));
  }
  return Status();
}

Status ResponseArchive::Impl::shrink() {
  for (int i = 0; i < kPurgeMax && bytes > options.bytes_max && rows > 1; ++i) {
    Statement oldest(db, "SELECT seq, bytes FROM responses ORDER BY seq LIMIT 1");
    const bool row = oldest.step();
    DI_RETURN_IF_ERROR(oldest.status());
    if (!row) return Status();
    const int64_t seq = oldest.integer(0), row_bytes = oldest.integer(1);
    oldest.reset();
    DI_RETURN_IF_ERROR(erase(seq, row_bytes));
  }
  return Status();
}

ResponseArchive::ResponseArchive(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ResponseArchive::~ResponseArchive() = default;

Result<std::unique_ptr<ResponseArchive>> ResponseArchive::open(const std::string& folder, Options options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  DI_RETURN_IF_ERROR(impl->prepare(folder + "/responses.sqlite"));
  return std::unique_ptr<ResponseArchive>(new ResponseArchive(std::move(impl)));
}

Status ResponseArchive::add(const ArchivedResponse& r, int64_t now) {
  const std::string input = json_text(r.input_items), output = json_text(r.output_items), before = json_text(r.before);
  const auto size = static_cast<int64_t>(r.body.size() + input.size() + output.size() + before.size()) + kRowBytes;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Transaction t(impl_->db);
  DI_RETURN_IF_ERROR(t.status());
  Statement s(impl_->db,
              "INSERT INTO responses(id, owner, previous, created, bytes, body, input, output, before) VALUES(?, ?, ?, "
              "?, ?, ?, ?, ?, ?)");
  s.bind(r.id)
      .bind(r.owner)
      .bind(r.previous)
      .bind(r.created)
      .bind(size)
      .bind_blob(r.body)
      .bind_blob(input)
      .bind_blob(output);
  DI_RETURN_IF_ERROR(s.bind_blob(before).run());
  DI_RETURN_IF_ERROR(t.commit());
  {
    const std::lock_guard<std::mutex> figures(impl_->figures_mutex);
    ++impl_->rows;
    impl_->bytes += size;
  }
  DI_RETURN_IF_ERROR(impl_->purge(now));
  return impl_->shrink();
}

Result<bool> ResponseArchive::holds(std::string_view id, std::string_view owner) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db, "SELECT 1 FROM responses WHERE id = ? AND owner = ?");
  const bool row = s.bind(id).bind(owner).step();
  DI_RETURN_IF_ERROR(s.status());
  return row;
}

Result<std::optional<ArchivedResponse>> ResponseArchive::find(std::string_view id, std::string_view owner,
                                                              int64_t now) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db,
              "SELECT previous, created, body, input FROM responses WHERE id = ? AND owner = ? AND removed = 0 AND "
              "created >= ?");
  const bool row = s.bind(id).bind(owner).bind(now - impl_->options.age_max_s).step();
  DI_RETURN_IF_ERROR(s.status());
  if (!row) return std::optional<ArchivedResponse>();
  ArchivedResponse r = {.id = std::string(id), .owner = std::string(owner), .previous = s.text(0), .body = s.text(2)};
  r.created = s.integer(1);
  DI_ASSIGN_OR_RETURN(r.input_items, json_items(s.text(3)));
  return std::optional(std::move(r));
}

Result<bool> ResponseArchive::remove(std::string_view id, std::string_view owner, int64_t now) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(impl_->db,
              "UPDATE responses SET removed = 1 WHERE id = ? AND owner = ? AND removed = 0 AND created >= ?");
  DI_RETURN_IF_ERROR(s.bind(id).bind(owner).bind(now - impl_->options.age_max_s).run());
  const bool removed = sqlite3_changes(impl_->db) > 0;
  DI_RETURN_IF_ERROR(impl_->purge(now));
  return removed;
}

Result<std::vector<Json>> ResponseArchive::chain(std::string_view id, std::string_view owner, int64_t now,
                                                 bool as_parent) {
  std::vector<std::vector<Json>> turns;  // newest first
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Statement s(
      impl_->db,
      "SELECT previous, input, output, removed OR created < ?, before FROM responses WHERE id = ? AND owner = ?");
  for (std::string at(id); !at.empty();) {
    const bool row = s.bind(now - impl_->options.age_max_s).bind(at).bind(owner).step();
    DI_RETURN_IF_ERROR(s.status());
    const bool usable = row && (s.integer(3) == 0 || as_parent || !turns.empty());
    if (!usable) return Status(Code::kNotFound, "There is no such response.");
    std::string next = s.text(0);
    DI_ASSIGN_OR_RETURN(std::vector<Json> before, json_items(s.text(4)));
    DI_ASSIGN_OR_RETURN(std::vector<Json> turn, json_items(s.text(1)));
    DI_ASSIGN_OR_RETURN(std::vector<Json> output, json_items(s.text(2)));
    turn.insert(turn.end(), std::make_move_iterator(output.begin()), std::make_move_iterator(output.end()));
    turns.push_back(std::move(turn));
    if (!before.empty()) {
      turns.push_back(std::move(before));
      break;
    }
    s.reset();
    at = std::move(next);
  }
  std::vector<Json> items;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    items.insert(items.end(), std::make_move_iterator(turn->begin()), std::make_move_iterator(turn->end()));
  }
  return items;
}

ResponseArchive::Figures ResponseArchive::figures() const {
  const std::lock_guard<std::mutex> lock(impl_->figures_mutex);
  return {impl_->rows, impl_->bytes};
}

}  // namespace deepinfer::serve
