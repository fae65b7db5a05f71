// Files: whole-file reads and writes, and read-only memory maps.
//
//   DI_ASSIGN_OR_RETURN(std::string text, read_file(path, 64 << 20));
//   DI_ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// Reads a regular file of at most max_bytes; larger files are refused by name. Never waits on a pipe or device.
Result<std::string> read_file(const std::string& path, uint64_t max_bytes);

// Standard input to its end; more than max_bytes are refused.
Result<std::string> read_standard_input(uint64_t max_bytes);

// Writes to path + ".tmp", syncs and renames, so that a reader sees the old or the new content whole. A link is
// followed; what is there and no regular file (a device, a folder) is refused.
Status write_file_atomically(const std::string& path, std::string_view content);

// A whole file mapped read-only. Movable. The mapping ends with the object.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace deepinfer
