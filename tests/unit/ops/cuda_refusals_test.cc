#include "ops/cuda/refusals.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer::ops::cuda {
namespace {

TEST(CudaRefusals, OnlyHopperIsTaken) {
  EXPECT_TRUE(check_architecture(0, "NVIDIA H200", 9, 0).ok());
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    const Status s = check_architecture(1, "Some GPU", major, minor);
    EXPECT_EQ(s.code(), Code::kUnsupported);
    EXPECT_NE(s.message().find("GPU 1 (Some GPU)"), std::string::npos) << s.message();
    EXPECT_NE(s.message().find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("--device cpu"), std::string::npos) << s.message();
  }
}

TEST(CudaRefusals, NumbersOfGpus) {
  EXPECT_TRUE(check_number(0, 1).ok());
  EXPECT_TRUE(check_number(7, 8).ok());
  for (const int device : {-1, 2, 63}) {
    EXPECT_EQ(check_number(device, 2).code(), Code::kInvalidArgument);
    EXPECT_NE(check_number(device, 2).message().find("this machine has 2"), std::string::npos);
  }
}

TEST(CudaRefusals, TooLittleMemoryNamesWhatThereIsAndWhatIsNeeded) {
  const Status s = too_little_memory(uint64_t{512} << 20, uint64_t{81920} << 20, uint64_t{90000} << 20);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_EQ(s.message(),
            "The GPU has 512 MiB free of 81920 MiB, and 90000 MiB more are needed: use a smaller model, context or "
            "number of sequences, or the CPU (--device cpu).");
}

TEST(CudaRefusals, OnlyWhatStandsBeforeASequenceMayHaveNoToken) {
  using Tokens = std::vector<int32_t>;
  EXPECT_TRUE(check_tokens(Tokens{0, 99, -1, -3}, Tokens{kNoToken, 5, -2}, 100, 3).ok());
  const Status none = check_tokens(Tokens{5, kNoToken}, Tokens{}, 100, 3);
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_NE(none.message().find("has no token"), std::string::npos) << none.message();
  for (const int32_t wrong : {100, -4, kNoToken + 1}) {
    EXPECT_EQ(check_tokens(Tokens{wrong}, Tokens{}, 100, 3).code(), Code::kInvalidArgument) << wrong;
    EXPECT_EQ(check_tokens(Tokens{}, Tokens{wrong}, 100, 3).code(), Code::kInvalidArgument) << wrong;
  }
  EXPECT_FALSE(check_tokens(Tokens{-1}, Tokens{}, 100, 0).ok());
}

}  // namespace
}  // namespace deepinfer::ops::cuda
