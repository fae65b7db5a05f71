// Agents on the bundled model, on a device that does not hold their KV: every answer equals the one computed cold.
#include <cstdio>
#include <cstdlib>

#include "kv/host_tier.h"
#include "kv/tier_stack.h"
#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using testing::Collected;

constexpr int kPrefix = 3000, kTurn = 30, kBlock = kv::kBlockTokens;

engine::Request make_request(const std::vector<int32_t>& prompt, bool cache) {
  engine::Request r;
  r.prompt = prompt;
  r.seed = 9;
  r.max_tokens = 4;
  r.logprobs = true;
  r.cache = cache;
  r.text = false;
  r.traffic = kv::Traffic::kAgent;
  return r;
}

TEST(Agent, SessionsOverATierEqualColdOnes) {
  const bool all = std::getenv("DEEPINFER_TEST_ALL") != nullptr;
  const int sessions = all ? 8 : 4, turns = all ? 30 : 7;
  testing::EngineSetup setup{.model = "tiny-trained", .context = 4096, .sequences = 1};
  setup.options.drafts = {};
  const auto cold = testing::make_engine(setup);
  setup.blocks = kPrefix / kBlock + (all ? 11 : 3);  // one session, and little more
  setup.options.tier_wait_s = 60;
  setup.options.tier = std::make_shared<kv::TierStack>(std::vector<std::shared_ptr<kv::Tier>>{
      std::make_shared<kv::HostTier>(kv::HostTierOptions{.bytes_max = 1ull << 30})});
  const auto cached = testing::make_engine(setup);
  const std::vector<int32_t> prefix = testing::random_prompt(kPrefix, 1);
  std::vector<std::vector<int32_t>> texts(static_cast<size_t>(sessions), prefix);
  int64_t hit = 0, could = 0, input = 0;
  for (int turn = 0; turn < turns; ++turn) {
    for (int s = 0; s < sessions; ++s) {
      SCOPED_TRACE(::testing::Message() << "session " << s << " turn " << turn);
      std::vector<int32_t>& text = texts[static_cast<size_t>(s)];
      const int before = turn > 0 ? static_cast<int>(text.size()) : s > 0 ? kPrefix : 0;
      const std::vector<int32_t> more = testing::random_prompt(kTurn, static_cast<uint32_t>(1000 * s + turn + 7));
      text.insert(text.end(), more.begin(), more.end());
      const Collected a = testing::run(*cached, make_request(text, true))[0];
      if (all || turn + 2 >= turns) {
        const Collected b = testing::run(*cold, make_request(text, false))[0];
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_EQ(a.logprobs, b.logprobs);
      }
      // Behind the border before the decoder's rows all rows run anyway: nothing is fetched, and nothing counted.
      const int keep = cached->info().window + 12;
      const int allowed = std::min(before, static_cast<int>(text.size()) - keep) / kBlock * kBlock;
      hit += std::min(a.usage.cached_tokens, allowed);
      could += allowed;
      input += static_cast<int64_t>(text.size());
    }
  }
  std::printf("%.2f%% of %lld input tokens hit, %.2f%% of what the workload allows; %lld blocks came from the tier\n",
              100.0 * static_cast<double>(hit) / static_cast<double>(input), static_cast<long long>(input),
              100.0 * static_cast<double>(hit) / static_cast<double>(could),
              static_cast<long long>(cached->stats().scheduler.tier_blocks));
  EXPECT_GE(static_cast<double>(hit), 0.99 * static_cast<double>(could));
  EXPECT_GT(cached->stats().scheduler.tier_blocks, 0) << "the device held everything";
}

}  // namespace
}  // namespace deepinfer
