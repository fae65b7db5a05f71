#include "checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/engram_classes.h"
#include "checkpoint/safetensors.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kBundled = "models/tiny";

// A folder of links to the bundled model in which single files can be replaced.
class Folder {
 public:
  Folder() {
    for (const auto& entry : fs::directory_iterator(kBundled)) {
      fs::create_symlink(fs::absolute(entry.path()), fs::path(path()) / entry.path().filename());
    }
  }
  const std::string& path() const { return dir_.path(); }
  std::string read(const std::string& name) const { return read_file(path() + "/" + name, 1 << 26).value(); }
  void remove(const std::string& name) { fs::remove(path() + "/" + name); }
  void write(const std::string& name, const std::string& content) {
    remove(name);
    ASSERT_TRUE(write_file_atomically(path() + "/" + name, content).ok());
  }
  void edit(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read(name);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(name, text.replace(at, from.size(), to));
  }

 private:
  testing::TempDir dir_;
};

void expect_refusal(const std::string& directory, Code code, const std::string& says) {
  const Result<Checkpoint> c = Checkpoint::open(directory);
  ASSERT_FALSE(c.ok()) << says;
  EXPECT_EQ(c.status().code(), code) << c.status().message();
  EXPECT_NE(c.status().message().find(says), std::string::npos) << c.status().message();
}

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

TEST(Checkpoint, OpensTheBundledModel) {
  const Result<Checkpoint> c = Checkpoint::open(kBundled);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(c->warnings().empty()) << c->warnings()[0];
  EXPECT_EQ(c->engram_token_classes().size(), 8192u);
  const numeric::TensorView& w = c->tensor("layers.0.attn.wkv.weight");
  EXPECT_EQ(w.dtype, numeric::DType::kF8E4M3);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{64, 256}));
  EXPECT_EQ(c->tensor("layers.0.ffn.experts.3.w2.scale").shape, (std::vector<int64_t>{256, 4}));
  EXPECT_EQ(c->find("layers.0.attn.wkv"), nullptr);
  uint64_t backbone = 0, drafter = 0;
  for (const TensorSpec& t : c->specs()) (t.name.starts_with("mtp.") ? drafter : backbone) += parameters(t);
  EXPECT_EQ((backbone + 50'000) / 100'000, 201u);  // 20.1 M and 3.9 M in its model card
  EXPECT_EQ((drafter + 50'000) / 100'000, 39u);
}

TEST(Checkpoint, ExpectedTensorsOfTheOfficialModel) {
  ModelConfig config = official_config();
  config.vision = VisionConfig{};
  std::map<int, uint64_t> per_layer, per_stage;
  std::map<Group, uint64_t> bytes, params;
  uint64_t total = 0, globals = 0, vision = 0;
  for (const TensorSpec& t : expected_tensors(config)) {
    const uint64_t n = has_scale(t.format) ? 2 : 1;
    total += n;
    bytes[t.group] += stored_bytes(t);
    params[t.group] += parameters(t);
    if (t.name.starts_with("layers.")) per_layer[t.layer] += n;
    else if (t.name.starts_with("mtp.")) per_stage[t.name[4] - '0'] += n;
    else if (t.group == Group::kVision) vision += n;
    else globals += n;
  }
  EXPECT_EQ(total, 96085u);
  EXPECT_EQ(per_layer[0], 2334u);
  EXPECT_EQ(per_layer[1], 2340u);
  EXPECT_EQ(per_layer[2], 2342u);
  EXPECT_EQ(per_layer[3], 2334u);
  EXPECT_EQ(per_layer[14], 2348u);
  EXPECT_EQ(per_layer[20], 2341u);
  EXPECT_EQ(per_layer[24], 2337u);
  EXPECT_EQ(per_stage[0], 801u);
  EXPECT_EQ(per_stage[1], 798u);
  EXPECT_EQ(per_stage[2], 802u);
  EXPECT_EQ(globals, 6u);
  EXPECT_EQ(vision, 263u);
  EXPECT_EQ(bytes[Group::kRoutedExperts], 288'777'830'400u);
  EXPECT_EQ(bytes[Group::kEngramTables], 202'758'032'400u);
  EXPECT_EQ(bytes[Group::kDrafter] + bytes[Group::kDrafterExperts], 7'932'874'632u);
  const uint64_t image_vectors = 3 * 5120 * 2;
  EXPECT_EQ(bytes[Group::kVision] + image_vectors, 970'536'960u);
  EXPECT_EQ(bytes[Group::kEmbedding] - image_vectors + bytes[Group::kAttention] + bytes[Group::kSharedExperts] +
                bytes[Group::kHead] + bytes[Group::kEngramDense],
            9'846'748'608u);
  EXPECT_EQ(params[Group::kRoutedExperts], 543'581'798'400u);
  EXPECT_EQ(params[Group::kEngramTables], 196'613'849'600u);
  uint64_t all = 0;
  for (const auto& [group, n] : bytes) all += n;
  EXPECT_EQ(all, 510'286'023'000u);
}

TEST(Checkpoint, SaysWhatAPathIs) {
  testing::TempDir dir;
  expect_refusal(dir.path() + "/none", Code::kNotFound, "there is no folder");
  expect_refusal(dir.path(), Code::kNotFound, "no config.json");
  expect_refusal(kBundled + "/config.json", Code::kInvalidArgument, "not a folder");
  expect_refusal("", Code::kNotFound, "there is no folder");
}

TEST(Checkpoint, RefusesMissingAndCutShards) {
  Folder f;
  const std::string shard = f.read(kShard2);
  f.write(kShard2, shard.substr(0, shard.size() / 2));
  expect_refusal(f.path(), Code::kDataLoss, kShard2);
  f.remove(kShard2);
  expect_refusal(f.path(), Code::kFailedPrecondition, "1 of 2 shards missing, first model-00002-of-00002.safetensors");
  f.remove(kIndex);
  expect_refusal(f.path(), Code::kFailedPrecondition, "no model.safetensors.index.json");
  f.remove(kShard1);
  expect_refusal(f.path(), Code::kFailedPrecondition, "holds no weights");
}

TEST(Checkpoint, RefusesAHeaderOfTwoToTheSixtyThird) {
  Folder f;
  std::string shard = f.read(kShard2);
  const uint64_t length = uint64_t{1} << 63;
  std::memcpy(shard.data(), &length, 8);
  f.write(kShard2, shard);
  expect_refusal(f.path(), Code::kInvalidArgument, "9223372036854775808");
}

TEST(Checkpoint, RefusesMissingTensorsByName) {
  Folder f;
  f.edit("config.json", "\"n_routed_experts\": 16", "\"n_routed_experts\": 17");
  expect_refusal(f.path(), Code::kFailedPrecondition,
                 "48 of the 1341 tensors that config.json calls for are missing: layers.0.ffn.experts.16.w1.weight");
}

TEST(Checkpoint, RefusesWrongShapes) {
  Folder f;
  f.edit("config.json", "\"q_lora_rank\": 64", "\"q_lora_rank\": 96");
  expect_refusal(f.path(), Code::kInvalidArgument,
                 "layers.0.attn.wq_a.weight is F8_E4M3 [64, 256] instead of F8_E4M3 [96, 256]");
}

TEST(Checkpoint, RefusesAWrongType) {
  Folder f;
  f.edit(kShard1, "\"layers.0.attn.q_norm.weight\":{\"dtype\":\"BF16\"",
         "\"layers.0.attn.q_norm.weight\":{\"dtype\":\"F16\" ");
  expect_refusal(f.path(), Code::kInvalidArgument, "layers.0.attn.q_norm.weight is F16 [64] instead of BF16 [64]");
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  Folder f;
  f.edit(kIndex, "\"embed.weight\": \"model-00001", "\"embed.weight\": \"model-00002");
  expect_refusal(f.path(), Code::kFailedPrecondition, "\"embed.weight\" is not in model-00002-of-00002.safetensors");
}

TEST(Checkpoint, RefusesHostileIndexFiles) {
  for (const auto& [content, says] :
       std::map<std::string, std::string>{{R"({"weight_map":{"a":"../x.safetensors"}})", "not a plain file name"},
                                          {R"({"weight_map":{"a":"/etc/passwd"}})", "not a plain file name"},
                                          {R"({"weight_map":{"a":5}})", "not a string"},
                                          {R"({"weight_map":[]})", "no object"},
                                          {"{", "not valid JSON"},
                                          {R"({"weight_map":{"a":"x","model.a":"y"}})", "shards missing"}}) {
    Folder f;
    f.write(kIndex, content);
    const Result<Checkpoint> c = Checkpoint::open(f.path());
    ASSERT_FALSE(c.ok());
    EXPECT_NE(c.status().message().find(says), std::string::npos) << c.status().message();
  }
}

TEST(Checkpoint, AcceptsTheModelPrefixOnEitherSide) {
  Folder f;
  f.edit(kIndex, "\"embed.weight\"", "\"model.embed.weight\"");
  std::string shard = f.read(kShard1);
  const std::string from = "\"norm.weight\":", to = "\"model.norm.weight\":";
  const size_t at = f.read(kShard2).find(from);
  const std::string holder = at == std::string::npos ? kShard1 : kShard2;
  shard = f.read(holder);
  shard.replace(shard.find(from), from.size(), to);
  uint64_t length = 0;
  std::memcpy(&length, shard.data(), 8);
  length += 6;
  std::memcpy(shard.data(), &length, 8);
  f.write(holder, shard);
  const Result<Checkpoint> c = Checkpoint::open(f.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_NE(c->find("norm.weight"), nullptr);
  EXPECT_NE(c->find("embed.weight"), nullptr);
  // Six bytes more of header put every F32 and BF16 tensor of the shard at an odd address.
  EXPECT_FALSE(c->warnings().empty());
  f.edit(kIndex, "\"head.weight\":", "\"model.norm.weight\": \"" + holder + "\", \"head.weight\":");
  expect_refusal(f.path(), Code::kInvalidArgument, "twice");
}

TEST(Checkpoint, NoticesNanScales) {
  Folder f;
  std::string shard = f.read(kShard1);
  Result<SafetensorsFile> file = SafetensorsFile::open(f.path() + "/" + kShard1);
  ASSERT_TRUE(file.ok());
  for (const SafetensorsFile::Tensor& t : file->tensors()) {
    if (t.name == "layers.0.attn.wq_b.scale") shard[file->header_bytes() + t.offset + 5] = '\xff';
  }
  f.write(kShard1, shard);
  const Result<Checkpoint> c = Checkpoint::open(f.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  ASSERT_EQ(c->warnings().size(), 1u);
  EXPECT_NE(c->warnings()[0].find("1 scales are NaN (byte 255), first in \"layers.0.attn.wq_b.scale\""),
            std::string::npos)
      << c->warnings()[0];
}

TEST(Checkpoint, DigestsFollowTheContent) {
  const Result<Checkpoint> c = Checkpoint::open(kBundled);
  ASSERT_TRUE(c.ok());
  const std::string digest = c->digest();
  const Checkpoint::FullDigest full = c->full_digest(2);
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(full.files.size(), 2u);
  Folder f;
  EXPECT_EQ(Checkpoint::open(f.path())->digest(), digest);
  EXPECT_EQ(Checkpoint::open(f.path())->full_digest(1).digest, full.digest);
  f.edit("config.json", "\"rope_theta\": 10000", "\"rope_theta\": 10001");
  EXPECT_NE(Checkpoint::open(f.path())->digest(), digest);
  Folder g;
  std::string shard = g.read(kShard2);
  shard.back() = static_cast<char>(shard.back() ^ 1);  // the last byte is always sampled
  g.write(kShard2, shard);
  EXPECT_NE(Checkpoint::open(g.path())->digest(), digest);
  EXPECT_NE(Checkpoint::open(g.path())->full_digest(1).digest, full.digest);
}

TEST(EngramClasses, TheFileIsPartOfTheCheckpoint) {
  Folder f;
  f.write("engram_token_classes.json", "{\"classes\":[0,1]}");
  expect_refusal(f.path(), Code::kInvalidArgument, "has 2 entries; the vocabulary has 8192");
  f.write("engram_token_classes.json", "{\"classes\":[0,6518]}");
  expect_refusal(f.path(), Code::kInvalidArgument, "entry 1 is not a class from 0 to 6517");
  f.write("engram_token_classes.json", "[]");
  expect_refusal(f.path(), Code::kInvalidArgument, "no list");
}

// The bundled map was made without Mc and Me; the rule gives 6513 classes (its model card), which must be refused.
TEST(EngramClasses, AMapThatDoesNotFitIsRefused) {
  Folder f;
  f.remove("engram_token_classes.json");
  expect_refusal(f.path(), Code::kFailedPrecondition,
                 "gives 6513 Engram classes, but text_config.engram_compressed_vocab_size is 6518");
  f.remove("tokenizer.json");
  expect_refusal(f.path(), Code::kNotFound, "neither engram_token_classes.json nor a readable tokenizer.json");
}

TEST(EngramClasses, TheRule) {
  // Ġ is the byte alphabet's space, Ċ its line feed, Ã© the bytes of e with acute accent.
  const Result<std::vector<int32_t>> c = build_engram_classes(
      R"({"model":{"vocab":{"a":0,"A":1,"Ġa":2,"b":3,"Ġ":4,"ĠĠ":5,"Ċ":6,"Ã":7,"Ã©":8,"e":9,"Ì":10,"Âł":11,"Ģ":12}},
          "added_tokens":[{"id":13,"content":" A "},{"id":14,"content":"<x>"},{"id":99,"content":"beyond"}]})",
      15);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c.value(), (std::vector<int32_t>{0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 5, 2, 6, 0, 7}));
  EXPECT_FALSE(build_engram_classes(R"({"model":{"vocab":{"a":0}}})", 2).ok());
  EXPECT_FALSE(build_engram_classes(R"({"model":{"vocab":{"a":"0"}}})", 1).ok());
  EXPECT_FALSE(build_engram_classes("[]", 1).ok());
  EXPECT_FALSE(build_engram_classes("{", 1).ok());
}

}  // namespace
}  // namespace deepinfer::checkpoint
