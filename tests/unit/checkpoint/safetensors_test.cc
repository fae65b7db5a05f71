#include "checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace deepinfer::checkpoint {
namespace {

using numeric::DType;

std::string length_prefix(uint64_t n) {
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string s = length_prefix(header.size()) + header;
  for (size_t i = 0; i < data_bytes; ++i) s += static_cast<char>(i);
  return s;
}

class Safetensors : public ::testing::Test {
 protected:
  Result<SafetensorsFile> open(const std::string& content) {
    const std::string path = dir_.path() + "/f.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    return SafetensorsFile::open(path);
  }

  void refuses(const std::string& content, Code code, const std::string& says) {
    const Result<SafetensorsFile> f = open(content);
    ASSERT_FALSE(f.ok()) << says;
    EXPECT_EQ(f.status().code(), code) << f.status().message();
    EXPECT_NE(f.status().message().find(says), std::string::npos) << f.status().message();
    EXPECT_NE(f.status().message().find("f.safetensors"), std::string::npos) << f.status().message();
  }

  testing::TempDir dir_;
};

constexpr const char* kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[8,16]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::string padded(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

TEST_F(Safetensors, ReadsWhatItIsGiven) {
  const Result<SafetensorsFile> f = open(file_of(padded(kTwo), 16));
  ASSERT_TRUE(f.ok()) << f.status().message();
  ASSERT_EQ(f->tensors().size(), 2u);
  const SafetensorsFile::Tensor &a = f->tensors()[0], &b = f->tensors()[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.view.dtype, DType::kF32);
  EXPECT_EQ(b.view.shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(static_cast<int>(b.view.data[0]), 8);
  EXPECT_TRUE(f->copied().empty());
}

TEST_F(Safetensors, CopiesTensorsAtOddAddresses) {
  std::string header = padded(kTwo);
  header.resize(header.size() + 3, ' ');
  const Result<SafetensorsFile> f = open(file_of(header, 16));
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_EQ(f->copied(), std::vector<std::string>{"a"});
  const numeric::TensorView& a = f->tensors()[0].view;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 4, 0u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<int>(a.data[i]), i);
}

TEST_F(Safetensors, AcceptsEmptyTensorsAndScalars) {
  const Result<SafetensorsFile> f = open(file_of(
      R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"s":{"dtype":"I8","shape":[],"data_offsets":[0,1]}})",
      1));
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_EQ(f->tensors().size(), 2u);
  EXPECT_TRUE(open(file_of("{}", 0)).ok());
}

TEST_F(Safetensors, RefusesHostileHeaders) {
  refuses("", Code::kDataLoss, "too few");
  refuses("1234567", Code::kDataLoss, "too few");
  refuses(length_prefix(uint64_t{1} << 63) + "{}", Code::kInvalidArgument, "9223372036854775808");
  refuses(length_prefix(~uint64_t{0}) + "{}", Code::kInvalidArgument, "18446744073709551615");
  refuses(length_prefix(SafetensorsFile::kMaxHeaderBytes + 1) + "{}", Code::kInvalidArgument, "at most 100000000");
  refuses(length_prefix(1000) + "{}", Code::kDataLoss, "cut");
  refuses(file_of("[1]", 0), Code::kInvalidArgument, "it must hold an object");
  refuses(file_of("{\"a\":", 0), Code::kInvalidArgument, "not valid JSON");
  refuses(file_of(std::string(100000, '['), 0), Code::kInvalidArgument, "not valid JSON");
  refuses(file_of("{\"a\":\"\xff\xfe\"}", 0), Code::kInvalidArgument, "not valid JSON");
}

TEST_F(Safetensors, RefusesATruncatedFile) {
  const std::string whole = file_of(padded(kTwo), 16);
  for (size_t n = 0; n < whole.size(); ++n) {
    const Result<SafetensorsFile> f = open(whole.substr(0, n));
    ASSERT_FALSE(f.ok()) << n;
    EXPECT_EQ(f.status().code(), Code::kDataLoss) << n << ": " << f.status().message();
  }
}

TEST_F(Safetensors, RefusesTensorsThatDoNotFit) {
  const auto one = [](const std::string& body) { return "{\"a\":{" + body + "}}"; };
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,7])"), 7), Code::kInvalidArgument,
          "has 7 bytes, but its shape and type need 8");
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8), Code::kInvalidArgument, "data_offsets");
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8), Code::kInvalidArgument,
          "data_offsets");
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8), Code::kInvalidArgument,
          "data_offsets");
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":"0-8")"), 8), Code::kInvalidArgument, "data_offsets");
  refuses(file_of(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), Code::kInvalidArgument,
          "does not hold sizes");
  refuses(file_of(one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,8])"), 8), Code::kInvalidArgument,
          "does not hold sizes");
  refuses(file_of(one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8), Code::kInvalidArgument, "not a list");
  refuses(file_of(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), 8),
          Code::kInvalidArgument, "overflows");
  refuses(file_of(one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"), 8), Code::kInvalidArgument,
          "more than 8 dimensions");
  refuses(file_of(one(R"("dtype":"F7","shape":[2],"data_offsets":[0,8])"), 8), Code::kUnsupported, "F7");
  refuses(file_of(one(R"("dtype":"F32","shape":[2])"), 8), Code::kInvalidArgument, "lacks");
  refuses(file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), 8), Code::kInvalidArgument,
          "unknown key");
  refuses(file_of(R"({"a":1})", 0), Code::kInvalidArgument, "not described by an object");
}

TEST_F(Safetensors, RefusesOverlapGapDuplicateAndTrailingBytes) {
  const auto two = [](const char* name, const char* offsets) {
    return std::string(R"({"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]},")") + name +
           R"(":{"dtype":"I8","shape":[8],"data_offsets":)" + offsets + "}}";
  };
  EXPECT_TRUE(open(file_of(two("b", "[8,16]"), 16)).ok());
  refuses(file_of(two("b", "[4,12]"), 12), Code::kInvalidArgument, "overlaps");
  refuses(file_of(two("b", "[0,8]"), 8), Code::kInvalidArgument, "overlaps");
  refuses(file_of(two("b", "[9,17]"), 17), Code::kInvalidArgument, "gap of 1 bytes");
  refuses(file_of(two("a", "[8,16]"), 16), Code::kInvalidArgument, "described twice");
  refuses(file_of(two("b", "[8,16]"), 20), Code::kInvalidArgument, "4 bytes behind the last tensor");
}

// Damaged headers are refused or describe only bytes of the file.
TEST_F(Safetensors, SurvivesDamage) {
  const std::string whole = file_of(padded(kTwo), 16);
  std::mt19937 random(7);
  int opened = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    for (uint32_t n = random() % 3 + 1; n > 0; --n)
      damaged[random() % damaged.size()] =
          static_cast<char>(random() % 4 == 0 ? random() : "0123456789[]{},:\" "[random() % 17]);
    const Result<SafetensorsFile> f = open(damaged);
    if (!f.ok()) continue;
    ++opened;
    for (const SafetensorsFile::Tensor& t : f->tensors())
      ASSERT_LE(f->header_bytes() + t.offset + t.view.bytes(), f->bytes().size());
  }
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, 3000);
}

TEST_F(Safetensors, NamesAMissingFile) {
  const Result<SafetensorsFile> f = SafetensorsFile::open(dir_.path() + "/none.safetensors");
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace deepinfer::checkpoint
