#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <thread>
#include <algorithm>
#include <vector>

#include "base/file.h"
#include "observe/line_log.h"
#include "observe/metrics.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::observe {
namespace {

TEST(LineLog, WritesWholeLinesOfManyThreads) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/log";
  {
    auto log = LineLog::open(path).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 500; ++i) log->write("{\"thread\":" + std::to_string(t) + "}");
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(log->dropped(), 0u);
  }
  const std::string text = read_file(path, 1 << 20).value();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2000);
  EXPECT_EQ(text.size(), 2000 * std::string("{\"thread\":0}\n").size());
}

TEST(LineLog, DropsAndCountsWhatADiskDoesNotTake) {
  auto log = LineLog::open("/dev/full");
  ASSERT_TRUE(log.ok());
  log.value()->write("lost");
  for (int i = 0; i < 3000 && log.value()->dropped() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(log.value()->dropped(), 1u);
  log.value()->write(std::string(LineLog::kPendingBytesMax + 1, 'x'));
  EXPECT_EQ(log.value()->dropped(), 2u);
}

TEST(LineLog, ReopensAfterRotation) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/log";
  {
    auto log = LineLog::open(path).value();
    std::filesystem::rename(path, path + ".1");
    ASSERT_TRUE(log->reopen().ok());
    log->write("new");
  }
  EXPECT_EQ(read_file(path, 100).value(), "new\n");
  EXPECT_FALSE(LineLog::open(dir.path() + "/no/such").ok());
}

TEST(Metrics, PrintsPrometheusText) {
  Metrics metrics;
  metrics.counter("x_total", "Xs.", {{"code", "400"}}).add();
  metrics.counter("x_total", "Xs.", {{"code", "400"}}).add(2);
  Counter& raised = metrics.counter("r_total", "Rs.");
  raised.raise_to(5);
  raised.raise_to(4);
  metrics.gauge("g", "G.").set(-1.5);
  Histogram& h = metrics.histogram("h_seconds", "H.", {0.1, 1});
  h.record(0.05);
  h.record(0.5);
  h.record(5);
  const std::string text = metrics.text();
  for (const char* line :
       {"# TYPE x_total counter", "x_total{code=\"400\"} 3", "r_total 5", "g -1.5", "h_seconds_bucket{le=\"0.1\"} 1",
        "h_seconds_bucket{le=\"1\"} 2", "h_seconds_bucket{le=\"+Inf\"} 3", "h_seconds_count 3"}) {
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << " in\n" << text;
  }
}

}  // namespace
}  // namespace deepinfer::observe
