// What a hub says about a revision: its commit, and each file's path, size and digest.
//
// Source: GET /api/models/REPO/revision/REV?blobs=true (LFS oid, git blob id); where a hub leaves the digest out, HEAD
// of /REPO/resolve/COMMIT/PATH (X-Linked-Etag, ETag). Everything is checked before it is used: paths stay inside the
// snapshot, digests are 40 or 64 hex digits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/hub.h"
#include "checkpoint/hub/http.h"

namespace deepinfer::checkpoint {

struct RemoteFile {
  std::string path;    // inside the repository
  std::string digest;  // 64 hex digits: SHA-256 of the content; 40: git blob id
  uint64_t size = 0;
};

struct RemoteModel {
  std::string commit;  // 40 hex digits
  std::vector<RemoteFile> files;
};

Result<RemoteModel> fetch_metadata(HttpClient& http, const HubConfig& config, const ModelId& id);

std::string file_url(const HubConfig& config, const ModelId& id, const std::string& commit, const std::string& path);

// What a reply's status means to the user; ok for 200 and 206. kUnavailable where trying again may help.
Status status_of_reply(const HttpReply& reply, const HubConfig& config, const ModelId& id, std::string_view what);

bool is_hex(std::string_view text, size_t digits);

}  // namespace deepinfer::checkpoint
