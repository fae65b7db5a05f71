// make_ops: which device and backend names exist, what auto does, and how a GPU that cannot be used is reported.
#include "engine/loading.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/device_name.h"
#include "engine/host_experts_flag.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"

namespace deepinfer::engine {
namespace {

// Holds the stand-in of the CUDA backend under the real one's name, in a folder of each test, because libraries stay
// open.
class LoadingTest : public ::testing::Test {
 protected:
  LoadingTest()
      : dir_(std::filesystem::temp_directory_path() /
             fmt::format("{}_{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(), ::getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~LoadingTest() override { std::filesystem::remove_all(dir_); }

  void install_fake(Code code) {
    std::filesystem::copy_file(FAKE_CUDA, dir_ / "libdeepinfer_cuda.so",
                               std::filesystem::copy_options::skip_existing);
    ::setenv("FAKE_CUDA_CODE", std::to_string(static_cast<int>(code)).c_str(), 1);
  }
  Result<std::unique_ptr<ops::Ops>> make(std::string device, std::string backend = {}, std::string* note = nullptr) {
    return make_ops({std::move(device), std::move(backend), 1, dir_.string()}, note);
  }
  std::string made(std::string device, std::string backend = {}, std::string* note = nullptr) {
    auto ops = make(std::move(device), std::move(backend), note);
    return ops.ok() ? ops.value()->capabilities().backend : ops.status().message();
  }

  std::filesystem::path dir_;
};

TEST_F(LoadingTest, DevicesHaveNames) {
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:7", "cuda:63"})
    EXPECT_EQ(device_error(good), "") << good;
  for (const char* bad :
       {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:64", "cuda:1x", "cuda: 1", "cuda1", "cuda:99999999999999"}) {
    EXPECT_NE(device_error(bad).find("must be auto, cpu, cuda or cuda:N"), std::string::npos) << bad;
    EXPECT_EQ(make(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST_F(LoadingTest, WithoutACudaBackendAutoIsTheCpu) {
  std::string note;
  const std::string usual = made("cpu");
  EXPECT_EQ(made("auto", "", &note), usual);
  EXPECT_EQ(note, "");
  EXPECT_EQ(make("cuda").status().code(), Code::kNotFound);
  EXPECT_NE(made("cuda").find("--device cpu"), std::string::npos);
  EXPECT_EQ(made("auto", "plain"), "plain");
  EXPECT_EQ(made("cpu", "reference"), "reference");
}

TEST_F(LoadingTest, NamesThatContradictEachOtherAreRefused) {
  for (const auto& [device, backend] :
       {std::pair("cpu", "cuda"), std::pair("cuda", "plain"), std::pair("cuda:1", "fast")}) {
    EXPECT_NE(made(device, backend).find("contradict"), std::string::npos) << device << backend;
  }
  EXPECT_NE(made("cpu", "quick").find("There is no backend \"quick\""), std::string::npos);
}

TEST_F(LoadingTest, HostExpertsAreOffAutoOrANumber) {
  EXPECT_EQ(host_experts_count("off"), 0);
  EXPECT_EQ(host_experts_count("0"), 0);
  EXPECT_EQ(host_experts_count("64"), 64);
  EXPECT_EQ(host_experts_count("auto"), ops::kAutoHostExperts);
  for (const char* bad : {"", "on", "-1", "4097", "6x", " 6", "99999999999999"})
    EXPECT_FALSE(host_experts_count(bad)) << bad;
}

TEST_F(LoadingTest, AGpuIsToldWhatTheHostComputes) {
  install_fake(Code::kUnavailable);
  uint64_t told = 0;
  ComputeOptions options{.device = "cuda:3", .threads = 1, .library_dir = dir_.string()};
  options.on_copied = [&told](uint64_t done, uint64_t total) { told = 10 * done + total; };
  const auto answer = [&options](const char* host_experts) {
    options.host_experts = host_experts;
    return make_ops(options).status().message();
  };
  const std::string cpu = made("cpu");
  EXPECT_EQ(answer("off"), "The host computes 0 with nothing.");
  EXPECT_EQ(told, 25u);
  EXPECT_EQ(answer("auto"), fmt::format("The host computes -1 with {}.", cpu));
  EXPECT_EQ(answer("12"), fmt::format("The host computes 12 with {}.", cpu));
  EXPECT_NE(answer("some").find("must be off, auto or a number"), std::string::npos) << answer("some");
}

TEST_F(LoadingTest, WithoutAGpuTheHostsExpertsAreSaidToBeWithoutEffect) {
  ComputeOptions options{.device = "cpu", .threads = 1, .library_dir = dir_.string(), .host_experts = "12"};
  std::string note;
  EXPECT_TRUE(make_ops(options, &note).ok());
  EXPECT_EQ(note, "--host-experts 12 is without effect, since no GPU computes.");
  install_fake(Code::kUnavailable);
  options.device = "auto";
  EXPECT_TRUE(make_ops(options, &(note = "")).ok());
  EXPECT_NE(note.find("Computing on the CPU: "), std::string::npos);
  EXPECT_NE(note.find(". --host-experts 12 is without effect"), std::string::npos) << note;
  for (const char* usual : {"off", "auto"}) {
    options.device = "cpu";
    options.host_experts = usual;
    EXPECT_TRUE(make_ops(options, &(note = "")).ok());
    EXPECT_EQ(note, "");
  }
  options.host_experts = "some";
  EXPECT_EQ(make_ops(options).status().code(), Code::kInvalidArgument) << "on a CPU as well";
}

TEST_F(LoadingTest, AGpuByNumber) {
  install_fake(Code::kUnavailable);
  EXPECT_EQ(made("cuda:1"), "plain");
  EXPECT_EQ(made("cuda:1", "cuda"), "plain");
  EXPECT_EQ(made("cuda:4"), "There is no such GPU.");
  EXPECT_EQ(ops::cuda_peak_flops(1, dir_.string()), 1e15);
  EXPECT_EQ(ops::cuda_peak_flops(1, "/nowhere"), 0);
}

TEST_F(LoadingTest, AutoPassesOverAGpuThatCannotBeUsedAndSaysSo) {
  const std::string usual = made("cpu");
  for (const Code code : {Code::kUnavailable, Code::kUnsupported, Code::kResourceExhausted}) {
    install_fake(code);
    std::string note;
    EXPECT_EQ(made("auto", "", &note), usual);
    EXPECT_EQ(note, "Computing on the CPU: The GPU is a fake.");
    EXPECT_EQ(make("cuda").status().code(), code);
    EXPECT_EQ(make("auto", "cuda").status().code(), code);
    EXPECT_EQ(made("auto", "plain", &(note = "")), "plain");
    EXPECT_EQ(note, "");
  }
  install_fake(Code::kNotFound);  // no GPU here at all: nothing to say
  std::string note;
  EXPECT_EQ(made("auto", "", &note), usual);
  EXPECT_EQ(note, "");
}

TEST_F(LoadingTest, FilesThatAreNoCudaBackend) {
  std::ofstream(dir_ / "libdeepinfer_cuda.so") << "not a library";
  std::string note;
  EXPECT_EQ(make("cuda").status().code(), Code::kUnavailable);
  EXPECT_NE(made("cuda").find("cannot be opened"), std::string::npos);
  EXPECT_EQ(made("auto", "", &note), made("cpu"));
  EXPECT_NE(note.find("Computing on the CPU: "), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::engine
