#include "base/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace deepinfer {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// "max 100000" or "150000 100000".
double version_2(const std::string& folder) {
  std::ifstream in(folder + "/cpu.max");
  double quota = 0, period = 0;
  return in >> quota >> period && quota > 0 && period > 0 ? quota / period : kNoQuota;
}

double version_1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : kNoQuota;
}

}  // namespace

double quota_cores(const std::string& root, std::string_view self) {
  double cores = kNoQuota;
  std::istringstream lines{std::string(self)};
  for (std::string line; std::getline(lines, line);) {
    const size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    // Inside a container the path may name folders that are not there: its root holds the limits then.
    for (std::string path = line.substr(b + 1);; path.erase(path.rfind('/'))) {
      if (path == "/") path.clear();
      cores = std::min(cores, v2 ? version_2(root + path) : version_1(root + "/cpu" + path));
      if (path.empty() || path.find('/') == std::string::npos) break;
    }
  }
  return cores;
}

}  // namespace deepinfer
