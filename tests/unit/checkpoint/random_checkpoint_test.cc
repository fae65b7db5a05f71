#include "checkpoint/random_checkpoint.h"

#include <bit>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random_tensor.h"
#include "checkpoint/safetensors.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::checkpoint {
namespace {

TensorSpec spec_of(const std::string& name) {
  for (TensorSpec& t : expected_tensors(tiny_config())) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(RandomTensor, Vectors) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(splitmix(41), 0x66d1ecf1bbb89d25u);
  EXPECT_EQ(fnv1a("layers.0.attn.wkv.weight"), 0xc59a9cc0a1fe0046u);

  const auto first_bits = [](const std::string& name) {
    const RandomTensor t(41, spec_of(name));
    std::vector<float> v(static_cast<size_t>(t.columns()));
    t.values(0, 1, v.data());
    std::vector<uint32_t> bits;
    for (int i = 0; i < 4; ++i) bits.push_back(std::bit_cast<uint32_t>(v[static_cast<size_t>(i)]));
    return bits;
  };
  EXPECT_EQ(first_bits("layers.0.attn.wkv.weight"),
            (std::vector<uint32_t>{0x3d02b390, 0x3d8163f6, 0xbd806502, 0x3ca56a80}));
  EXPECT_EQ(first_bits("layers.0.ffn.experts.0.w1.weight"),
            (std::vector<uint32_t>{0x3da43e74, 0xbcdb9318, 0xbd711088, 0xbcf1c860}));
  EXPECT_EQ(first_bits("layers.1.attn_norm.weight"),
            (std::vector<uint32_t>{0x3f8608e5, 0x3f85aa5f, 0x3f7c6744, 0x3f84a924}));

  const auto first_bytes = [](const std::string& name) {
    const RandomTensor t(41, spec_of(name));
    std::vector<std::byte> data(static_cast<size_t>(t.rows()) * t.row_bytes()), scales(t.scale_bytes());
    t.fill(0, t.rows(), data.data(), scales.data());
    std::vector<int> bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(std::to_integer<int>(data[static_cast<size_t>(i)]));
    bytes.push_back(std::to_integer<int>(scales[0]));
    return bytes;
  };
  EXPECT_EQ(first_bytes("layers.0.attn.wkv.weight"), (std::vector<int>{0x68, 0x70, 0xf0, 0x62, 0x74}));
  EXPECT_EQ(first_bytes("layers.0.ffn.experts.0.w1.weight"), (std::vector<int>{0xa5, 0xac, 0xa5, 0x0b, 0x7a}));
}

// tiny_random_dir() compares every file with its published sha256.
TEST(RandomCheckpoint, TheTwoDefinedOnesOpen) {
  for (const std::string& directory : {testing::tiny_random_dir(), testing::tiny_wide_random_dir()}) {
    const Result<Checkpoint> c = Checkpoint::open(directory);
    ASSERT_TRUE(c.ok()) << c.status().message();
    EXPECT_TRUE(c->warnings().empty()) << c->warnings()[0];
    EXPECT_EQ(c->engram_token_classes()[5000], 5000 - 4096);
  }
}

TEST(RandomCheckpoint, ThreadsDoNotChangeTheBytes) {
  testing::TempDir dir;
  RandomOptions options;
  options.threads = 3;
  uint64_t last = 0, total = 0;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  ASSERT_TRUE(write_random_checkpoint(tiny_config(), dir.path() + "/a", options).ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, random_checkpoint_bytes(tiny_config()));
  for (const auto& entry : std::filesystem::directory_iterator(testing::tiny_random_dir())) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(read_file(dir.path() + "/a/" + name, 1 << 26).value() == read_file(entry.path(), 1 << 26).value())
        << name;
  }
}

TEST(RandomCheckpoint, AnyOtherConfigWithVisionAndFewerLayers) {
  testing::TempDir dir;
  ModelConfig config = tiny_config();
  config.vision = VisionConfig{.num_hidden_layers = 2,
                               .hidden_size = 64,
                               .num_attention_heads = 2,
                               .intermediate_size = 96,
                               .max_image_tokens = 64,
                               .min_pixels = 7056};
  ASSERT_TRUE(config.complete().ok());
  config = first_layers(config, 7).value();
  config.max_position_embeddings = 4096;
  RandomOptions options;
  options.shard_bytes = 2'000'000;
  ASSERT_TRUE(write_random_checkpoint(config, dir.path(), options).ok());
  const Result<Checkpoint> c = Checkpoint::open(dir.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(c->warnings().empty());
  EXPECT_EQ(c->config().num_hidden_layers, 7);
  EXPECT_EQ(c->config().max_position_embeddings, 4096);
  EXPECT_NE(c->find("vision.blocks.1.mlp.w1.weight"), nullptr);
  EXPECT_EQ(c->count_nan_scales(nullptr), 0u);
  EXPECT_EQ(write_random_checkpoint(config, dir.path(), options).code(), Code::kFailedPrecondition);
}

TEST(RandomCheckpoint, AFolderOfOfficialSizeOpens) {
  testing::TempDir dir;
  ModelConfig config = official_config();
  config.vision = VisionConfig{};
  RandomOptions options;
  options.zeros = true;
  const Status written = write_random_checkpoint(config, dir.path(), options);
  ASSERT_TRUE(written.ok()) << written.message();
  const Result<Checkpoint> c = Checkpoint::open(dir.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  uint64_t bytes = 0, tensors = 0;
  for (const SafetensorsFile& f : c->files()) {
    bytes += f.bytes().size() - f.header_bytes();
    tensors += f.tensors().size();
  }
  EXPECT_EQ(tensors, 96085u);
  EXPECT_EQ(bytes, 510'286'023'000u);
  EXPECT_EQ(c->tensor("layers.39.ffn.experts.383.w2.scale").shape, (std::vector<int64_t>{5120, 72}));
  EXPECT_FALSE(c->scales_checked());
}

TEST(RandomCheckpoint, SaysWhenThereIsNoRoom) {
  testing::TempDir dir;
  ModelConfig config = official_config();
  config.hidden_size = 1 << 19;  // tens of terabytes
  ASSERT_TRUE(config.complete().ok());
  const Status s = write_random_checkpoint(config, dir.path(), {});
  EXPECT_EQ(s.code(), Code::kResourceExhausted) << s.message();
  EXPECT_NE(s.message().find("free disk space"), std::string::npos) << s.message();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_FALSE(write_random_checkpoint(tiny_config(), "/dev/null/x", {}).ok());
}

}  // namespace
}  // namespace deepinfer::checkpoint
