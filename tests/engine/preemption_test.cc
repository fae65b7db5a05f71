// A sequence that is preempted gives the tokens that it gives alone, whatever the position of its output, by spill and
// by computing again.
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using engine::Request;
using testing::Collected;

constexpr int kKeep = 44, kOutput = 3 * kKeep, kRequests = 12;

bool all_tests() { return std::getenv("DEEPINFER_TEST_ALL") != nullptr; }

Request make_request(int i) {
  Request r;
  r.prompt = testing::random_prompt(5 + 23 * (i % 7), static_cast<uint32_t>(i));
  r.seed = static_cast<uint64_t>(i) * 77 + 1;
  r.max_tokens = kOutput + 1;
  r.ignore_end = true;
  r.logprobs = true;
  r.cache = i % 2 == 0;
  if (i % 3 == 0) r.sampling.temperature = 0;
  if (i % 3 == 1) r.sampling.top_p = 0.9;
  if (i % 4 == 1) r.sampling.frequency_penalty = 0.3f;
  return r;
}

// Every position 1 .. kOutput is that of a preemption of one of the requests (of all of them with DEEPINFER_TEST_ALL);
// by computing again, which costs the whole sequence, of every sixth without it.
class Drill {
 public:
  explicit Drill(int every) : every_(every) {}

  bool operator()(int64_t id, int32_t outputs) {
    if (outputs > kOutput) return false;
    if (!all_tests() && (outputs % every_ != 0 || outputs / every_ % kRequests != id % kRequests)) return false;
    return done_[{id, outputs}]++ == 0;
  }
  int count() const { return static_cast<int>(done_.size()); }

 private:
  const int every_;
  std::map<std::pair<int64_t, int32_t>, int> done_;
};

const testing::AloneAnswer& alone(int i) {
  static testing::Alone model("tiny-random");
  static std::map<int, testing::AloneAnswer> answers;
  const auto [answer, added] = answers.try_emplace(i);
  if (added) answer->second = model.answer(make_request(i), 0);
  return answer->second;
}

void run(bool spill, bool beside) {
  const int every = all_tests() ? 1 : spill ? 1 + beside : 6;
  const auto drill = std::make_shared<Drill>(every);
  testing::EngineSetup setup;
  setup.beside = beside;
  setup.blocks = 128;  // only the drill preempts
  setup.options.spill = spill;
  setup.options.preempt_drill = [drill](int64_t id, int32_t outputs) { return (*drill)(id, outputs); };
  const auto engine = testing::make_engine(setup);
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (int i = 0; i < kRequests; ++i) streams.push_back(engine->submit(make_request(i)).value());
  int preempted = 0;
  for (int i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    const Collected got = testing::collect(*streams[static_cast<size_t>(i)], 1)[0];
    EXPECT_EQ(got.tokens, alone(i).tokens);
    EXPECT_EQ(got.logprobs, alone(i).logprobs);  // exactly
    preempted += got.usage.preemptions;
  }
  EXPECT_TRUE(engine->check_accounting().ok()) << engine->check_accounting().message();
  const engine::EngineStats stats = engine->stats();
  EXPECT_EQ(preempted, drill->count());
  EXPECT_GE(preempted, all_tests() ? kRequests * kOutput : kOutput / every);
  EXPECT_EQ(stats.scheduler.spilled, spill ? preempted : 0);
}

TEST(Preemption, SpilledAtEveryOutputPosition) {
  run(true, false);
  run(true, true);
}
TEST(Preemption, ComputedAgainAtOutputPositions) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizer build";
  run(false, false);
  run(false, true);
}

}  // namespace
}  // namespace deepinfer
