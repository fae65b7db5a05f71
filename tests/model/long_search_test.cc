// The indexer's search over more keys than are bounded at once: the same bits as with all scores kept.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/config.h"
#include "checkpoint/random_checkpoint.h"
#include "model/kv_memory.h"
#include "model/sequence.h"
#include "tests/model/support.h"
#include "tests/support/temp_dir.h"

namespace deepinfer {
namespace {

using testing::Kind;

constexpr int kContext = 8192, kTokens = 5000, kBegin = kTokens - 60, kPages = kContext / 128;

// Logits of the rows from kBegin on.
std::vector<float> last_logits(const std::shared_ptr<const checkpoint::Checkpoint>& c, Kind kind, bool keep_scores,
                               const std::vector<int32_t>& tokens, int piece) {
  model::Options o;
  o.limits.rows_max = 512;
  o.limits.outputs_max = 512;
  o.limits.sequences_max = 1;
  o.limits.context_max = kContext;
  o.limits.keep_scores = keep_scores;
  o.pages = kPages;
  o.slots = 1;
  Result<std::unique_ptr<model::Model>> m = model::Model::create(c, testing::make_ops(kind, 2), o);
  EXPECT_TRUE(m.ok()) << m.status().to_string();
  model::KvAllocator kv(kPages, 1);
  Result<model::Sequence> s = model::Sequence::create(*m.value(), kv, kBegin);
  std::vector<float> all, part;
  for (int at = 0, n = 0; at < kTokens; at += n) {
    n = std::min(piece, kTokens - at);
    const Status status = s->append(std::span(tokens).subspan(at, n), std::clamp(at + n - kBegin, 0, n), &part);
    EXPECT_TRUE(status.ok()) << status.to_string();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(LongSearch, EntriesChosenWithoutAllScores) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
  const testing::TempDir dir;
  checkpoint::ModelConfig config = checkpoint::tiny_config();
  config.max_position_embeddings = kContext;
  ASSERT_TRUE(checkpoint::write_random_checkpoint(config, dir.path() + "/long", {.seed = 5}).ok());
  Result<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::open(dir.path() + "/long");
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const auto c = std::make_shared<const checkpoint::Checkpoint>(std::move(opened).value());
  std::mt19937 random(9);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random() % 6000);
  const std::vector<float> want = last_logits(c, Kind::kFast, true, tokens, 512);
  ASSERT_EQ(want.size(), static_cast<size_t>((kTokens - kBegin) * config.vocab_size));
  EXPECT_TRUE(last_logits(c, Kind::kFast, false, tokens, 512) == want);
  EXPECT_TRUE(last_logits(c, Kind::kFast, false, tokens, 390) == want);
  if (ops::make_fast_ops(1, "avx512") != nullptr && ops::make_fast_ops(1, "avx2") != nullptr) {
    // Where the processor has AMX, kFast is that, which is a numeric class of its own.
    const bool amx = ops::make_fast_ops(1, "amx") != nullptr;
    EXPECT_TRUE(last_logits(c, Kind::kFastAvx2, false, tokens, 512) ==
                (amx ? last_logits(c, Kind::kFastAvx512, true, tokens, 512) : want));
  }
}

}  // namespace
}  // namespace deepinfer
