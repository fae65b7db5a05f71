#include "ops/cuda/refusals.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace deepinfer::ops::cuda
