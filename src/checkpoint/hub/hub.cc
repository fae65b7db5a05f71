#include "checkpoint/hub.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/format.h"
#include "checkpoint/hub/digest.h"
#include "checkpoint/hub/download.h"
#include "checkpoint/hub/http.h"
#include "checkpoint/hub/metadata.h"
#include "checkpoint/hub/partial_file.h"

namespace deepinfer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameBytesMax = 96;  // of an organisation or a repository, as on the hub
constexpr size_t kRevisionBytesMax = 256;

bool good_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' && name.front() != '-' &&
         name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
             std::string_view::npos;
}

bool good_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > kRevisionBytesMax || revision.back() == '/') return false;
  for (const unsigned char c : revision) {
    if (c <= ' ' || c == 0x7f || c == '\\' || c == ':' || c == '?' || c == '*' || c == '[' || c == '~' || c == '^') {
      return false;
    }
  }
  return revision.front() != '/' && revision.front() != '-' && revision.find("..") == std::string_view::npos &&
         revision.find("//") == std::string_view::npos && revision.find("/.") == std::string_view::npos &&
         revision.front() != '.';
}

// CACHE/models--org--name
std::string repo_dir(const std::string& cache_dir, const ModelId& id) {
  std::string name = id.repo;
  if (const size_t slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return cache_dir + "/models--" + name;
}

Status make_dir(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (!error) return Status();
  return make_error(Code::kIo, "Cannot create {}: {}. Set HF_HUB_CACHE to a folder that can be written to.", dir,
                    error.message());
}

Status check_disk(const std::string& dir, uint64_t needed, const ModelId& id) {
  struct statvfs info {};
  if (::statvfs(dir.c_str(), &info) != 0) {
    return make_error(Code::kIo, "Cannot look at the disk of {}: {}.", dir, std::strerror(errno));
  }
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (needed <= free) return Status();
  return make_error(Code::kResourceExhausted,
                    "{} needs {} more, but the disk of {} has {} free. Make room, or set HF_HUB_CACHE to another disk.",
                    id.to_string(), format_bytes(needed), dir, format_bytes(free));
}

void wait_unless_stopped(std::chrono::milliseconds left, const std::atomic<bool>* stop) {
  constexpr std::chrono::milliseconds kStep{50};
  for (; left.count() > 0 && !(stop != nullptr && stop->load()); left -= kStep)
    std::this_thread::sleep_for(std::min(left, kStep));
}

Result<RemoteModel> fetch_metadata_patiently(const HubConfig& config, const ModelId& id,
                                             const std::atomic<bool>* stop) {
  HttpClient http(config, stop);
  for (int attempt = 1;; ++attempt) {
    Result<RemoteModel> model = fetch_metadata(http, config, id);
    if (model.ok() || model.status().code() != Code::kUnavailable) return model;
    // Nothing has been fetched yet, so that a hub nobody can connect to is most likely a wrong address.
    const int retries = http.unreachable() ? std::min(config.retries, 1) : config.retries;
    if (attempt > retries) return model;
    wait_unless_stopped(std::chrono::milliseconds(int64_t{config.retry_delay_ms} << std::min(attempt - 1, 4)), stop);
  }
}

// Points `link` at `target` (relative), replacing what was there.
Status put_link(const fs::path& link, const fs::path& target) {
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return Status();
  const fs::path fresh = link.string() + ".deepinfer";
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (!error) return Status();
  return make_error(Code::kIo, "Cannot link {} to {}: {}.", link.string(), target.string(), error.message());
}

Status write_snapshot(const std::string& repo, const ModelId& id, const RemoteModel& model) {
  const std::string snapshot = repo + "/snapshots/" + model.commit;
  for (const RemoteFile& file : model.files) {
    const fs::path link = snapshot + "/" + file.path;
    DI_RETURN_IF_ERROR(make_dir(link.parent_path()));
    fs::path up = "../..";
    for (char c : file.path) {
      if (c == '/') up /= "..";
    }
    DI_RETURN_IF_ERROR(put_link(link, up / "blobs" / file.digest));
  }
  if (id.revision == model.commit) return Status();
  const fs::path ref = repo + "/refs/" + id.revision;
  DI_RETURN_IF_ERROR(make_dir(ref.parent_path()));
  return write_file_atomically(ref, model.commit);
}

// Which files are missing; *progress counts the others.
Result<std::vector<BlobJob>> plan(const HubConfig& config, const ModelId& id, const RemoteModel& model,
                                  const std::string& repo, const std::string& locks, PullProgress* progress,
                                  const std::atomic<bool>* stop) {
  std::vector<BlobJob> jobs;
  std::set<std::string> seen;
  for (const RemoteFile& file : model.files) {
    if (!seen.insert(file.digest).second) continue;
    ++progress->files_total;
    progress->bytes_total += file.size;
    const std::string blob = repo + "/blobs/" + file.digest;
    std::error_code error;
    bool present = fs::file_size(blob, error) == file.size && !error;
    if (present && config.verify) {
      DI_ASSIGN_OR_RETURN(const std::string digest, digest_of_file(blob, file.digest.size(), stop));
      present = digest == file.digest;
    }
    if (present) {
      ++progress->files;
      progress->bytes += file.size;
      continue;
    }
    jobs.push_back({file.path, file_url(config, id, model.commit, file.path), blob, locks + "/" + file.digest + ".lock",
                    file.digest, file.size});
  }
  return jobs;
}

}  // namespace

Result<ModelId> ModelId::parse(std::string_view text) {
  ModelId id;
  const size_t at = text.find('@');
  id.repo = text.substr(0, at);
  if (at != std::string_view::npos) id.revision = text.substr(at + 1);
  const size_t slash = id.repo.find('/');
  const std::string_view repo = id.repo;
  const bool good = slash == std::string::npos ? good_name(repo)
                                               : good_name(repo.substr(0, slash)) && good_name(repo.substr(slash + 1));
  if (!good) {
    return make_error(
        Code::kInvalidArgument,
        "\"{}\" is not the name of a model on a hub; write ORGANISATION/NAME or ORGANISATION/NAME@REVISION.", text);
  }
  if (!good_revision(id.revision)) {
    return make_error(Code::kInvalidArgument,
                      "\"{}\" is not a revision; write a branch, a tag or a commit after the @.", id.revision);
  }
  return id;
}

std::string ModelId::to_string() const { return revision == "main" ? repo : repo + "@" + revision; }

Result<std::string> find_in_cache(const std::string& cache_dir, const ModelId& id) {
  const std::string repo = repo_dir(cache_dir, id);
  std::string commit = id.revision;
  if (!is_hex(commit, 40)) {
    Result<std::string> ref = read_file(repo + "/refs/" + id.revision, 256);
    commit = ref.ok() ? std::move(ref).value() : "";
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
  }
  std::error_code error;
  const std::string dir = repo + "/snapshots/" + commit;
  if (is_hex(commit, 40) && fs::is_directory(dir, error)) return dir;
  return make_error(Code::kNotFound, "{} is not on this machine (looked in {}). Fetch it with: deepinfer pull {}",
                    id.to_string(), cache_dir, id.to_string());
}

Result<std::string> pull(const HubConfig& config, const ModelId& id, const OnProgress& progress,
                         const std::atomic<bool>* stop) {
  if (!config.endpoint.starts_with("http://") && !config.endpoint.starts_with("https://")) {
    return make_error(Code::kInvalidArgument,
                      "\"{}\" is not the address of a hub; it has to begin with http:// or https://.", config.endpoint);
  }
  const std::string repo = repo_dir(config.cache_dir, id);
  const std::string locks = config.cache_dir + "/.locks/" + fs::path(repo).filename().string();
  DI_RETURN_IF_ERROR(make_dir(repo + "/blobs"));
  DI_RETURN_IF_ERROR(make_dir(locks));
  DI_ASSIGN_OR_RETURN(const RemoteModel model, fetch_metadata_patiently(config, id, stop));
  PullProgress base;
  DI_ASSIGN_OR_RETURN(const std::vector<BlobJob> jobs, plan(config, id, model, repo, locks, &base, stop));
  uint64_t needed = 0;
  for (const BlobJob& job : jobs) {
    const uint64_t missing = job.size - PartialFile::bytes_present(job.blob_path, job.size, config.range_bytes);
    needed = needed + missing < needed ? ~uint64_t{0} : needed + missing;
  }
  DI_RETURN_IF_ERROR(check_disk(repo, needed, id));
  DI_RETURN_IF_ERROR(download_blobs(config, id, jobs, base, progress, stop));
  DI_RETURN_IF_ERROR(write_snapshot(repo, id, model));
  return repo + "/snapshots/" + model.commit;
}

}  // namespace deepinfer::checkpoint
