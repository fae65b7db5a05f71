// Models from a Hugging Face hub: fetching one into the local cache, and finding it there.
//
//   DI_ASSIGN_OR_RETURN(ModelId id, ModelId::parse("deepseek-ai/DeepSeek-V4.1-Flash@main"));
//   DI_ASSIGN_OR_RETURN(std::string dir, find_in_cache(config.cache_dir, id));      // never touches the network
//   DI_ASSIGN_OR_RETURN(std::string dir, pull(config, id, on_progress, &stop));     // fetches what is missing
//
// The cache has the layout of huggingface_hub, so that both programs share files:
//   CACHE/models--ORG--NAME/refs/REVISION                    text: the commit
//   CACHE/models--ORG--NAME/snapshots/COMMIT/PATH            a relative link to the blob
//   CACHE/models--ORG--NAME/blobs/DIGEST                     sha256 of an LFS file, git blob id (SHA-1) of any other
//   file
// While a file is being fetched: blobs/DIGEST.deepinfer (data) and blobs/DIGEST.deepinfer-ranges (which ranges are
// there).
//
// Every file is checked against its digest before it gets its name; refs/REVISION is written last. The token is sent to
// the endpoint's own host only, not to hosts it redirects to. Errors are sentences for the user; kCancelled after
// *stop. pull uses threads of its own; the progress function is called by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::checkpoint {

struct HubConfig {
  std::string endpoint = "https://huggingface.co";
  std::string cache_dir;             // .../huggingface/hub
  std::string token;                 // empty: anonymous
  std::string ca_file;               // certificates to trust instead of the system's; empty: the system's
  int connections = 8;               // 1..64
  int retries = 5;                   // attempts in a row without a byte received before a range is given up
  int retry_delay_ms = 500;          // doubled after each attempt, at most 30 s
  int stall_timeout_s = 30;          // a connection without a byte for this long counts as cut
  uint64_t range_bytes = 64u << 20;  // of one request
  bool verify = false;               // also hash the files that are in the cache already
};

struct ModelId {
  std::string repo;               // "org/name" or "name"
  std::string revision = "main";  // branch, tag, pull request ref or commit

  // "org/name" or "org/name@revision".
  static Result<ModelId> parse(std::string_view text);
  std::string to_string() const;  // without "@main"
};

struct PullProgress {
  uint64_t bytes = 0, bytes_total = 0;  // of all files, those found in the cache included
  int files = 0, files_total = 0;       // complete ones
};
using OnProgress = std::function<void(const PullProgress&)>;

// The snapshot's directory. kNotFound (the message names the pull command) when no complete pull of this revision is
// there.
Result<std::string> find_in_cache(const std::string& cache_dir, const ModelId& id);

// Fetches what the cache lacks and returns the snapshot's directory.
Result<std::string> pull(const HubConfig& config, const ModelId& id, const OnProgress& progress,
                         const std::atomic<bool>* stop);

}  // namespace deepinfer::checkpoint
