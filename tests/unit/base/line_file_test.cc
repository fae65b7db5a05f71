#include "base/line_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include <sys/stat.h>

#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

constexpr size_t kBytesMax = 200'000;

class LineFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    Result<LineFile> file = LineFile::open(path_, kBytesMax);
    EXPECT_TRUE(file.ok());
    std::vector<std::string> out;
    for (std::string line; file->next(&line);) out.push_back(line);
    EXPECT_TRUE(file->status().ok());
    ended_ = file->line_ended();
    return out;
  }
  testing::TempDir dir_;
  const std::string path_ = dir_.path() + "/lines";
  bool ended_ = false;
};

using Lines = std::vector<std::string>;

TEST_F(LineFileTest, LinesWithAndWithoutANewlineAtTheEnd) {
  EXPECT_EQ(lines(""), Lines());
  EXPECT_EQ(lines("\n"), Lines{""});
  EXPECT_EQ(lines("a\n\nb\n"), (Lines{"a", "", "b"}));
  Result<LineFile> file = LineFile::open(path_, 10);
  std::string line;
  ASSERT_TRUE(file->next(&line));
  EXPECT_TRUE(file->line_ended());
  EXPECT_EQ(lines("a\nb"), (Lines{"a", "b"}));
  EXPECT_FALSE(ended_);
  EXPECT_EQ(lines(std::string("x\0y\r\n", 5)), Lines{std::string("x\0y\r", 4)});
}

TEST_F(LineFileTest, LinesAcrossTheBordersOfWhatIsReadAtOnce) {
  for (size_t n : {65534u, 65535u, 65536u, 65537u, 131072u, 200'000u}) {
    const std::string text(n, 'x');
    EXPECT_EQ(lines(text + "\nafter\n"), (Lines{text, "after"})) << n;
    EXPECT_EQ(lines(text), Lines{text}) << n;
  }
}

TEST_F(LineFileTest, ALineThatIsTooLongIsCutAndTheNextOneIsWhole) {
  const Lines got = lines(std::string(3 * kBytesMax, 'x') + "\nafter\n");
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].size(), kBytesMax + 1);
  EXPECT_EQ(got[1], "after");
}

TEST_F(LineFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(LineFile::open(dir_.path() + "/none", 1).status().code(), Code::kNotFound);
  EXPECT_EQ(LineFile::open(dir_.path(), 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(LineFile::open("/dev/zero", 1).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(LineFile::open(path_, 1).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer
