// Step traces: what an engine did under preemption, forks and cached prefixes runs again to the same bits.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "engine/trace/replay.h"
#include "engine/trace/step_line.h"
#include "engine/trace/writers.h"
#include "recipe/json.h"
#include "tests/engine/support.h"

namespace deepinfer::engine {
namespace {

constexpr int kBlocks = 8;

class Trace : public ::testing::Test {
 protected:
  static std::string path(const std::string& name) {
    return ::testing::TempDir() + "trace_test_" + std::to_string(::getpid()) + "_" + name;
  }

  // One traced run for all tests.
  static void SetUpTestSuite() {
    auto steps = StepTrace::open(path("steps.jsonl")).value();
    auto loop = ChromeTrace::open(path("loop.json")).value();
    testing::EngineSetup setup{.model = "tiny-trained", .sequences = 6, .blocks = kBlocks, .rows = 96};
    setup.options.observer = std::make_shared<Observers>(Observers({steps, loop}));
    {
      auto engine = testing::make_engine(setup);
      steps->write_header(engine->info());
      std::vector<std::unique_ptr<Stream>> streams;
      for (int i = 0; i < 10; ++i) {
        Request r;
        r.prompt = testing::random_prompt(i % 3 == 0 ? 220 : 20 + 13 * i, static_cast<uint32_t>(i % 3 == 0 ? 1 : i));
        r.prompt.push_back(5 + i);
        r.n = 1 + i % 2;
        r.max_tokens = 24 + i;
        r.seed = static_cast<uint64_t>(i);
        r.sampling.temperature = i % 4 == 0 ? 0 : 0.9;
        r.full_prefill = i % 5 == 0;
        r.ignore_end = true;
        streams.push_back(engine->submit(std::move(r)).value());
      }
      for (size_t i = 0; i < streams.size(); ++i) testing::collect(*streams[i], 2);
      preemptions_ = engine->stats().scheduler.spilled;
    }
    ASSERT_TRUE(steps->close().ok() && loop->close().ok());
  }
  static void TearDownTestSuite() {
    for (const char* name : {"steps.jsonl", "loop.json", "bad.jsonl"}) std::filesystem::remove(path(name));
  }

  static std::unique_ptr<ModelExecutor> executor(const Replay& replay, std::unique_ptr<ops::Ops> ops) {
    auto made =
        ModelExecutor::create(testing::open_checkpoint("tiny-trained"), std::move(ops), replay.executor_options());
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }
  static Result<ReplayReport> run(const std::string& file, std::unique_ptr<ops::Ops> ops) {
    const std::atomic<bool> stop{false};
    DI_ASSIGN_OR_RETURN(Replay replay, Replay::open(file));
    return replay.run(*executor(replay, std::move(ops)), nullptr, &stop);
  }
  static std::vector<std::string> lines() {
    std::ifstream file(path("steps.jsonl"));
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  static std::string write(const std::vector<std::string>& all) {
    std::ofstream file(path("bad.jsonl"));
    for (const std::string& line : all) file << line << '\n';
    return path("bad.jsonl");
  }

  static inline int64_t preemptions_ = 0;
};

TEST_F(Trace, ReplaysToTheSameBits) {
  EXPECT_GT(preemptions_, 0);
  std::set<int> kinds;
  for (const std::string& line : lines()) {
    if (const auto step = parse_step_line(line); step.ok()) {
      for (const sched::MemoryOp& op : step->plan.before) kinds.insert(static_cast<int>(op.kind));
    }
  }
  for (auto kind : {sched::MemoryOp::Kind::kCopySlot, sched::MemoryOp::Kind::kSaveWindows,
                    sched::MemoryOp::Kind::kSaveSlot, sched::MemoryOp::Kind::kLoadSlot}) {
    EXPECT_TRUE(kinds.contains(static_cast<int>(kind))) << static_cast<int>(kind);
  }
  const auto report = run(path("steps.jsonl"), ops::make_cpu_ops(1));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->same_numerics);
  EXPECT_EQ(report->steps, static_cast<int64_t>(lines().size()) - 1);
  EXPECT_GT(report->tokens, 300);
  EXPECT_EQ(report->rows, report->equal_rows);
  EXPECT_EQ(report->first_difference, -1);
  EXPECT_EQ(report->logprob_difference_max, 0);
}

TEST_F(Trace, LinesKeepEverything) {
  const std::vector<std::string> all = lines();
  for (size_t i = 1; i < all.size(); i += 7) {
    const auto step = parse_step_line(all[i]);
    ASSERT_TRUE(step.ok()) << step.status().message();
    std::string again;
    append_step_line(step.value(), &again);
    EXPECT_EQ(again, all[i] + "\n");
  }
}

TEST_F(Trace, FindsADifference) {
  std::vector<std::string> all = lines();
  auto step = parse_step_line(all[5]).value();
  step.plan.step.tokens[0] = (step.plan.step.tokens[0] + 1) % 8000;
  all[5].clear();
  append_step_line(step, &all[5]);
  all[5].pop_back();
  const auto report = run(write(all), ops::make_cpu_ops(2));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_LT(report->equal_rows, report->rows);
  EXPECT_GE(report->first_difference, step.plan.step.step);
}

TEST_F(Trace, RefusesWhatIsNoTrace) {
  const std::vector<std::string> all = lines();
  const auto refused = [&](std::vector<std::string> changed) {
    return run(write(changed), ops::make_cpu_ops(1)).status().message();
  };
  EXPECT_NE(refused({"{}"}).find("no step trace"), std::string::npos);
  EXPECT_NE(refused({}).find("empty"), std::string::npos);
  std::string other = all[0];
  other.replace(other.find("\"checkpoint\":\"") + 14, 4, "0000");
  EXPECT_NE(refused({other}).find("another model"), std::string::npos);
  for (const char* bad : {"x", "[]", "{}", R"({"step":1,"sequences":[[1]]})"}) {
    EXPECT_NE(refused({all[0], bad}).find("line 2"), std::string::npos) << bad;
  }
  // Damaged in any place: an error or a difference, never a crash.
  for (size_t at = 3; at < all[2].size(); at += all[2].size() / 15 + 1) {
    std::string line = all[2];
    line[at] = line[at] == '9' ? '-' : '9';
    const auto report = run(write({all[0], all[1], line}), ops::make_cpu_ops(1));
    EXPECT_TRUE(!report.ok() || report->steps == 2);
  }
  EXPECT_NE(run("/no/such/file", ops::make_cpu_ops(1)).status().message().find("/no/such/file"), std::string::npos);
}

TEST_F(Trace, TheHeaderSaysWhereWeightsBeyondTheDeviceLie) {
  ExecutorInfo info{.checkpoint = "c", .numeric_class = "n"};
  EXPECT_EQ(header_line(info).find("placement"), std::string::npos);
  info.placement = "3 of 8 \"fit\"";
  const auto json = recipe::parse_json(header_line(info));
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->find("placement")->as_string(), info.placement);
  EXPECT_EQ(parse_header_line(header_line(info))->numeric_class, "n");
}

TEST_F(Trace, ChromeTraceIsJson) {
  std::ifstream file(path("loop.json"));
  std::stringstream text;
  text << file.rdbuf();
  const auto json = recipe::parse_json(text.str());
  ASSERT_TRUE(json.ok()) << json.status().message();
  std::map<std::string, int> names;
  for (const recipe::Json& event : json->as_array()) ++names[event.find("name")->as_string()];
  const auto steps = static_cast<int>(lines().size()) - 1;
  for (const char* name : {"plan", "forward", "sample", "stream", "commit", "rows"})
    EXPECT_EQ(names[name], steps) << name;
}

}  // namespace
}  // namespace deepinfer::engine
