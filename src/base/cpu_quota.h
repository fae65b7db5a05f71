// Cores that control groups leave to this process (versions 1 and 2).
//
//   double cores = quota_cores("/sys/fs/cgroup", content of /proc/self/cgroup);     // 1.5; infinity without a quota
//
// The tightest quota on the way from the process's groups up to the root counts.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

double quota_cores(const std::string& root, std::string_view self);

}  // namespace deepinfer
