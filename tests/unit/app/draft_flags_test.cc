// What the flags of speculation make of an engine's options, and the file that `deepinfer calibrate` leaves.
#include "app/draft_flags.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/engine.h"

namespace deepinfer::app {
namespace {

using engine::DraftMode;

TEST(DraftFlags, ModeFollowsNumberAndConfidence) {
  const auto options_of = [](const DraftFlags& flags) {
    engine::EngineOptions options;
    add_drafts(flags, &options);
    return options.drafts;
  };
  EXPECT_EQ(options_of({}).mode, DraftMode::kConfidence);
  EXPECT_EQ(options_of({}).drafts_max, 5);
  EXPECT_EQ(options_of({.drafts = 0}).mode, DraftMode::kOff);
  const engine::DraftOptions fixed =
      options_of({.drafts = 3, .confidence = false, .text = false, .ahead = true});
  EXPECT_EQ(fixed.mode, DraftMode::kFixed);
  EXPECT_EQ(fixed.drafts_max, 3);
  EXPECT_FALSE(fixed.text);
  EXPECT_TRUE(fixed.ahead);
}

TEST(DraftFlags, TemperaturesAreReadBesideTheModel) {
  const std::string dir = testing::TempDir() + "draft_flags_test_" + std::to_string(::getpid());
  std::filesystem::create_directories(dir);
  engine::EngineOptions options;
  EXPECT_TRUE(read_draft_temperatures(dir, &options).ok()) << "none: temperatures of 1";
  EXPECT_TRUE(options.drafts.temperatures.empty());
  const auto write = [&](const std::string& text) { std::ofstream(draft_temperatures_path(dir)) << text; };
  write(draft_temperatures_json({1.5f, 2.25f}));
  EXPECT_TRUE(read_draft_temperatures(dir, &options).ok());
  EXPECT_EQ(options.drafts.temperatures, (std::vector<float>{1.5f, 2.25f}));
  for (const std::string bad : {"", "[]", "{\"draft_temperatures\": [1, 0]}", "{\"draft_temperatures\": [\"1\"]}",
                                "{\"draft_temperatures\": 1}", "{\"draft_temperatures\": [1e9]}"}) {
    write(bad);
    const Status status = read_draft_temperatures(dir, &options);
    EXPECT_NE(status.message().find("deepinfer calibrate"), std::string::npos) << bad;
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace deepinfer::app
