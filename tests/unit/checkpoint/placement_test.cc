#include "checkpoint/placement.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::checkpoint {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

TEST(ModelSizes, OfficialFigures) {
  ModelConfig config = official_config();
  const ModelSizes s = model_sizes(config);
  EXPECT_EQ(s.backbone_parameters, 551'566'180'464u);
  EXPECT_EQ(s.kv_bytes_per_token, 890.0);
  EXPECT_EQ(s.window_bytes_per_sequence, 2'703'360u + 202'752u);
  EXPECT_EQ(s.parameters[static_cast<int>(Group::kDrafterExperts)], 13'589'544'960u);
  EXPECT_EQ(s.active_parameters, 16'129'982'464u);
  config.vision = VisionConfig{};
  EXPECT_EQ(model_sizes(config).parameters[static_cast<int>(Group::kVision)], 411'842'560u + 73'410'560u);
}

TEST(Placement, EverythingIsPlacedOnce) {
  const ModelConfig config = official_config();
  const PlacementPlan plan = plan_placement(config, {.gpu_bytes = 200 * kGB, .ram_bytes = 250 * kGB});
  uint64_t bytes = 0;
  for (const PlacementItem& p : plan.items) bytes += p.bytes;
  EXPECT_EQ(bytes, model_sizes(config).total_bytes);
  EXPECT_LE(plan.bytes[0], 200 * kGB);
  EXPECT_LE(plan.bytes[1], 250 * kGB);
  EXPECT_EQ(plan.bytes[0] + plan.bytes[1] + plan.bytes[2], bytes);
  uint64_t tiers[kTiers];
  plan.sum(Group::kAttention, tiers);
  EXPECT_EQ(tiers[1] + tiers[2], 0u);
  plan.sum(Group::kRoutedExperts, tiers);
  EXPECT_GT(tiers[0], 180 * kGB);  // whole layers, so not to the last byte
  EXPECT_EQ(tiers[2], 0u);
  plan.sum(Group::kEngramTables, tiers);
  EXPECT_EQ(tiers[1], 384'006'168ull * 264);  // one table fits, rows of 256 codes and 8 scales
  EXPECT_EQ(tiers[2], 384'016'682ull * 264);
}

TEST(Placement, SmallModelsAndOverrides) {
  const ModelConfig config = tiny_config();
  PlacementBudget budget{.ram_bytes = kGB};
  EXPECT_EQ(plan_placement(config, budget).bytes[1], model_sizes(config).total_bytes);
  budget.fixed[Group::kEngramTables] = Tier::kSsd;
  const PlacementPlan plan = plan_placement(config, budget);
  EXPECT_EQ(plan.bytes[2], model_sizes(config).bytes[static_cast<int>(Group::kEngramTables)]);
  EXPECT_EQ(plan_placement(config, {}).bytes[2], model_sizes(config).total_bytes);
}

TEST(Machine, ReadsMemoryTexts) {
  const std::string text = "MemTotal:       24689764 kB\nMemFree:        1 kB\nMemAvailable:   24000000 kB\n";
  EXPECT_EQ(meminfo_bytes(text, "MemTotal"), 24689764ull * 1024);
  EXPECT_EQ(meminfo_bytes(text, "MemAvailable"), 24000000ull * 1024);
  EXPECT_EQ(meminfo_bytes(text, "Available"), 0u);
  EXPECT_EQ(meminfo_bytes("", "MemTotal"), 0u);
}

TEST(Machine, TakesTheTightestCgroup) {
  testing::TempDir root;
  const auto put = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.path() + path).parent_path());
    ASSERT_TRUE(write_file_atomically(root.path() + path, text).ok());
  };
  put("/a/memory.max", "1000000\n");
  put("/a/memory.current", "500000\n");
  put("/a/memory.stat", "anon 200000\nfile 300000\n");
  put("/a/b/memory.max", "max\n");
  put("/memory/job/memory.limit_in_bytes", "700000\n");
  put("/memory/job/memory.usage_in_bytes", "100000\n");
  put("/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const MemoryLimit v2 = cgroup_memory(root.path(), "0::/a/b\n");
  EXPECT_EQ(v2.limit, 1'000'000u);
  EXPECT_EQ(v2.free, 800'000u);
  const MemoryLimit v1 = cgroup_memory(root.path(), "9:name=systemd:/\n4:cpu,memory:/job\n");
  EXPECT_EQ(v1.limit, 700'000u);
  EXPECT_EQ(v1.free, 600'000u);
  EXPECT_EQ(cgroup_memory(root.path(), "garbage\n:\n3:memory\n").limit, UINT64_MAX);
  EXPECT_EQ(cgroup_memory(root.path(), "").limit, UINT64_MAX);
}

TEST(Machine, ThisOneHasMemory) {
  const Machine m = probe_machine(".");
  EXPECT_GT(m.ram_total, 0u);
  EXPECT_GT(m.ram_free, 0u);
  EXPECT_GE(m.cores, 1);
  EXPECT_GT(m.disk_free, 0u);
}

}  // namespace
}  // namespace deepinfer::checkpoint
