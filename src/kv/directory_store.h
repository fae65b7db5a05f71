// Records as files below a folder, for file systems that many machines mount (3FS, NFS).
//
// <folder>/<two hex digits>/<key>.kv; written beside its name and renamed, so that a reader finds it whole or not at
// all. A trailer (kv/stored_record.h) carries tenant and time. Expired files are removed when they are met, and by
// sweep().
#pragma once

#include <cstdint>
#include <string>

#include "kv/remote_store.h"

namespace deepinfer::kv {

class DirectoryStore : public RemoteStore {
 public:
  explicit DirectoryStore(std::string dir) : dir_(std::move(dir)) {}

  std::string_view name() const override { return "directory"; }
  Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) override;
  Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Status erase(const BlockKey& key) override;
  Status purge(uint64_t space) override;
  Status ping() override;
  std::unique_ptr<RemoteStore> clone() const override { return std::make_unique<DirectoryStore>(dir_); }

  // Removes what has passed its time; how many files.
  Result<int64_t> sweep() override;

 private:
  std::string path_of(const BlockKey& key) const;
  template <class Keep>
  Result<int64_t> remove_unless(const Keep& keep);

  const std::string dir_;
};

}  // namespace deepinfer::kv
