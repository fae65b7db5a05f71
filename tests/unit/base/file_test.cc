#include "base/file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

struct TempDir {
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "deepinfer_file_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST(File, WritesReadsAndMaps) {
  TempDir dir;
  const std::string path = dir.path / "a.txt";
  ASSERT_TRUE(write_file_atomically(path, "first").ok());
  ASSERT_TRUE(write_file_atomically(path, "second").ok());
  EXPECT_EQ(read_file(path, 100).value(), "second");
  EXPECT_EQ(read_file(path, 5).status().code(), Code::kResourceExhausted);
  const Result<MappedFile> map = MappedFile::open(path);
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->bytes().size(), 6u);
  EXPECT_EQ(static_cast<char>(map->bytes()[0]), 's');
}

TEST(File, DoesNotWaitForThePipeOfAnother) {
  TempDir dir;
  const std::string path = dir.path / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_file(path, 100).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(path).status().code(), Code::kInvalidArgument);
}

TEST(File, SaysWhatIsMissing) {
  TempDir dir;
  const Result<std::string> r = read_file(dir.path / "none", 10);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kNotFound);
  EXPECT_NE(r.status().message().find("none"), std::string::npos);
  EXPECT_EQ(read_file(dir.path, 10).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(write_file_atomically(dir.path / "no" / "where", "x").ok());
}

TEST(File, WritesThroughLinksAndOverRegularFilesOnly) {
  TempDir dir;
  const std::string target = dir.path / "target", link = dir.path / "link", pipe = dir.path / "pipe";
  ASSERT_TRUE(write_file_atomically(target, "old").ok());
  std::filesystem::create_symlink(target, link);
  ASSERT_TRUE(write_file_atomically(link, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(target, 100).value(), "new");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(write_file_atomically(pipe, "x").code(), Code::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(write_file_atomically(dir.path, "x").code(), Code::kInvalidArgument);
}

TEST(File, MapsAnEmptyFile) {
  TempDir dir;
  ASSERT_TRUE(write_file_atomically(dir.path / "e", "").ok());
  EXPECT_TRUE(MappedFile::open(dir.path / "e")->bytes().empty());
}

}  // namespace
}  // namespace deepinfer
