// A folder that lives as long as the object.
//
//   TempDir dir;
//   write(dir.path() + "/a.txt");
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace deepinfer::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "deepinfer_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace deepinfer::testing
