#include "tests/support/checkpoints.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/digest.h"
#include "checkpoint/random_checkpoint.h"

namespace deepinfer::testing {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void give_up(const std::string& problem) {
  std::fprintf(stderr, "test checkpoint: %s\n", problem.c_str());
  std::abort();
}

struct Known {
  std::string sha256;
  uint64_t bytes = 0;
  std::string file;  // within the checkpoint
};

std::vector<Known> known_files(const std::string& name) {
  const Result<std::string> list = read_file(DEEPINFER_TEST_DATA "/model/random.sha256", 1 << 20);
  if (!list.ok()) give_up(list.status().message());
  std::istringstream lines(list.value());
  std::vector<Known> files;
  Known k;
  while (lines >> k.sha256 >> k.bytes >> k.file) {
    if (!k.file.starts_with(name + "/")) continue;
    k.file = k.file.substr(name.size() + 1);
    files.push_back(k);
  }
  if (files.empty()) give_up("no files of " + name + " in random.sha256");
  return files;
}

bool has_right_sizes(const std::string& directory, const std::vector<Known>& files) {
  std::error_code error;
  for (const Known& k : files) {
    if (fs::file_size(directory + "/" + k.file, error) != k.bytes || error) return false;
  }
  return true;
}

void check_sums(const std::string& directory, const std::vector<Known>& files) {
  for (const Known& k : files) {
    const Result<MappedFile> map = MappedFile::open(directory + "/" + k.file);
    if (!map.ok()) give_up(map.status().message());
    const std::string sum = checkpoint::sha256_hex(map->bytes());
    if (sum != k.sha256) give_up(k.file + " has sha256 " + sum + " instead of " + k.sha256);
  }
}

// Holds an exclusive lock on a file while it lives, so that test programs that start together do not all write.
struct Lock {
  explicit Lock(const std::string& path) : fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd < 0 || ::flock(fd, LOCK_EX) != 0) give_up("cannot lock " + path);
  }
  ~Lock() { ::close(fd); }
  int fd;
};

std::string make(const std::string& name, const checkpoint::ModelConfig& config, uint64_t seed) {
  const std::string cache = DEEPINFER_TEST_CACHE, directory = cache + "/" + name, fresh = directory + ".new";
  const std::vector<Known> files = known_files(name);
  fs::create_directories(cache);
  const Lock lock(directory + ".lock");
  if (has_right_sizes(directory, files)) return directory;
  fs::remove_all(directory);
  fs::remove_all(fresh);
  checkpoint::RandomOptions options;
  options.seed = seed;
  const Status written = checkpoint::write_random_checkpoint(config, fresh, options);
  if (!written.ok()) give_up(written.message());
  check_sums(fresh, files);
  fs::rename(fresh, directory);
  return directory;
}

}  // namespace

const std::string& tiny_random_dir() {
  static const std::string directory = make("tiny-random", checkpoint::tiny_config(), 41);
  return directory;
}

const std::string& tiny_wide_random_dir() {
  static const std::string directory = make("tiny-wide-random", checkpoint::tiny_wide_config(), 42);
  return directory;
}

}  // namespace deepinfer::testing
