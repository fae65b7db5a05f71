// What a pump says: with an answer the engine must plan again before it waits, or a request that could run lies there.
#include "engine/tier_link.h"

#include "gtest/gtest.h"
#include "kv/host_tier.h"
#include "tests/unit/sched/driver.h"

namespace deepinfer::engine {
namespace {

TEST(TierLink, APumpSaysWhetherAnswersCame) {
  sched::SchedulerConfig config = sched::small_config();
  config.block_tokens = kv::kBlockTokens;
  config.context_max = 4 * kv::kBlockTokens;
  config.tier_gets_max = 16;
  config.tier_wait_s = 1000;
  config.tier_puts_max = 0;
  sched::Driver driver(config);
  ExecutorInfo info;
  info.block_bytes = config.block_bytes;
  TierLink link(std::make_shared<kv::HostTier>(kv::HostTierOptions{.bytes_max = 1 << 20}), info, 1);
  EXPECT_FALSE(link.pump(*driver.s, driver.now));

  driver.submit({.prompt = sched::prompt_of(3 * kv::kBlockTokens), .max_tokens = 1});
  EXPECT_FALSE(link.pump(*driver.s, driver.now));  // asks for the first block
  EXPECT_EQ(link.gets_in_flight(), 1);
  EXPECT_TRUE(link.pump(*driver.s, driver.now));  // there is none: nothing is in flight, and the prompt can be computed
  EXPECT_EQ(link.in_flight(), 0);
  EXPECT_FALSE(link.pump(*driver.s, driver.now));
  driver.drain();
}

}  // namespace
}  // namespace deepinfer::engine
