// Fetches blobs with several connections at once: files in ranges where the server can, whole where it cannot; cut
// connections are taken up again; each file is checked and named as soon as it is complete. The first error stops all;
// what has been fetched stays for the next run.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/hub.h"

namespace deepinfer::checkpoint {

struct BlobJob {
  std::string path;  // in the repository, for messages
  std::string url;
  std::string blob_path;  // where it goes
  std::string lock_path;
  std::string digest;
  uint64_t size = 0;
};

// `base` is what the progress starts from (bytes and files that were there before).
Status download_blobs(const HubConfig& config, const ModelId& id, const std::vector<BlobJob>& jobs, PullProgress base,
                      const OnProgress& progress, const std::atomic<bool>* stop);

}  // namespace deepinfer::checkpoint
